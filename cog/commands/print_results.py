"""Average results over seeds and print them: one evaluation, or a table of everything found."""

from __future__ import annotations

import argparse
import logging
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cog import cli as command_line
from cog import config, files, names, paths, results, tables
from cog.errors import CogError
from cog.results import Cell, Problem, Run

LOG = logging.getLogger("cog")

_DESCRIPTION = """\
Print mean +- population standard deviation of top-1 and top-5 over seeds. One evaluation, seed by seed:
--logreg_root_dir, or --models_root_dir with one --model and one --dataset (CLF.N_SHOT 8 or --n_shot 8 for
few-shot). Otherwise one table of everything found under --models_root_dir: models x data sets, one table per
number of shots. Folders of the original toolkit are read as well (eval_logreg-N8/seed_22). Folders that
cannot be counted are listed as warnings. EVAL.NAME selects the evaluation; EVAL.SEED has no effect."""

_TABLE_DECIMALS = 1
_SINGLE_DECIMALS = 2
_CSV_DECIMALS = 4


def _parser() -> command_line.Parser:
    parser = command_line.Parser(_DESCRIPTION)
    add = parser.add_argument
    add("--logreg_root_dir", metavar="DIR", help="one evaluation folder, with a subfolder per seed")
    add("--models_root_dir", metavar="DIR", help="folder of all models")
    add(
        "--model",
        nargs="+",
        type=_many(str),
        metavar="NAME",
        help="default: all, in natural order; tables keep the order given",
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
        help="average these only and name those missing; default: all found, and the protocol's "
        f"{' '.join(map(str, names.SEEDS))} are expected unless others are found",
    )
    add("--metric", choices=(*tables.METRIC_LABELS, "both"), help="default: top1 in tables, else both")
    add("--format", choices=tables.FORMATS, default="text", help="default: %(default)s")
    add(
        "--decimals",
        type=command_line.whole_number(0),
        metavar="N",
        help=f"default: {_TABLE_DECIMALS}; {_SINGLE_DECIMALS} for one evaluation; {_CSV_DECIMALS} in csv",
    )
    add("--output", metavar="FILE", help="write there instead of to standard output")
    add("--overwrite", action="store_true", help="let --output replace an existing file")
    return parser


