"""Small studies, and study.sh on the files of :mod:`tiny`."""

import os
import subprocess
from pathlib import Path

import tiny
import torch
from tiny import Workshop, snapshot
from waiting import wait_for

from cog.study.units import Study

QUICK = "FT_EXTRACT.IMAGE_RESIZE_SIZE 16 FT_EXTRACT.IMAGE_CROP_SIZE 16 FT_EXTRACT.N_WORKERS 0 "
QUICK += "FT_EXTRACT.BATCH_SIZE 2 CLF.N_TRIALS 1 CLF.N_EPOCHS 2"
# Chunks of 64 images, where two models share each decoded image.
SIZES = "FT_EXTRACT.IMAGE_RESIZE_SIZE 224 FT_EXTRACT.IMAGE_CROP_SIZE 224"


def small_study(root: Path, *, models=("a_net", "b_net"), datasets=("in1k", "cog_l1")) -> Study:
    """Return a study of two models, data sets, seeds and numbers of shots."""
    return Study(root, models, datasets, seeds=(1, 2), n_shots=(0, 8))


class Script:
    """study.sh for the loader of a workshop, on two data sets."""

    def __init__(self, made: Workshop, repository: Path, log_dir: Path, environment, *words: str) -> None:
        self.made, self.log_dir, self.environment = made, log_dir, environment
        self.words = [
            *("bash", str(repository / "bash-scripts/study.sh"), f"models_root_dir={made.models}"),
            *(f"log_dir={log_dir}", f"model_loader={made.loader}:load_my_model", "dataset=in1k,cog_l1"),
            *(f"in1k_images_root={made.in1k}", f"imagenet_images_root={made.in21k}", *QUICK.split()),
            *(f"cog_levels_mapping_file={made.levels_file}", f"cog_concepts_split_file={made.split_file}"),
            *words,
        ]

    def start(self, *more: str) -> subprocess.Popen:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self.words, *more], env=self.environment, text=True, **streams)

    def run(self, *more: str) -> tuple[int, str, str]:
        """Return exit code, output, and errors."""
        process = self.start(*more)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    def log(self, number: int) -> str:
        """Return the log of a task."""
        path = self.log_dir / f"{number}.log"
        return path.read_text() if path.exists() else ""

    def outputs(self) -> dict[str, str]:
        """Return the digests of files that do not tell of times."""
        names = ("X_Y.pth", "model.pth", "logs.pkl", "preds.pkl")
        return {name: text for name, text in snapshot(self.made.models).items() if name.endswith(names)}


def pace(made: Workshop) -> Path:
    """Return a file with the seconds that the network of the workshop takes for each image, 0 so far."""
    file, head = made.loader.with_name("pace.txt"), "    def forward(self, x):\n"
    sleep = f"        import time; time.sleep(len(x) * float(open({str(file)!r}).read()))\n"
    made.loader.write_text(made.loader.read_text().replace(head, head + sleep))
    file.write_text("0")
    return file


class Studies(Script):
    """study.sh for two models; ``pace`` holds the seconds that a model takes per image."""

    def __init__(self, root: Path, repository: Path, python: str, environment=os.environ) -> None:
        made = tiny.build_workshop(root)
        tiny.write_class_folders(made.in1k / "val", n_images=100, seed=9)  # five chunks
        other = made.models / "other/net/model.ckpt"
        other.parent.mkdir(parents=True)
        torch.save({"mix": torch.tensor([3.0, 1.0, 2.0])}, other)
        self.pace, environment = pace(made), {**environment, "COG_PYTHON": python}
        words = ("model_name=tiny_net other_net", "shots=0", "seeds=1 2", "dataset=in1k", *SIZES.split())
        super().__init__(made, repository, root / "study logs", environment, *words)

    def submit(self, options: str = "--mem=100", *more: str) -> dict[str, list[str]]:
        """Submit the study; returns the numbers of the jobs by stage."""
        code, out, err = self.run(f"slurm={options}", *more)
        assert code == 0, out + err
        jobs: dict[str, list[str]] = {}
        for job, stage, *_ in [line.split() for line in out.splitlines() if ": --" in line]:
            jobs.setdefault(stage.rstrip(":"), []).append(job)
        return jobs

    def wait_for_a_chunk(self) -> None:
        wait_for(lambda: list(self.made.models.rglob("chunks-*/rows-*")))
