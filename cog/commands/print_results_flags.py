"""The flags of the print_results command: which there are, what they select, where output may go."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cog import cli as command_line
from cog import config, exchange, files, measures, names, paths, published, results, selection, tables
from cog.errors import CogError
from cog.selection import Selection
from cog.views import experiments, grid, layout

LOG = logging.getLogger("cog")

_DESCRIPTION = """\
Print mean +- population standard deviation of top-1 and top-5 over seeds. One evaluation, seed by seed:
--logreg_root_dir, or --models_root_dir with one --model and one --dataset (CLF.N_SHOT 8 or --n_shot 8 for
few-shot). Otherwise one table of everything found under --models_root_dir: models x data sets, one table per
number of shots. Folders of the original toolkit are read as well (eval_logreg-N8/seed_22). Folders that
cannot be counted are listed as warnings. EVAL.NAME selects the evaluation; EVAL.SEED has no effect. The
published results of the paper's 31 models can be shown beside (--with_published) or alone, and files of other people
merged in (--import); all views treat them alike."""

#: Digits after the point, unless --decimals says otherwise: in tables; for one evaluation and differences; in CSV.
TABLE_DECIMALS = 1
FINE_DECIMALS = 2
DECIMALS = {"csv": 4}


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    made = command_line.Parser(_DESCRIPTION)
    add = made.add_argument_group("where results come from").add_argument
    add("--logreg_root_dir", metavar="DIR", help="one evaluation folder, with a subfolder per seed")
    add("--models_root_dir", metavar="DIR", help="folder of all models")
    add("--import", nargs="+", dest="imports", type=_many(str), metavar="FILE", help="files of --export")
    add("--with_published", action="store_true", help="add the paper's results of its 31 models")
    add("--published_only", action="store_true", help="the paper's results, and no runs")
    add(
        "--paper",
        choices=tuple(published.SOURCES),
        default="v2",
        help="which version's results: v2, the final one (default), or v1, of January 2021 (7 models, other levels)",
    )
    add("--no_index", action="store_true", help="read every run, also those remembered from an earlier call")

    add = made.add_argument_group("which of them").add_argument
    add(
        "--model",
        nargs="+",
        type=_many(str),
        metavar="NAME",
        help="names, or quoted patterns such as 'deit_*'; default: all, in natural order, or the paper's where its "
        "results are shown; tables keep the order given",
    )
    add(
        "--category",
        nargs="+",
        type=_many(_category),
        metavar="GROUP",
        help=f"groups of models: {', '.join(selection.CATEGORIES)}",
    )
    add("--dataset", nargs="+", type=_many(str), metavar="NAME", help="in1k, cog_l1, ...; default: all")
    add(
        "--n_shot",
        nargs="+",
        type=_many(_shots),
        metavar="N",
        help="training images per class, `all` or 0 for all of them; default: every one found, or CLF.N_SHOT "
        "with one --model and one --dataset",
    )
    add(
        "--seeds",
        nargs="+",
        type=_many(command_line.whole_number(0)),
        metavar="SEED",
        help="average these runs only and name those missing; default: all found, and the protocol's "
        f"{' '.join(map(str, names.SEEDS))} are expected unless others are found",
    )
    add(
        "--allow_mixed_epochs",
        action="store_true",
        help="average seeds that were trained for different numbers of epochs, with a warning",
    )

    add = made.add_argument_group("what is shown").add_argument
    add(
        "--view",
        choices=grid.LAYOUTS,
        help="datasets (default): models x data sets, a table per number of shots; shots: models x numbers of shots, "
        "a table per data set (Tables 5-10); table: the latter, then models x data sets for all images (Fig. 3)",
    )
    add("--relative_to", metavar="MODEL", help="differences to a model, in points")
    add("--drop", action="store_true", help="change since the model's own in1k accuracy, in percent of it")
    add("--rank", action="store_true", help="ranks among the models shown, sorted by their mean")
    add(
        "--baseline",
        metavar="MODEL",
        help="state the difference of every model to this one: paired over seeds, with a 95%% confidence interval, "
        "where seeds are known; and where their order changes over the levels",
    )
    add(
        "--compare",
        nargs=2,
        metavar=("MODEL", "BASELINE"),
        help="the same as --model MODEL --baseline BASELINE",
    )
    add("--metric", choices=(*layout.METRIC_LABELS, "both"), help="default: top1 in tables, else both")

    add = made.add_argument_group("other experiments").add_argument
    add(
        "--analysis",
        nargs="+",
        type=_many(str),
        metavar="NAME",
        help="results of analyze_features.py: kmeans, alignment, knn, ncm, cross, distance, ... or all",
    )
    add(
        "--variants",
        nargs="+",
        type=_many(_variant),
        metavar="NAME",
        help="other classifiers beside the protocol's: mlp (CLF.TYPE mlp, mlp_noact), pca (CLF.PCA_DIM), balanced "
        "(CLF.MAX_PER_CLASS), blurred (data set in1k_blurred), finetune (finetune.py), or all; one of them alone, as "
        "every other table: give its keys at the end, such as CLF.PCA_DIM 256",
    )
    add("--overview", action="store_true", help="the main numbers of all experiments, a table per data set")

    add = made.add_argument_group("how").add_argument
    add("--format", choices=tables.FORMATS, default="text", help="default: %(default)s")
    add(
        "--decimals",
        type=command_line.whole_number(0),
        metavar="N",
        help=f"default: {TABLE_DECIMALS}; {FINE_DECIMALS} for one evaluation and --baseline; {DECIMALS['csv']} in csv; "
        "json has all",
    )
    add("--labels", choices=("name", "paper"), default="name", help="paper: its names of its 31 models")
    add(
        "--width",
        type=command_line.whole_number(0),
        default=tables.WIDTH,
        metavar="N",
        help="columns of the terminal; wider text tables continue below; 0: any width (default: %(default)s)",
    )
    add("--output", metavar="FILE", help="write there instead of to standard output")
    add("--overwrite", action="store_true", help="let files be replaced")

    add = made.add_argument_group("instead of tables (which --output adds)").add_argument
    add("--export", metavar="FILE", help="write what is selected as one file to share, see --import")
    add("--label", type=_label, help="what names the runs in an exported file; default: its file name")
    add("--figures", metavar="DIR", help="draw the paper's figures, with their data as CSV")
    add("--figure_formats", nargs="+", type=_many(str), metavar="FORMAT", help="pdf, png, svg; default: all")
    add("--figure_names", nargs="+", type=_many(str), metavar="NAME", help="fig3, fig4, ...; default: all")
    add("--report", metavar="FILE", help="write a self-contained HTML page")
    add("--diagnostics", metavar="DIR", help="draw search and training curves of every run")
    command_line.add_check(made.add_argument_group("beforehand"))
    return made


def _many(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for flags with several values in which ``None`` and ``null`` mean "not given"."""

    def parse_one(text: str) -> Any:
        return None if command_line.is_unset(text) else parse(text)

    return parse_one


