"""Report of a check: its findings in the order in which they were made."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from cog.errors import CogError

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class CheckFinding:
    """One line of the summary.

    Attributes:
        level: ``ok``, ``warning`` or ``problem`` (the command cannot start, or could not finish).
        subject: object of the check, a word or two.
        text: observation, and the remedy if one is needed.
    """

    level: str
    subject: str
    text: str


@dataclass
class CheckStep:
    """A block of checks.

    Attributes:
        ok: whether the block has ended without a problem.
    """

    ok: bool = False


class Report:
    """Collection of findings."""

    def __init__(self) -> None:
        self.findings: list[CheckFinding] = []

    def ok(self, subject: str, text: str) -> None:
        """Add a finding without a fault."""
        self._add(OK, subject, text)

    def warn(self, subject: str, text: str) -> None:
        """Add a finding that the user should know."""
        self._add(WARNING, subject, text)

    def problem(self, subject: str, text: str) -> None:
        """Add a finding that has to be fixed before the command can start, unless it is known with another subject."""
        self._add(PROBLEM, subject, text)

    def _add(self, level: str, subject: str, text: str) -> None:
        finding = CheckFinding(level, subject, " ".join(text.split()))
        is_known_problem = level == PROBLEM and any(
            known.level == PROBLEM and known.text == finding.text for known in self.findings
        )
        if finding not in self.findings and not is_known_problem:
            self.findings.append(finding)

    @contextlib.contextmanager
    def step(self, subject: str) -> Iterator[CheckStep]:
        """Turn errors of the block into problems, and warnings in the log of the package into warnings."""
        logger = logging.getLogger("cog")
        handlers, propagate = logger.handlers, logger.propagate
        logger.handlers, logger.propagate = [_Collector(self, subject)], False
        step, before = CheckStep(), self.n_problems
        try:
            yield step
            step.ok = self.n_problems == before
        except CogError as error:
            self.problem(subject, str(error))
        except OSError as error:
            prefix = f"cannot access {error.filename}: " if error.filename else ""
            self.problem(subject, f"{prefix}{error.strerror or error}")
        finally:
            logger.handlers, logger.propagate = handlers, propagate

    @property
    def n_problems(self) -> int:
        """Number of problems."""
        return sum(finding.level == PROBLEM for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 when the command can start, else 2."""
        return 2 if self.n_problems else 0

    def finish(self, verdict: str = "it can start") -> int:
        """Print the summary and return the exit code.

        Args:
            verdict: last line when there is no problem.
        """
        width = max((len(finding.subject) for finding in self.findings), default=0)
        for finding in self.findings:
            text = finding.text.removeprefix(f"{finding.subject}: ")  # logged warnings begin with it
            print(f"{finding.level:<8} {finding.subject:<{width}}  {text}")
        n = self.n_problems
        if n:
            print(f"{n} problem{'s' if n > 1 else ''}: fix {'them' if n > 1 else 'it'} before starting")
        else:
            print(verdict)
        return self.exit_code


class _Collector(logging.Handler):
    def __init__(self, report: Report, subject: str) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._subject = subject

    def emit(self, record: logging.LogRecord) -> None:
        self._report.warn(self._subject, record.getMessage())
