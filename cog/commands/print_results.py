"""Show results: one evaluation, tables of all results, figures, a report, or one file to share."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Sequence

from cog.commands import limits, results_source_flags, results_view_flags
from cog.commands.results_request import output_request, results_request
from cog.reporting import show
from cog.reporting.request import check_outputs
from cog.runtime import cli as command_line
from cog.runtime import files
from cog.runtime.memory import without_garbage_collection

logger = logging.getLogger("cog")  # the same name when run with python -m

_DESCRIPTION = """\
Print mean +- population standard deviation of top-1 and top-5 over seeds. One evaluation, seed by seed:
--logreg_root_dir, or --models_root_dir with one --model and one --dataset (CLF.N_SHOT 8 or --n_shot 8 for
few-shot). Otherwise one table of everything found under --models_root_dir: models x data sets, one table per
number of shots. Folders of the original toolkit are read as well (eval_logreg-N8/seed_22). Folders that
cannot be included are listed as warnings. EVAL.NAME selects the evaluation; EVAL.SEED has no effect. The
published results of the paper's 31 models can be shown beside (--with_published) or alone, and results that
others exported can be added (--import); all views treat them alike."""


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    made = command_line.Parser(_DESCRIPTION)
    results_source_flags.add(made)
    results_view_flags.add(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Read results, show them, and return the exit code.

    Raises:
        CogError: the arguments are wrong, or there is no result to show.
    """
    args = limits.apply(parser().parse_args(argv))
    output = output_request(args)
    if args.check:
        return show.check(lambda: results_request(args), output)
    request = results_request(args)
    paths = check_outputs(output)
    with without_garbage_collection(for_good=True):
        results = show.read(request, for_page=output.report is not None)
        shown = "output" in paths or not output.without_tables
        text = show.as_text(results, request) if shown else ""
    if shown:
        if target := paths.get("output"):
            files.write_text(target, text)
            logger.info("wrote %s", target)
        else:
            _print(text)
    show.write_files(results, request, output, paths)
    return 0


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # the terminal's encoding may lack the plus-minus sign
        text = text.replace("±", "+-").replace("†", "*").encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


cli = functools.partial(command_line.run, main)

if __name__ == "__main__":
    cli()
