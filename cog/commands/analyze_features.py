"""Analyze features and classifiers: clusters, alignment, neighbors, class means; label noise; concepts.

Every result is a record <dataset>/analysis_<name>/results.json that print_results.py reads. With several data
sets and analyses one process does all of them; the features of each data set are read once.
"""

from collections.abc import Sequence

from cog import config
from cog.commands import flags
from cog.errors import CogError
from cog.paths import ModelDir, require_dir

_ALL = "all"
_HELP = (
    "kmeans; alignment: and uniformity; knn: nearest neighbors; ncm: nearest class means; confident: that of "
    "classifiers of --trained_on on other data; concepts: accuracy per concept; all (default): of features"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Compute the results that are missing and return the exit code."""
    start = "--models_root_dir /models --model sup_resnet50 --dataset"
    examples = "in1k cog_l5", "in1k --analysis knn", "cog_l5 --analysis concepts --levels_csv l.csv"
    parser = flags.parser(__doc__, *(f"{start} {example}" for example in examples))
    add = parser.add_argument
    add("--analysis", action=flags.Several, default=[_ALL], metavar="NAME", help=_HELP)
    add("--trained_on", metavar="DATASET", help="data set whose classifiers are applied (confident)")
    add("--levels_csv", metavar="FILE", help="levels.csv of build_levels.py (concepts)")
    flags.add(parser, "models_root_dir", "model", "dataset", required=True)
    flags.add(parser, "device", "overwrite")
    args = parser.parse_args(argv)
    from cog.analysis import base  # imports torch
    from cog.runtime.device import resolve_device

    known = base.load_all()
    for name in args.analysis:
        if name not in (*known, _ALL):
            raise CogError(f"--analysis {name!r} is not an analysis, expected {', '.join(known)} or {_ALL}")
    is_all = _ALL in args.analysis
    wanted = [name for name in known if name in args.analysis or (is_all and known[name].inputs is None)]
    for flag, name in (("trained_on", "confident"), ("levels_csv", "concepts")):
        if getattr(args, flag) is not None and name not in wanted:
            raise CogError(f"--{flag} is for --analysis {name} and has no effect here; leave it out")
    root, device = require_dir(args.models_root_dir, "--models_root_dir"), resolve_device(args.device)
    inputs = []
    for one in flags.each(args, "model", "dataset"):
        cfg = config.get_cfg(model_name=one.model, opts=args.opts)
        inputs.append(base.AnalysisInput(ModelDir(root, one.model), one.dataset, cfg, vars(args), device))
    base.run([known[name] for name in wanted], inputs, overwrite=args.overwrite)
    return 0
