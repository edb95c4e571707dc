"""Small studies, and study.sh on the files of :mod:`tiny`."""

from __future__ import annotations

from pathlib import Path

from tiny import Workshop, snapshot

from cog.study.units import Study

QUICK = "FT_EXTRACT.IMAGE_RESIZE_SIZE 16 FT_EXTRACT.IMAGE_CROP_SIZE 16 FT_EXTRACT.N_WORKERS 0 "
QUICK += "FT_EXTRACT.BATCH_SIZE 2 CLF.N_TRIALS 1 CLF.N_EPOCHS 2"


def small_study(root: Path, *, models=("a_net", "b_net"), datasets=("in1k", "cog_l1")) -> Study:
    """Return a study of two models, data sets, seeds and numbers of shots."""
    return Study(root, models, datasets, seeds=(1, 2), n_shots=(0, 8))


def command(made: Workshop, repository: Path, log_dir: Path, *words: str) -> list[str]:
    """Return the command line of study.sh for the workshop's loader on two data sets."""
    return [
        *("bash", str(repository / "bash-scripts/study.sh"), f"models_root_dir={made.models}"),
        *(f"log_dir={log_dir}", f"model_loader={made.loader}:load_my_model", f"in1k_images_root={made.in1k}"),
        *(f"imagenet_images_root={made.in21k}", f"cog_levels_mapping_file={made.levels_file}"),
        *(f"cog_concepts_split_file={made.split_file}", "dataset=in1k,cog_l1", *words, *QUICK.split()),
    ]


def outputs(made: Workshop) -> dict[str, tuple[str, str]]:
    """Return the files that do not tell of times."""
    names = ("X_Y.pth", "model.pth", "logs.pkl", "preds.pkl")
    return {name: entry for name, entry in snapshot(made.models).items() if name.endswith(names)}
