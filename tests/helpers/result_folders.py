"""Result folders in the forms of the original toolkit and of this one."""

from __future__ import annotations

import contextlib
import json
import pickle
from pathlib import Path

EPOCH_KEYS = ("train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr")


def make_logs(top1=70.0, top5=90.0, n_epochs=3, kind=float):
    """Return the content of a logs.pkl with given last test accuracies."""
    logs = {key: [kind(10.0 + epoch) for epoch in range(n_epochs)] for key in EPOCH_KEYS}
    logs["test/top1"][-1] = kind(top1)
    logs["test/top5"][-1] = kind(top5)
    return logs


def make_seed_folder(
    path, top1=70.0, top5=90.0, *, logs=None, final="final-lr-10.5_wd-1e-06", protocol=None, **kwargs
):
    """Write a seed folder as the original toolkit does."""
    path = Path(path)
    folder = path / final
    folder.mkdir(parents=True)
    logs = make_logs(top1, top5, **kwargs) if logs is None else logs
    (folder / "logs.pkl").write_bytes(
        logs if isinstance(logs, bytes) else pickle.dumps(logs, protocol=protocol)
    )
    for name in ("preds.pkl", "args.pkl", "model.txt", "model.pth"):
        (folder / name).write_bytes(b"not to be opened")
    for name in ("study.pkl", "arguments.json", "config.txt", "program.log"):
        (path / name).write_bytes(b"not to be opened")
    return path


def make_record(path, *, seed=22, n_shot=0, status="complete", record=None, **final):
    """Add the marker of a complete run, with the accuracies of its logs if these can be read.

    Args:
        path: folder of the run.
        seed: entry of the record.
        n_shot: entry of the record.
        status: entry of the record.
        record: further entries of the record.
        **final: further entries of the final training.
    """
    entry = {"folder": "final-lr-10.5_wd-1e-06", "lr": 10.5, "wd": 1e-6}
    with contextlib.suppress(Exception):
        logs = pickle.loads((Path(path) / final.get("folder", entry["folder"]) / "logs.pkl").read_bytes())
        entry |= {f"test_{name}": float(logs[f"test/{name}"][-1]) for name in ("top1", "top5")}
    content = {
        "status": status,
        "model": "sup_resnet50",
        "dataset": "in1k",
        "seed": seed,
        "n_shot": n_shot,
        "final": {**entry, "diverged": False, **final},
    }
    (Path(path) / "results.json").write_text(json.dumps(content | (record or {})))


def write_classifier(path, state, *, seed, predicted=None, labels=None, record=None):
    """Write a complete run of this toolkit, with the ``predicted`` classes of the test images."""
    import torch

    from cog.results import concept_counts

    final = Path(path) / "final-lr-1.0_wd-1e-06"
    final.mkdir(parents=True)
    torch.save({"model": state}, final / "model.pth")
    top1 = 0.0
    if predicted is not None:
        top1 = 100 * float((predicted == labels).mean())
        (final / "preds.pkl").write_bytes(pickle.dumps([predicted]))
    (final / "logs.pkl").write_bytes(pickle.dumps(make_logs(top1, 100.0)))
    scores = {"test_top1": top1, "test_top5": 100.0, "lr": 1.0, "wd": 1e-6, "diverged": False}
    n_classes = None if labels is None else int(max(labels)) + 1
    if n_classes is not None:
        right = [int(((predicted == labels) & (labels == c)).sum()) for c in range(n_classes)]
        scores |= concept_counts.write(right, [int((labels == c).sum()) for c in range(n_classes)])
    content = {
        "n_classes": n_classes,
        "status": "complete",
        "seed": seed,
        "n_shot": 0,
        "labels": None,
        "configuration": {"CLF.NORM_FTS": True, "CLF.TYPE": "logreg"},
        "final": {"folder": final.name, **scores},
    }
    (final.parent / "results.json").write_text(json.dumps(content | (record or {})))


def command_line(argv):
    """Return the words of a command line; a string that begins with a flag is split into words."""
    lists = (argument.split() if str(argument).startswith("--") else [str(argument)] for argument in argv)
    return [word for words in lists for word in words]


def print_results_as_user(*argv):
    """Run print_results.py in this process with the words of :func:`command_line`, and with its logging."""
    from cog.commands import print_results
    from cog.runtime import cli

    cli.set_up_logging()
    assert print_results.main(command_line(argv)) == 0


def small_study(root, **changes):
    """Return a study of two models, data sets, seeds and numbers of shots; ``changes`` replace its fields."""
    from cog.study.units import Study

    settings = {
        "models": ("a_net", "b_net"),
        "datasets": ("in1k", "cog_l1"),
        "seeds": (1, 2),
        "n_shots": (0, 8),
    }
    return Study(root=root, **(settings | changes))