def _many(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for flags with several values in which ``None`` and ``null`` mean "not given"."""

    def parse_one(text: str) -> Any:
        return None if text.strip().lower() in ("none", "null") else parse(text)

    return parse_one


def _shots(text: str) -> int:
    return 0 if text.lower() == "all" else command_line.whole_number(0)(text)


def _given(values: Sequence[Any] | None) -> list[Any] | None:
    """Drop unset and repeated values; None when nothing is left."""
    return list(dict.fromkeys(value for value in values or () if value is not None)) or None


@dataclass(frozen=True)
class _Selection:
    """Which runs: a folder of seed folders, or filters (None: all) under a folder of models."""

    logreg_root_dir: Path | None
    models_root_dir: Path | None
    models: list[str] | None
    datasets: list[str] | None
    n_shots: list[int] | None
    eval_name: str
    seeds: list[int] | None

    @property
    def one_evaluation(self) -> bool:
        filters = (self.models, self.datasets, self.n_shots)
        return self.logreg_root_dir is not None or all(len(values or ()) == 1 for values in filters)

    def read(self) -> tuple[list[Run], list[Problem]]:
        if self.logreg_root_dir is not None:
            return results.read_evaluation(self.logreg_root_dir, seeds=self.seeds)
        assert self.models_root_dir is not None
        return results.find_runs(
            self.models_root_dir,
            models=self.models,
            datasets=self.datasets,
            n_shots=self.n_shots,
            eval_name=self.eval_name,
            seeds=self.seeds,
        )


def _select(args: argparse.Namespace) -> _Selection:
    models, datasets, n_shots = _given(args.model), _given(args.dataset), _given(args.n_shot)
    for model in models or ():
        paths.split_model_name(model)
    for dataset in datasets or ():
        paths.check_dataset_name(dataset)
    one_model = models[0] if models is not None and len(models) == 1 else None
    cfg = config.get_cfg(model_name=one_model, opts=args.opts)
    seeds = _given(args.seeds)
    if args.logreg_root_dir is not None:
        if args.models_root_dir is not None or models or datasets or n_shots:
            LOG.warning("--logreg_root_dir names the runs: other flags that select runs have no effect")
        folder = files.require_dir(args.logreg_root_dir, "--logreg_root_dir")
        return _Selection(folder, None, None, None, None, cfg.EVAL.NAME, seeds)
    if args.models_root_dir is None:
        raise CogError("nothing to read: give --logreg_root_dir, or --models_root_dir (see --help)")
    from_cfg = "CLF.N_SHOT" in args.opts[::2]
    if from_cfg and n_shots not in (None, [cfg.CLF.N_SHOT]):
        raise CogError("--n_shot and CLF.N_SHOT disagree; give one of them")
    if from_cfg or (n_shots is None and one_model is not None and len(datasets or ()) == 1):
        n_shots = [cfg.CLF.N_SHOT]
    root = files.require_dir(args.models_root_dir, "--models_root_dir")
    return _Selection(None, root, models, datasets, n_shots, cfg.EVAL.NAME, seeds)


def _check_output(output: str | None, *, overwrite: bool) -> Path | None:
    if output is None:
        return None
    path = Path(os.path.realpath(output))  # atomic replacement would turn a link into a file
    if path.is_dir():
        raise CogError(f"--output {output} is a folder, expected a file")
    if not path.parent.is_dir():
        raise CogError(f"the folder of --output {output} does not exist; create it first")
    if path.exists():
        if not stat.S_ISREG(path.stat().st_mode):
            raise CogError(f"--output {output} is not a regular file")
        if not overwrite:
            raise CogError(f"--output {output} exists; remove it or add --overwrite")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Read results, print them, and return the exit code.

    Raises:
        CogError: bad arguments, or no run that can be counted.
    """
    args = _parser().parse_args(argv)
    selection = _select(args)
    output = _check_output(args.output, overwrite=args.overwrite)
    runs, problems = selection.read()
    for problem in problems:
        LOG.warning("not counted: %s", tables.printable(str(problem)))
    if not runs:
        raise CogError(_nothing_found(selection, problems))
    cells = results.summarise(runs, selection.seeds or results.default_seeds(runs))
    _warn(runs, cells, selection)
    single = selection.one_evaluation and args.format == "text"
    text = _draw(runs, cells, selection, args, single=single)
    if output is not None:
        files.write_text(output, text)
        LOG.info("wrote %s", output)
    else:
        _print(text)
    return 0


def _draw(
    runs: Sequence[Run],
    cells: Sequence[Cell],
    selection: _Selection,
    args: argparse.Namespace,
    *,
    single: bool,
) -> str:
    metric = args.metric or ("both" if single else "top1")
    metrics = tuple(tables.METRIC_LABELS) if metric == "both" else (metric,)
    decimals = args.decimals
    if decimals is None:
        decimals = _CSV_DECIMALS if args.format == "csv" else _SINGLE_DECIMALS if single else _TABLE_DECIMALS
    if single:
        return _seed_by_seed(runs, cells[0], metrics=metrics, decimals=decimals)
    return tables.render(
        cells,
        fmt=args.format,
        metrics=metrics,
        decimals=decimals,
        models=selection.models,
        datasets=selection.datasets,
        n_shots=selection.n_shots,
    )


def _nothing_found(selection: _Selection, problems: Sequence[Problem]) -> str:
    """Say what was looked for and where, and what is there instead."""
    seeds = f" with seeds {' '.join(map(str, selection.seeds))}" if selection.seeds else ""
    refused = f" ({len(problems)} could not be counted, see above)" if problems else ""
    if selection.logreg_root_dir is not None:
        return (
            f"no finished run{seeds} in --logreg_root_dir {selection.logreg_root_dir}{refused}; expected "
            f"seed-<seed>/final-*/{results.LOGS_FILE}{_misplaced(selection.logreg_root_dir)}"
        )
    models = " ".join(selection.models) if selection.models else "any model"
    datasets = " ".join(selection.datasets) if selection.datasets else "any data set"
    shots = (
        f" with {', '.join(map(tables.shots_label, selection.n_shots))}"
        if selection.n_shots is not None
        else ""
    )
    text = f"no finished run of {models} on {datasets}{shots}{seeds}"
    if selection.models and selection.datasets and len(selection.models) == len(selection.datasets) == 1:
        assert selection.models_root_dir is not None
        model_dir = paths.ModelDir(selection.models_root_dir, selection.models[0])
        n_shot = selection.n_shots[0] if selection.n_shots else 0
        folder = model_dir.evaluation(selection.datasets[0], name=selection.eval_name, n_shot=n_shot)
        other = _evaluations_beside(folder)
        hint = f"; there is {other}: set EVAL.NAME and CLF.N_SHOT accordingly" if other else ""
        return f"{text}: expected {folder}/seed-<seed>/final-*/{results.LOGS_FILE}{refused}{hint}"
    layout = f"<title>/<architecture>/<dataset>/eval_{selection.eval_name}[_N<shots>]/seed-<seed>"
    return f"{text} under --models_root_dir {selection.models_root_dir}{refused}; expected {layout} there"


def _misplaced(folder: Path) -> str:
    """Return a hint when ``folder`` is one level too deep or too high."""
    if paths.parse_seed_folder(folder.name) is not None:
        return f"; this is the folder of one seed, give {folder.parent}"
    inside = [name for name in _listing(folder) if paths.parse_evaluation_folder(name)]
    return f"; did you mean its subfolder {inside[0]}?" if inside else ""


def _evaluations_beside(folder: Path) -> str:
    return ", ".join(
        name
        for name in _listing(folder.parent)
        if name != folder.name and paths.parse_evaluation_folder(name)
    )


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder), key=results.natural_key)
    except OSError:
        return []