def _shots(text: str) -> int:
    return 0 if text.lower() == "all" else command_line.whole_number(0)(text)


def _category(text: str) -> str:
    if text not in selection.CATEGORIES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(selection.CATEGORIES)}")
    return text


def _variant(text: str) -> str:
    if text not in (*experiments.VARIANTS, experiments.ALL):
        known = ", ".join((*experiments.VARIANTS, experiments.ALL))
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}")
    return text


def _label(text: str) -> str:
    try:
        if text in published.SOURCES.values():
            raise ValueError("it is reserved for published numbers")
        return exchange.check_label(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def given(values: Sequence[Any] | None) -> list[Any] | None:
    """Drop unset and repeated values; None when nothing is left."""
    return list(dict.fromkeys(value for value in values or () if value is not None)) or None


def select(args: argparse.Namespace) -> Selection:
    """Check the flags that select, and put them together.

    Raises:
        CogError: when they contradict each other, name nothing, or name what is not there.
    """
    if args.compare is not None:
        if given(args.model) or args.baseline:
            raise CogError("--compare MODEL BASELINE stands for --model and --baseline; leave those out")
        args.model, args.baseline = [args.compare[0]], args.compare[1]
    args.analysis, args.variants = given(args.analysis), given(args.variants)
    views = ("relative_to", "drop", "rank", "baseline", "analysis", "variants", "overview")
    chosen = [flag for flag in views if getattr(args, flag)]
    if args.view and shows_experiments(args):
        chosen.insert(0, "view")
    if len(chosen) > 1:
        raise CogError(f"--{chosen[0]} and --{chosen[1]} are different views; give one of them")
    if args.metric in ("top5", "both") and (args.overview or args.variants):
        flag = "overview" if args.overview else "variants"
        raise CogError(f"--{flag} shows top-1 only; leave out --metric {args.metric}")
    models, datasets, n_shots = given(args.model), given(args.dataset), given(args.n_shot)
    for model in (*(models or ()), *filter(None, (args.relative_to, args.baseline))):
        if not results.is_pattern(model) or model in (args.relative_to, args.baseline):
            paths.split_model_name(model)
    for dataset in datasets or ():
        paths.check_dataset_name(dataset)
    exact = models if models is not None and not any(map(results.is_pattern, models)) else None
    one_model = exact[0] if exact is not None and len(exact) == 1 else None
    cfg = config.get_cfg(model_name=one_model, opts=args.opts)
    imports = tuple(map(Path, given(args.imports) or ()))
    evaluation = config.evaluation_name(cfg)
    common = Selection(
        imports=imports,
        paper=args.paper if args.with_published or args.published_only else None,
        categories=given(args.category),
        seeds=given(args.seeds),
        eval_name=evaluation,
        baseline=args.relative_to or args.baseline,
        use_index=not args.no_index,
        # With another evaluation than the protocol's, that one alone is exported, drawn and reported.
        experiments=shows_experiments(args)
        or (evaluation == measures.LOGREG and any((args.export, args.figures, args.report))),
    )
    if args.published_only:
        if args.logreg_root_dir or args.models_root_dir:
            LOG.warning("--published_only: the folders given are not read")
    elif args.logreg_root_dir is not None:
        if args.models_root_dir is not None or models or datasets or n_shots or common.categories:
            LOG.warning("--logreg_root_dir names the runs: other flags that select runs have no effect")
        folder = files.require_dir(args.logreg_root_dir, "--logreg_root_dir")
        # The folder says what its runs are, whatever the configuration.
        parsed = paths.parse_evaluation_folder(folder.absolute().name)
        if parsed is not None and parsed[0] != evaluation:
            common = dataclasses.replace(common, eval_name=parsed[0], experiments=shows_experiments(args))
        return dataclasses.replace(common, logreg_root_dir=folder)
    elif args.models_root_dir is None and not imports and not args.with_published:
        raise CogError(
            "nothing to read: give --logreg_root_dir, or --models_root_dir, or --import, or --published_only "
            "(see --help)"
        )
    from_cfg = "CLF.N_SHOT" in args.opts[::2]
    if from_cfg and n_shots not in (None, [cfg.CLF.N_SHOT]):
        raise CogError("--n_shot and CLF.N_SHOT disagree; give one of them")
    if from_cfg or (n_shots is None and is_plain(args) and one_model and len(datasets or ()) == 1):
        n_shots = [cfg.CLF.N_SHOT]
    root = None
    if args.models_root_dir is not None and not args.published_only:
        root = files.require_dir(args.models_root_dir, "--models_root_dir")
    return dataclasses.replace(
        common, models_root_dir=root, models=models, datasets=datasets, n_shots=n_shots
    )


def shows_experiments(args: argparse.Namespace) -> bool:
    """Whether other experiments than those of one evaluation are asked for."""
    return bool(args.analysis or args.variants or args.overview)


def is_plain(args: argparse.Namespace) -> bool:
    """Whether nothing asks for more than the averages of runs."""
    if shows_experiments(args):
        return False
    views = (args.view, args.relative_to, args.drop, args.rank, args.baseline, given(args.imports))
    return not any((*views, args.published_only, *products(args)))


def products(args: argparse.Namespace) -> tuple[str | None, ...]:
    """Return what is to be written instead of tables; None for each that is not."""
    return args.export, args.figures, args.report, args.diagnostics


@dataclass(frozen=True)
class Outputs:
    """Checked places to write."""

    table: Path | None
    export: Path | None
    report: Path | None
    figures: Path | None
    diagnostics: Path | None


def check_outputs(args: argparse.Namespace) -> Outputs:
    """Check every place that would be written to, before anything is read.

    Raises:
        CogError: when something is there already, or cannot be written.
    """
    if args.label is not None and args.export is None:
        raise CogError("--label names the runs in an exported file; add --export FILE")
    _check_drawings(args)
    checked = Outputs(
        table=_check_file(args.output, "--output", overwrite=args.overwrite),
        export=_check_file(args.export, "--export", overwrite=args.overwrite),
        report=_check_file(args.report, "--report", overwrite=args.overwrite),
        figures=_check_folder(args.figures, "--figures"),
        diagnostics=_check_folder(args.diagnostics, "--diagnostics"),
    )
    taken = [path for path in (checked.table, checked.export, checked.report) if path is not None]
    if len(set(taken)) < len(taken):
        raise CogError("--output, --export and --report name the same file; give each its own")
    return checked


def _check_drawings(args: argparse.Namespace) -> None:
    names_given, formats = given(args.figure_names), given(args.figure_formats)
    if names_given and args.figures is None:
        raise CogError("--figure_names chooses among --figures; add --figures DIR")
    if formats and args.figures is None and args.diagnostics is None:
        raise CogError("--figure_formats is for --figures and --diagnostics; add one of them")
    if args.diagnostics is not None and (
        args.published_only or not (args.models_root_dir or args.logreg_root_dir)
    ):
        raise CogError("--diagnostics needs runs: give --models_root_dir or --logreg_root_dir")
    if names_given or formats:
        from cog import figures

        for flag, values, known in (
            ("--figure_names", names_given, figures.FIGURES),
            ("--figure_formats", formats, figures.FORMATS),
        ):
            for value in values or ():
                if value not in known:
                    raise CogError(f"{flag} {value} is not known, expected some of {', '.join(known)}")


def _check_file(name: str | None, flag: str, *, overwrite: bool) -> Path | None:
    if name is None:
        return None
    path = Path(os.path.realpath(name))  # atomic replacement would turn a link into a file
    if path.is_dir():
        raise CogError(f"{flag} {name} is a folder, expected a file")
    if not path.parent.is_dir():
        raise CogError(f"the folder of {flag} {name} does not exist; create it first")
    if path.exists():
        if not stat.S_ISREG(path.stat().st_mode):
            raise CogError(f"{flag} {name} is not a regular file")
        if not overwrite:
            raise CogError(f"{flag} {name} exists; remove it or add --overwrite")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CogError(f"cannot write {flag} {name}: no permission to create files in its folder")
    return path


def _check_folder(name: str | None, flag: str) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise CogError(f"{flag} {name} is a file, expected a folder")
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CogError(f"cannot write into {flag} {name}: no permission to create files in {existing}")
    return path
