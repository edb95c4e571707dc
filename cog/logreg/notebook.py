"""The protocol in a notebook, with results equal bit for bit to those of ``logreg.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from cog import config, constants
from cog.config import variant_name
from cog.errors import CogError, did_you_mean
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import FeatureFolder
from cog.features.notebook import OWN_NETWORK, extract_features
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.protocol import run_protocol
from cog.logreg.run_folder import counts_per_class
from cog.logreg.settings import Settings
from cog.results import concept_counts
from cog.results.scores import Counts, Score
from cog.runtime.device import exact_float32, resolve_device


def evaluate(
    backbone: nn.Module | None,
    train: Any,
    test: Any,
    *,
    n_shots: int | Sequence[int] = 0,
    seeds: Sequence[int] = constants.SEEDS,
    dataset: str = "images",
    device: str | None = None,
    n_workers: int = 0,
    opts: Sequence[object] = (),
    **settings: Any,
) -> list[Score]:
    """Run the protocol on the features of a network, once per seed and number of shots.

    Args:
        backbone: network as for :func:`cog.extract_features`; None when ``train`` and ``test`` are features.
        train: training images as for :func:`cog.extract_features`, or their features (a ``FeatureSet``, or the path of
            an ``X_Y.pth``).
        test: test images or features, of the same classes.
        n_shots: number of training images per class, or several such numbers; 0: all images.
        seeds: seeds of the runs.
        dataset: name of the data in the scores.
        device: value of ``--device``; None: CUDA when there is a GPU, else the CPU.
        n_workers: decoding threads.
        opts: ``[KEY, VALUE, ...]`` of the configuration of the extraction.
        **settings: other fields of :class:`cog.logreg.settings.Settings`, such as ``n_trials``.

    Returns:
        Top-1 and top-5 accuracies of each run, in percent; :func:`cog.results.scores.average` returns their means,
        :func:`cog.results.uncertainty.accuracy` the intervals from the ``concepts`` of a mean.

    Raises:
        CogError: see :func:`cog.extract_features` and :func:`cog.logreg.protocol.run_protocol`.
    """
    config.get_cfg(opts=[str(word) for word in opts])  # refuses unknown keys, also without an extraction
    for key in map(str, opts[::2]):
        if not key.startswith("FT_EXTRACT."):
            raise CogError(
                f"{key} in opts: they are those of the extraction; give settings by name (n_trials=10)"
            )
    known = {field.name for field in dataclasses.fields(Settings)} - {"seed", "n_shot"}
    for name in settings.keys() - known:
        raise CogError(f"{name} is not a setting of evaluate(){did_you_mean(name, known)}")
    shots = (n_shots,) if isinstance(n_shots, int) else tuple(n_shots)
    if min(shots, default=0) < 0:
        raise CogError(f"n_shots {min(shots)}: expected numbers of images per class, or 0 for all")
    first = Settings(seed=0, **settings)
    how = {"device": device, "n_workers": n_workers, "opts": opts}
    normalize = first.normalizes_features
    features = [_features(backbone, images, normalize=normalize, **how) for images in (train, test)]
    model = features[0].name if backbone is None else str(getattr(backbone, "name", OWN_NETWORK))
    engine = Engine(resolve_device(device), first.precision)
    class_lists = tuple(sorted({part.class_list for part in features if part.class_list is not None}))
    data = prepare(features[0], features[1], engine, first)
    evaluation = variant_name(first.classifier, pca_dim=first.pca_dim, max_per_class=first.max_per_class)
    scores = []
    for n_shot in shots:
        for seed in seeds:
            run = dataclasses.replace(first, seed=seed, n_shot=n_shot)
            with exact_float32():
                result = run_protocol(data, run, engine)
            trained, rows, n_classes = result.classifier, result.rows, len(data.labels)
            logs, predictions = trained.logs, trained.predictions
            assert logs is not None and predictions is not None
            top1, top5 = (logs[f"test/{metric}"][-1] for metric in ("top1", "top5"))
            n_train = () if n_shot else (rows.final_train,)
            counts = Counts((n_classes,), n_train, (rows.test,), class_lists)
            per_class = counts_per_class(predictions, data.test_y, n_classes, top1=top1)
            concepts = concept_counts.read(per_class, n_classes=n_classes, top1=top1)
            place = model, dataset, evaluation, n_shot
            scores.append(Score(*place, "top1", top1, seed, counts=counts, concepts=concepts))
            scores.append(Score(*place, "top5", top5, seed, counts=counts))
    return scores


def _features(backbone: nn.Module | None, images: Any, *, normalize: bool, **how: Any) -> FeatureSet:
    """Return the checked features of images or of a file, normalized or not, in memory that may be rewritten."""
    if isinstance(images, FeatureSet):
        x = images.x.float().clone()
        feature_files.check_and_normalize_(x, images.name, normalize=normalize)
        return FeatureSet(x, images.y, images.name, class_list=images.class_list)
    if str(images).endswith(".pth"):
        described = FeatureFolder(Path(images).parent).metadata() or {}
        loaded = feature_files.load(images, normalize=normalize)
        return dataclasses.replace(loaded, class_list=described.get("class_list_sha256"))
    if backbone is None:
        raise TypeError("evaluate() needs a backbone for images; without one, give features")
    return extract_features(backbone, images, normalize=normalize, **how)