def _warn(runs: Sequence[Run], cells: Sequence[Cell], selection: _Selection) -> None:
    """Say what a reader of the numbers should know."""
    for flag, wanted, found in (
        ("--model", selection.models, {cell.model for cell in cells}),
        ("--dataset", selection.datasets, {cell.dataset for cell in cells}),
        ("--n_shot", selection.n_shots, {cell.n_shot for cell in cells}),
    ):
        absent = [str(value) for value in wanted or () if value not in found]
        if absent and selection.logreg_root_dir is None:
            LOG.warning("no finished run for %s %s", flag, " ".join(absent))
    for run in runs:
        if run.diverged:
            LOG.warning("training diverged, counted all the same: %s", tables.printable(str(run.path)))
    for cell in cells:
        if len(set(cell.epochs)) > 1:
            LOG.warning(
                "%s, %s, %s: seeds were trained for different numbers of epochs (%s)",
                tables.printable(cell.model),
                tables.printable(cell.dataset),
                tables.shots_label(cell.n_shot),
                ", ".join(f"seed {seed}: {n}" for seed, n in zip(cell.seeds, cell.epochs, strict=True)),
            )


def _seed_by_seed(runs: Sequence[Run], cell: Cell, *, metrics: Sequence[str], decimals: int) -> str:
    lines = []
    for run in runs:
        scores = (f"{tables.METRIC_LABELS[metric]} {getattr(run, metric):.{decimals}f}" for metric in metrics)
        lines.append(f"seed {run.seed}: {', '.join(scores)}")
    count = f"{len(cell.seeds)} seed{'s' if len(cell.seeds) != 1 else ''}"
    for metric in metrics:
        score = cell.score(metric)
        assert score is not None and score.std is not None  # of runs
        lines.append(
            f"{tables.METRIC_LABELS[metric]}: {score.mean:.{decimals}f} +- {score.std:.{decimals}f} "
            f"({results.METRICS[metric]}, {count})"
        )
    if cell.missing_seeds:
        lines.append(f"missing seeds: {', '.join(map(str, cell.missing_seeds))}")
    return "\n".join(lines) + "\n"


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a terminal without the plus-minus sign
        text = text.replace("±", "+-").encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


def cli() -> NoReturn:
    """Run from the command line."""
    command_line.run(main)


if __name__ == "__main__":
    cli()
