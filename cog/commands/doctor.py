"""Check whether this machine can run a study: software, device, decoders, classifiers, extraction, memory."""

import json
from collections.abc import Sequence

from cog.commands import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Try all parts that a study needs; return 0 if they work, else 2."""
    parser = flags.parser(__doc__, "", "--device cuda:1", "--format json", has_keys=False)
    flags.add(parser, "device", "format")
    args = parser.parse_args(argv)
    from cog.commands import machine  # imports torch

    findings = []
    for level, subject, text in machine.examine(args.device):
        findings.append({"level": level, "subject": subject, "text": text})
        if args.format == "text":
            print(f"{level:<8} {subject:<11}  {text}", flush=True)
    is_usable = all(finding["level"] != "problem" for finding in findings)
    summary = f"{'a' if is_usable else 'no'} study can run here"
    print(json.dumps({"ok": is_usable, "findings": findings}, indent=1) if args.format == "json" else summary)
    return 0 if is_usable else 2
