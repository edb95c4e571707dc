"""Notices on facts that limit the trust in results: one declaration for each kind.

:mod:`cog.results.diagnostics` finds the results to which they apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cog.results.labels import counted
from cog.results.official import Match

_Place = TypeVar("_Place")

#: Severities in descending order: wrong numbers, doubtful numbers, useful facts.
SEVERITIES = ("problem", "warning", "note")

#: Settings of the paper's protocol (Sec. 4.1, supplement B.3; epochs and intervals: configuration of the original
#: toolkit): the name in the records of runs, the value, and the configuration key or flag.
PROTOCOL: dict[str, tuple[Any, str]] = {
    "n_trials": (30, "CLF.N_TRIALS"),
    "n_epochs": (100, "CLF.N_EPOCHS"),
    "batch_size": (1024, "CLF.BATCH_SIZE"),
    "momentum": (0.9, "--mom"),
    "val_frac": (0.2, "CLF.VAL_PERC"),
    "lr_interval": ([0.1, 100.0], "CLF.LR_INTV"),
    "wd_interval": ([1e-12, 1e-4], "CLF.WD_INTV"),
    "normalize": (True, "CLF.NORM_FTS"),
    "solver": ("sgd", "CLF.SOLVER"),
    "pruner": ("none", "CLF.PRUNER"),
}

#: Other settings of interest, which do not change the protocol: the name in the records of runs, and the key.
OTHER_SETTINGS = {"search": "CLF.SEARCH"}

# Maximal number of lines about places in a notice; if there are more places, the last line counts the rest.
_MANY = 12


@dataclass(frozen=True)
class Notice:
    """One notice, or the declaration of a kind of notice, with placeholders such as ``{n}`` in its texts."""

    severity: str  # one of SEVERITIES
    kind: str  # name of the kind, the same for all models
    title: str  # finding in a few words
    text: str  # finding and its meaning in a sentence or two
    action: str  # advice
    model: str = ""  # name of the model with these results; "" for all models
    commands: tuple[str, ...] = ()  # shell commands that follow the advice
    items: tuple[str, ...] = ()  # places of the finding, one line each


_NOTHING = "Nothing needs to be done."
_KINDS = {
    "folders": Notice(
        "warning", "folders that are not counted", "{n} not counted",
        "These look like runs or their parents but could not be read as finished runs, so no score here includes "
        "them.",
        "Look at the reason of each; finish the run, repeat a damaged one with --overwrite, or move the folder away.",
    ),
    "unfinished": Notice(
        "note", "unfinished runs", "{n} not finished yet",
        "These are in progress, or were interrupted; no score here includes them.",
        "Wait for those in progress; the command that began an interrupted one continues it.",
    ),
    Match.DIFFERENT.value: Notice(
        "warning", Match.DIFFERENT.value, "Not the official data",
        "Numbers on other data cannot be compared with published ones, and this page does not.",
        "To compare with the paper, extract features of the complete IN-1K and of the levels in the authors' "
        "level files. To compare models with each other, use the same data for all: that remains valid.",
    ),
    Match.NEARLY.value: Notice(
        "warning", Match.NEARLY.value, "Counts differ slightly from the official data",
        "A few images more or less move scores far less than a seed does; the comparison is kept.",
        "Find the missing images if the numbers are to be published (failed_images.txt beside the features), or "
        "say so there.",
    ),
    Match.UNKNOWN.value: Notice(
        "note", Match.UNKNOWN.value, "Counts are not recorded",
        "The numbers of classes and images are not recorded (runs or features of the original toolkit). These results "
        "are compared with the paper as if they came from the official data.",
        "Make sure that they do.",
    ),
    "unverified": Notice(
        "warning", "imported results without counts", "Imported results without the counts of their data",
        "The file does not record the numbers of classes and images. These results are compared with the paper as if "
        "they came from the official data.",
        "Ask for a file that a current version exported, or do not rely on their ranks and differences.",
    ),
    "mixed": Notice(
        "warning", "different classes under one name", "Results on different classes under one name",
        "The lists of classes differ, whatever their numbers; these results are not compared with each other.",
        "Extract features and train the classifiers on the same classes; for the levels, with the same level files.",
    ),
    "missing seeds": Notice(
        "warning", "missing seeds", "Seeds are missing in {n}",
        "Means over fewer seeds are less certain, and a deviation over two or three seeds says little.",
        "Run the missing seeds; complete runs are skipped.",
    ),
    "missing results": Notice(
        "note", "missing results", "{n} not there yet",
        "{text}",
        "Extract the features if needed, then train the classifiers; complete outputs are skipped.",
    ),
    "diverged runs": Notice(
        "problem", "final training that diverged", "Final training diverged in {n}",
        "The weights were no longer finite; these accuracies mean nothing but are counted in the averages.",
        'Lower the interval of learning rates, such as CLF.LR_INTV "(0.1, 10)", and run again with --overwrite.',
    ),
    "diverged trials": Notice(
        "note", "trials that diverged", "{n} of the searches diverged",
        "A search steers away from such values by itself; a few are normal at high learning rates.",
        _NOTHING,
    ),
    "many diverged trials": Notice(
        "warning", "trials that diverged", "{n} of the searches diverged",
        "In some runs this was more than half, which leaves few trials to choose from.",
        "Lower the upper end of CLF.LR_INTV for these runs.",
    ),
    "chance": Notice(
        "warning", "accuracy no better than guessing", "Accuracy no better than guessing",
        "Possible causes: features without information, labels that do not belong to the features, failed training.",
        "Check the checkpoint and the preprocessing of the extraction, and the curves of the final training below.",
    ),
    "edge": Notice(
        "warning", "{name} at the edge of its interval", "Chosen {name} at the {end} end of its interval in {n}",
        "The best value may lie outside, and the score below what the features allow.",
        "Widen {key} beyond this end for a trial and see whether the validation accuracy rises. Published results"
        " used the default interval: name another one when you report scores.",
    ),
    "protocol": Notice(
        "warning", "settings other than the protocol's", "Settings differ from the paper's protocol",
        "Published results were made with the protocol's settings; others can move scores in either direction.",
        "To compare with the paper, run again with the defaults; otherwise name the settings with the scores.",
    ),
    "epochs": Notice(
        "warning", "different numbers of epochs", "Different numbers of epochs",
        "Runs of one model were trained for different numbers of epochs: their scores should not be averaged or "
        "compared.",
        "Repeat the odd ones with the same CLF.N_EPOCHS and --overwrite.",
    ),
    "settings": Notice(
        "warning", "different settings between results of one model",
        "Different settings between results of one model",
        "Scores made with different settings are not comparable with each other.",
        "Repeat the odd ones with the same settings and --overwrite.",
    ),
    "extraction": Notice(
        "warning", "features made in different ways", "Features of one model were made in different ways",
        "Another checkpoint or preprocessing is another model: the data sets and splits do not belong together.",
        "Extract the odd ones again (extract_features.py --overwrite) and run their classifiers again.",
    ),
    "versions": Notice(
        "note", "different versions, devices or modes", "Different versions, devices or modes",
        "Runs of one model were made with different software, hardware or modes of computing. That moves single "
        "scores by less than another seed does, but the exact numbers cannot all be reproduced in one place.",
        "For a publication, make all runs with one installation; otherwise nothing needs to be done.",
    ),
    "precision": Notice(
        "note", "results of different precision", "Results of the same data were computed in different precision",
        "The products of these trainings were rounded differently (results.json records the precision that was used, "
        "which may differ from CLF.PRECISION). In measurements, accuracies changed by less than with another seed.",
        "Where differences of a tenth of a point matter, make these runs with the same CLF.PRECISION.",
    ),
    "failed images": Notice(
        "warning", "images that could not be decoded", "{n} could not be decoded",
        "They are missing from the features, so scores come from slightly fewer images.",
        "Fix the files listed in failed_images.txt beside the features, then extract and run again.",
    ),
    "checkpoints": Notice(
        "problem", "training and test features of different checkpoints",
        "Training and test features come from different checkpoints",
        "A classifier of one network was tested on features of another: these scores mean nothing.",
        "Extract both splits with the same checkpoint and run again with --overwrite.",
    ),
    "stale": Notice(
        "problem", "features changed after the runs", "Features changed after the runs",
        "The features on disk now are not those the runs used (another checkpoint or other images).",
        "Run the classifiers again with --overwrite, or restore the features.",
    ),
    "unpublished": Notice(
        "warning", "checkpoint that is not the published file", "The checkpoint is not the published file",
        "The SHA-256 of the checkpoint is not the one known for {model}.",
        "Download it again (prepare_models/), or give a model of your own a name of its own.",
    ),
    "unrecorded": Notice(
        "note", "settings that are not recorded", "Settings of {n} are not recorded",
        "Runs of the original toolkit keep their settings where they cannot be read safely, so nothing here was "
        "checked against the protocol.",
        "Nothing needs to be done if you know how they were made.",
    ),
    "no results": Notice(
        "problem", "no results", "These are no results",
        "The numbers were made with --limit {limit}, on a few images, to test the commands.",
        "Run without --limit.",
    ),
    # On variants of the classifier and analyses:
    "analyses' settings": Notice(
        "warning", "analyses with different settings", "Analyses were made with different settings",
        "Their numbers stand in one column but do not compare.",
        "Repeat some of them with the settings of the others and --overwrite.",
    ),
    "analyses' features": Notice(
        "warning", "analyses of different features", "Analyses saw different features",
        "The features were extracted again between two analyses of the same data set, so their numbers describe "
        "different things.",
        "Repeat the older analyses with --overwrite.",
    ),
    "diverged variants": Notice(
        "problem", "variants that diverged", "Final training of variants of the classifier diverged in {n}",
        "The weights were no longer finite; these accuracies mean nothing but are counted in the averages.",
        "Run them again with lower learning rates (CLF.LR_INTV, of fine-tuning FINETUNE.LR) and --overwrite.",
    ),
    "variants' protocol": Notice(
        "warning", "variants with another protocol", "Variants of the classifier were trained differently",
        "They are shown relative to logistic regression, but differ from it in more than the classifier.",
        "Run them, or logistic regression, again with the same settings.",
    ),
    "missing analyses": Notice(
        "note", "missing analyses", "{n} analyses not there yet",
        "Other models or data sets have them.",
        "Run them; complete analyses are skipped.",
    ),
}  # fmt: skip

_KINDS |= {
    "other checkpoints": replace(_KINDS["extraction"], severity="problem"),
    "rare edge": replace(
        _KINDS["edge"],
        severity="note",
        text=f"{_KINDS['edge'].text} Single runs can end up there by chance.",
    ),
    "harmless edge": replace(
        _KINDS["edge"],
        severity="note",
        text="Weight decay this small acts like none; a wider interval would not change the scores.",
        action=_NOTHING,
    ),
}


def notices(
    kind: str,
    model: str,
    places: Iterable[_Place],
    describe: Callable[[_Place], str] = str,
    *,
    commands: Sequence[str] = (),
    n: str = "",
    **words: str,
) -> list[Notice]:
    """Return a list with one notice, or an empty list without places.

    Args:
        kind: key of ``_KINDS``.
        model: name of the model with these results; "" for all models.
        places: places of the finding, each once.
        describe: function that returns a place in words; called only for the places that the notice lists.
        commands: shell commands that follow the advice.
        n: text for the placeholder ``{n}``; "": the number of places, counted as runs.
        words: texts for other placeholders.
    """
    places = list(places)
    if not places:
        return []
    words |= {"n": n or counted(len(places), "run"), "model": model}
    declared = _KINDS[kind]
    texts = {name: getattr(declared, name).format_map(words) for name in ("kind", "title", "text", "action")}
    shown = places if len(places) <= _MANY else places[: _MANY - 1]
    items = list(map(describe, shown))
    if len(shown) < len(places):
        items.append(f"and {len(places) - len(shown)} more")
    return [replace(declared, **texts, model=model, commands=tuple(commands), items=tuple(items))]
