"""What a study would make, compared with what is there: the same network and settings, or those of another computation.

Compared are model, checkpoint, loader, preprocessing, pooling and precision of features, and settings and features of
classifier runs. Images are not listed: that is what an extraction does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cog import config, constants
from cog.errors import CogError, some
from cog.logreg import settings
from cog.runtime.output import DONE, State, differences
from cog.study.units import DELETED, Study, Unit

if TYPE_CHECKING:
    from cog.models.choice import ModelChoice


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Networks:
    """The places of the networks of a study, and the keys of their extraction.

    Attributes:
        root: folder of the checkpoints, ``<models_root_dir>``.
        loader: ``FILE.py:FUNCTION`` that loads the models; None: each as its name or its entry says.
        models_file: file of the user's models; or None.
        opts: ``FT_EXTRACT`` keys and values.
    """

    root: str
    loader: str | None
    models_file: str | None
    opts: Sequence[str]

    def find(self, model: str) -> ModelChoice:
        """Return a model that can be loaded.

        Raises:
            CogError: there is no loader or no checkpoint.
        """
        from cog.models.choice import find_model  # imports Pillow, which --help must not wait for

        return find_model(model, root=self.root, loader=self.loader, models_file=self.models_file)

    def describe(self, model: str) -> dict[str, Any]:
        """Return the part of the identity of features that does not depend on the images; a loader is run."""
        from cog.features.chunks import Model  # imports torch

        choice = self.find(model)
        return Model(choice, choice.config(self.opts)).identity()

    def describe_all(self, models: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return :meth:`describe` of models, from another process: loaders import torch, which starts threads.

        A model that cannot be loaded has an empty description.
        """
        words = [sys.executable, "-m", "cog.study.identity", json.dumps(dataclasses.asdict(self)), *models]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False) if models else None
        if done is not None and done.returncode != 0:
            raise CogError("the models cannot be described, for the reason above")
        return json.loads(done.stdout) if done else {}


def other_results(
    study: Study, networks: Networks, states: Mapping[Unit, State], opts: Sequence[str]
) -> dict[Unit, list[str]]:
    """Return the finished outputs that are not what the study would make, each with its differences.

    Args:
        opts: keys and values of the classifiers.

    Raises:
        CogError: a finished output has an unreadable record.
    """
    made = [unit for unit, state in states.items() if state.word in (DONE, DELETED)]
    described = networks.describe_all(list(dict.fromkeys(unit.model for unit in made)))
    if unknown := [model for model, network in described.items() if not network]:
        logger.warning(
            "finished results are kept as they are, of networks that cannot be loaded: %s", some(unknown)
        )
    wanted_settings = {
        model: settings.from_config(config.get_cfg(model_name=model, opts=list(opts)), seed=0)
        for model in described
    }
    features: dict[Unit, dict[str, Any]] = {}
    other: dict[Unit, list[str]] = {}
    for unit in made:
        network = described[unit.model]
        record = study.record(unit)
        stored = record.get("identity") or {}
        if "identity" not in record:  # features of the original toolkit
            features[unit], changed = {}, []
        elif unit.split:
            features[unit] = stored | network | {"rows_sha256": record.get("rows_sha256")}
            changed = _changed(stored, network)
        else:
            run = dataclasses.replace(wanted_settings[unit.model], seed=unit.seed, n_shot=unit.n_shot)
            changed = _changed(stored, json.loads(json.dumps(dataclasses.asdict(run))))
            for split in constants.SPLITS:
                used = stored.get(f"{split}_features") or {}
                wanted = features.get(Unit(unit.model, unit.dataset, split), network)
                changed += _changed(used, wanted) if used.get("model") else []
        if changed:
            other[unit] = list(dict.fromkeys(changed))
    return other


def _changed(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences in the entries that are wanted."""
    return differences({key: stored.get(key) for key in wanted}, wanted)


def describe_others(other: Mapping[Unit, Collection[str]]) -> list[str]:
    """Return a line for each model and its differences, with the outputs that have them."""
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit, changed in other.items():
        # The digest of other rows says nothing where the network differs.
        telling = [text for text in changed if not text.startswith("rows_sha256")] or list(changed)
        groups.setdefault((unit.model, "; ".join(telling)), []).append(unit)
    lines = []
    for (model, text), units in groups.items():
        datasets = some(list(dict.fromkeys(unit.dataset for unit in units)), 6)
        n_features = sum(bool(unit.split) for unit in units)
        kinds = [f"{n_features} features"] * bool(n_features)
        kinds += [f"{len(units) - n_features} classifier runs"] * (n_features < len(units))
        text = re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1", text)  # beginnings of digests
        lines.append(f"{model} ({' and '.join(kinds)} on {datasets}): {text}")
    return lines


def main() -> None:
    """Print the descriptions of the models on the command line as JSON; errors are told by their extraction."""
    networks = Networks(**json.loads(sys.argv[1]))
    described: dict[str, dict[str, Any]] = {model: {} for model in sys.argv[2:]}
    with contextlib.redirect_stdout(sys.stderr):  # what loaders print
        for model in described:
            with contextlib.suppress(Exception):
                described[model] = networks.describe(model)
    print(json.dumps(described))


if __name__ == "__main__":
    main()
