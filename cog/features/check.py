"""``extract_features.py --check``: a check of every part of a plan, and of the machine, before any extraction."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cog.data import image_checks, root_layout
from cog.data.image_lists import ImageList, MissingClassesError
from cog.data.image_stores import EMPTY
from cog.errors import some
from cog.features.folder import FeatureFolder
from cog.features.plan import ExtractionPlan, ExtractJob
from cog.features.shards import read_manifest
from cog.models.formats.detect import detect
from cog.models.request import ModelRequest
from cog.runtime import machine_checks
from cog.runtime.check_report import Report
from cog.runtime.resume_dir import FOLDER

#: Size of a row beside its features, in bytes: label and path.
_ROW_BYTES = 64

_SHOWN = 3


def check(plan: ExtractionPlan) -> int:
    """Check every part of a plan, and the machine, print a summary, and return the exit code."""
    report = Report()
    precision = ""
    with report.step("configuration") as configured:
        cfg = plan.model.config(plan.config_file, plan.opts, records=None)
        plan.model.check_variant(cfg)
        precision = cfg.FT_EXTRACT.PRECISION
    with report.step("checkpoint") as known:
        _check_checkpoint(report, plan.model)
    folders: dict[tuple[str, str], FeatureFolder] = {}
    with report.step("output"):
        folders = plan.folders if known.ok else {}
    lists: dict[tuple[str, str], ImageList] = {}
    for pair in plan.pairs:
        label = " ".join(pair)
        lost: tuple[str, ...] = ()
        with report.step(label):
            listed = plan.sources.declaration(pair[0]).list_images is not None
            try:
                images = lists[pair] = plan.images(pair)
            except MissingClassesError as error:
                for fault in error.faults:
                    report.problem(label, fault)
                images, lost = error.images, error.classes
            check_images(report, images, label, allowed=plan.allow_failures, may_be_missing=listed, lost=lost)
    for fault in plan.different_classes():
        report.problem("classes", fault)
    dim = None
    ready = configured.ok and known.ok
    if ready:
        with report.step("model") as tried:
            dim = _check_network(report, plan, next(iter(lists.values()), None))
        ready = tried.ok or plan.model.model_loader is None
    todo = []
    for pair, folder in folders.items():
        job = plan.job(pair) if ready and pair in lists else None
        written = False
        with report.step("output") as usable:
            written = _check_output(report, folder, job, " ".join(pair))
        if usable.ok and written and pair in lists:
            todo.append((folder.path, len(lists[pair])))
    fx = plan.cfg.FT_EXTRACT if ready else None
    if fx is not None and plan.model.model_loader is None and dim is None:
        dim = plan.model.spec.resolve(fx.PROFILE, fx.VARIANT).feature_dim
    value_bytes = 2 if fx is not None and fx.SAVE_DTYPE != "float32" else 4
    shard_bytes = 2 if fx is not None and fx.PRECISION == "fp16" else value_bytes
    check_space(report, todo, dim, value_bytes=value_bytes, shard_bytes=shard_bytes)
    with report.step("device"):
        machine_checks.check_device(report, plan.device, "FT_EXTRACT.PRECISION", precision)
    return report.finish()


def _check_checkpoint(report: Report, model: ModelRequest) -> None:
    if model.checkpoint is None and model.library_model is not None:
        model.check_weights()
        report.ok("checkpoint", f"none; the weights would be those of {model.library_model.address}")
    elif model.checkpoint is None:
        report.ok("checkpoint", f"none; {model.model_loader} does without")
    else:
        detect(model.checkpoint)
        published = ", the published file" if model.description.get("checkpoint_is_published") else ""
        report.ok(
            "checkpoint",
            f"{model.checkpoint}, {machine_checks.size(model.n_bytes)}, "
            f"SHA-256 {model.description['checkpoint_sha256'][:12]}...{published}",
        )


def _check_network(report: Report, plan: ExtractionPlan, images: ImageList | None) -> int | None:
    """Run the network on the first image of a data set and return the number of features; None: not known."""
    library_model = plan.model.library_model
    if library_model is not None and plan.model.checkpoint is None and not library_model.is_cached:
        fx = plan.cfg.FT_EXTRACT
        dim = library_model.n_features(fx.IMAGE_CROP_SIZE, fx.POOLING)
        gives = "" if dim is None else f"; it gives {dim:,} features"
        report.warn("model", f"not tried, because {library_model.why_untried}{gives}")
        return dim
    if images is None:
        report.warn("model", "not tried, for want of images")
        return None
    from cog.features import runner  # imports torch

    dim, text, failed = runner.try_network(plan, images)
    add = (report.warn if plan.allow_failures else report.problem) if failed else report.ok
    add("model", text)
    return dim


def _check_output(report: Report, folder: FeatureFolder, job: ExtractJob | None, label: str) -> bool:
    """Report the state of an output folder, and return whether ``job`` (None: not known) would write into it."""
    folder.require_usable()
    is_free = machine_checks.check_state(report, folder.path)
    if job is not None and job.folder.holds_result():
        report.ok("output", f"{label}: {folder.features_file} is complete and would be skipped")
        return False
    if not machine_checks.check_writable(report, folder.path) or not is_free:
        return False
    manifest = read_manifest(folder.path)
    if manifest is not None and job is not None:
        # The identity of the work also has the device and the images per pass, which are not known without a GPU.
        changed = job.folder.check_unfinished(job.folder.identity)
        work = folder.resume
        work.manifest = manifest
        work.scan()
        text = f"{job.label}: {work.n_done():,} of {manifest.n_rows:,} images are done in {work.path}"
        if changed:
            report.warn("output", f"{text}, made differently; they would be discarded (--overwrite)")
        else:
            report.ok("output", f"{text}; continues from there")
    elif folder.is_complete() and folder.overwrite:
        report.warn("output", f"{label}: {folder.features_file} would be replaced (--overwrite)")
    elif folder.is_complete():
        report.warn(
            "output",
            f"{label}: {folder.features_file} is complete; made for other images or not, is not known yet",
        )
    else:
        report.ok("output", f"{label}: {folder.path}")
    return True


def check_images(
    report: Report,
    images: ImageList,
    label: str,
    *,
    allowed: int,
    may_be_missing: bool = True,
    lost: Collection[str] = (),
) -> None:
    """Report the numbers of missing, of empty and of unreadable images of a list.

    Args:
        report: report that gets a line for each number.
        images: the image list.
        label: subject of the lines.
        allowed: value of ``--allow_failures``.
        may_be_missing: whether to look for missing images; False for a list that was made from the files in folders.
        lost: missing classes that the report already has.
    """
    absent = image_checks.missing(images, without=lost) if may_be_missing else []
    faulty = {"missing": absent, **image_checks.faulty(images, without=lost)}
    total = f"{len(images):,} images of {len(images.classes):,} classes"
    n_bad = sum(map(len, faulty.values()))
    for fault, names in faulty.items():
        if not names:
            continue
        state = f"are {fault}" if fault in ("missing", EMPTY) else f"cannot be read ({fault})"
        text = f"{len(names):,} of {total} {state} under {images.root}: {some(names, _SHOWN)}"
        why = root_layout.hint(images.root)
        if n_bad <= allowed:
            report.warn(label, f"{text} (--allow_failures {allowed} accepts that){why}")
        else:
            advice = why or f"; complete them, or accept it with --allow_failures {n_bad}"
            report.problem(label, f"{text}{advice}")
    if not (n_bad or lost):
        report.ok(label, total)


def check_space(
    report: Report, todo: list[tuple[Path, int]], dim: int | None, *, value_bytes: int, shard_bytes: int
) -> None:
    """Compare the free disk space and memory with the needs of the jobs.

    Args:
        report: report that gets the findings.
        todo: output folder and number of images of each job.
        dim: number of features; None: not known.
        value_bytes: size of a value in X_Y.pth, in bytes.
        shard_bytes: size of a value in a shard, in bytes.
    """
    if not todo:
        return
    if dim is None:
        report.warn("disk", "not estimated: the number of features is not known before the model is loaded")
        return
    with report.step("disk"):
        finals = [(path, n * (value_bytes * dim + _ROW_BYTES)) for path, n in todo]
        # The shards of a split exist until its file is in place; splits are extracted one after the other.
        path, rows = max(todo, key=lambda item: item[1])
        done = sum(_bytes_in(path / FOLDER) for path, _ in todo)
        machine_checks.check_disk(report, [*finals, (path, rows * shard_bytes * dim - done)])
    with report.step("memory"):
        most = max(n * value_bytes * dim for _, n in todo)
        machine_checks.check_memory(
            report, most, f"the largest split, {machine_checks.size(most)}, at its end"
        )


def _bytes_in(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except OSError:
        return 0
