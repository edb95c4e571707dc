"""``analyze_features.py --check``."""

from __future__ import annotations

import argparse
from pathlib import Path

from cog import config, features
from cog.analysis import execution, records, registry
from cog.commands import analyze_features as command
from cog.identities import differences
from cog.preflight import machine
from cog.preflight.report import Report
from cog.resume_folder import SavedStates

#: Of a result: its numbers, and tables beside it.
_RESULT_BYTES = 64 << 20


def check(args: argparse.Namespace) -> int:
    """Look at everything that the analyses need, print a summary, and return the exit code.

    Args:
        args: flags of ``analyze_features.py``.
    """
    report = Report()
    planned = []
    with report.step("input"):
        cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=args.opts)
        analyses = registry.get(args.analysis)
        for request in command.get_requests(args, cfg):
            for analysis in analyses:
                planned += [(request, task) for task in registry.plan(analysis, request)]
    opened: dict[Path, float] = {}
    todo = []
    for request, task in planned:
        before = report.n_problems
        for split in task.splits:
            with report.step("features"):
                path = request.features_file(split)
                if path not in opened:
                    opened[path] = 0.0
                    found = features.open_file(path, mapped=True)
                    opened[path] = 4.0 * found.x.numel()
                    report.ok("features", f"{path}: {len(found.x):,} x {found.x.shape[1]}")
        if report.n_problems > before:
            continue
        with report.step("output"):
            work = execution.Work(request, task, execution.identify(request, task))
            if not machine.check_state(report, work.output):
                continue
            if not args.overwrite and _is_kept(report, work):
                report.ok("output", f"{work.output} is complete and would be skipped")
            elif report.n_problems == before and machine.check_writable(report, work.output):
                todo.append(work)
                report.ok("output", str(work.output))
    if todo:
        with report.step("disk"):
            machine.check_disk(report, [(work.output, _RESULT_BYTES) for work in todo])
        with report.step("memory"):
            most = sum(sorted(opened.values())[-2:])
            machine.check_memory(report, most, "the features of a data set; larger ones stay in their file")
    with report.step("device"):
        machine.check_device(report, args.device)
    return report.finish()


def _is_kept(report: Report, work: execution.Work) -> bool:
    """Whether the result is there, made the same way; others are a problem."""
    if not (work.output / records.RESULTS_FILE).exists():
        SavedStates(work.output, work.identity).check()
        return False
    found = records.read(work.output)
    if isinstance(found, records.RecordProblem):
        report.problem("output", f"{found.message}; add --overwrite to replace it")
        return False
    changed = differences(found.identity, work.identity)
    if changed:
        text = f"{work.output} holds a different result ({'; '.join(changed)}); add --overwrite to replace it"
        report.problem("output", text)
    return not changed
