"""Check whether this machine can run a study: software, device, decoders, classifiers, extraction, memory."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Sequence

from cog.errors import CogError
from cog.runtime import cli as cli_tools

FORMATS = ("text", "json")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed flags; no file is read or written."""
    parser = cli_tools.OneLineParser(description=__doc__)
    parser.add_argument(
        "--device", help="cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Try all parts that a study needs; return 0 if they work, else 2."""
    args = parse_args(argv)
    from cog.miniature import doctor

    report = doctor.Findings()
    measured = doctor.examine(report, args.device)
    if args.format == "json":
        findings = [dataclasses.asdict(finding) for finding in report.findings]
        shown = {"ok": not report.n_problems, "findings": findings, "measured": measured}
        json.dump(shown, sys.stdout, indent=1)
        print()
    else:
        for finding in report.findings:
            print(f"{finding.level:<8} {finding.subject:<11}  {finding.text}")
        print("no study can run here" if report.n_problems else "a study can run here")
    return CogError.exit_code if report.n_problems else 0


cli = functools.partial(cli_tools.run, main)

if __name__ == "__main__":
    cli()
