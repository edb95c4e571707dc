"""Result folders in the forms of the original toolkit and of this one."""

import contextlib
import json
import pickle
from pathlib import Path

EPOCH_KEYS = ("train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr")
FINAL = "final-lr-10.5_wd-1e-06"


def make_logs(top1=70.0, top5=90.0, n_epochs=100, kind=float):
    """Return the content of a logs.pkl with given last test accuracies."""
    logs = {key: [kind(10.0 + epoch / 2) for epoch in range(n_epochs)] for key in EPOCH_KEYS}
    logs["test/top1"][-1], logs["test/top5"][-1] = kind(top1), kind(top5)
    return logs


def make_seed_folder(path, top1=70.0, top5=90.0, *, logs=None, final=FINAL, **kwargs):
    """Write a seed folder as the original toolkit does."""
    path = Path(path)
    (path / final).mkdir(parents=True)
    logs = make_logs(top1, top5, **kwargs) if logs is None else logs
    (path / final / "logs.pkl").write_bytes(logs if isinstance(logs, bytes) else pickle.dumps(logs))
    for name in ("preds.pkl", "args.pkl", "model.txt", "model.pth"):
        (path / final / name).write_bytes(b"not to be opened")
    for name in ("study.pkl", "arguments.json", "config.txt", "program.log"):
        (path / name).write_bytes(b"not to be opened")
    return path


def make_record(path, *, seed=22, n_shot=0, record=None, **final):
    """Add the record of a complete run, with the accuracies of its logs if these can be read.

    ``record`` has further entries of the record, ``final`` further entries of the final training.
    """
    entry = {"folder": FINAL, "lr": 10.5, "wd": 1e-6, "diverged": False} | final
    with contextlib.suppress(Exception):
        logs = pickle.loads((Path(path) / entry["folder"] / "logs.pkl").read_bytes())
        entry = {f"test_{name}": float(logs[f"test/{name}"][-1]) for name in ("top1", "top5")} | entry
    content = {"status": "complete", "seed": seed, "n_shot": n_shot, "final": entry}
    (Path(path) / "results.json").write_text(json.dumps(content | (record or {})))


def write_classifier(path, state, *, seed, predicted=None, labels=None, record=None):
    """Write a complete run of this toolkit, with the ``predicted`` classes of the test images."""
    import torch

    from cog.results import concept_counts

    final = Path(path) / "final-lr-1.0_wd-1e-06"
    final.mkdir(parents=True)
    torch.save({"model": state}, final / "model.pth")
    top1, n_classes, counts = 0.0, None, {}
    if predicted is not None:
        top1, n_classes = 100 * float((predicted == labels).mean()), int(max(labels)) + 1
        (final / "preds.pkl").write_bytes(pickle.dumps([predicted]))
        right = [int(((predicted == labels) & (labels == c)).sum()) for c in range(n_classes)]
        counts = concept_counts.write(right, [int((labels == c).sum()) for c in range(n_classes)])
    (final / "logs.pkl").write_bytes(pickle.dumps(make_logs(top1, 100.0)))
    configuration = {"CLF.NORM_FTS": True, "CLF.TYPE": "logreg"}
    more = {"n_classes": n_classes, "labels": None, "configuration": configuration, **(record or {})}
    make_record(path, seed=seed, record=more, folder=final.name, lr=1.0, **counts)


def print_results_as_user(*argv):
    """Run print_results.py in this process, with its logging; words that begin with a flag are a line."""
    from cog.commands import print_results
    from cog.runtime import log

    log.set_up_logging()
    lists = (argument.split() if str(argument).startswith("--") else [str(argument)] for argument in argv)
    assert print_results.main([word for words in lists for word in words]) == 0
