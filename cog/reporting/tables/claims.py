"""Tables of the paper's statements, with their verdicts by published numbers and by own runs."""

from __future__ import annotations

from collections.abc import Sequence

from cog.errors import some
from cog.reporting.tables.layout import View
from cog.reporting.tables.writers import Note, Table, printable, words_table
from cog.results import claims, published
from cog.results.claims import Finding, Numbers
from cog.results.scores import RUNS, SeedAverage

#: Columns of flat records.
COLUMNS = (
    "claim", "section", "text", "source", "verdict", "n_holds", "n_cases", "n_not_told", "lowest", "highest",
    "unit", "exceptions",
)  # fmt: skip

# Number of exceptions that tables name; flat records have all.
_MOST_EXCEPTIONS = 6

_BY_MEANS = "Verdicts compare means; their uncertainty takes no part."
_BY_INTERVALS = (
    "A case with right answers per concept is told where the interval over concepts and seeds excludes the bound that "
    "decides it, such as a difference of 0, also after Holm's correction for all cases of this table; it takes two "
    "common seeds. cannot be told: cases that are not told could change the verdict. Means alone decide deviations, "
    "blurred faces, and numbers without counts."
)
_NOTE = (
    "holds with exceptions: it does not in at most half of the cases; does not hold: in more. Evidence: cases in which "
    "it holds; lowest and highest value."
)


def of_claims(averages: Sequence[SeedAverage]) -> View:
    """Return a table of the statements for the published numbers, and one for each other source.

    Args:
        averages: averages of any sources; published ones are left out, because all published numbers are judged anyway.
    """
    papers = set(published.SOURCES.values())
    others = {
        a.source: "own runs" if a.source == RUNS else a.source for a in averages if a.source not in papers
    }
    findings = {"published": claims.judge_published()}
    for source, name in others.items():
        findings[name] = claims.judge_all(Numbers(a for a in averages if a.source == source))
    tables = tuple(_table(name, some) for name, some in findings.items())
    records = tuple(_record(name, finding) for name, some in findings.items() for finding in some)
    return View(tables, COLUMNS, records)


def _table(source: str, findings: Sequence[Finding]) -> Table:
    numbers = "published numbers" if source == "published" else source
    rows = ((f.claim.text, (f.claim.section, f.verdict, f.evidence)) for f in findings)
    exceptions = [
        (finding.claim.text, some([printable(text) for text in finding.exceptions], _MOST_EXCEPTIONS))
        for finding in findings
        if finding.exceptions
    ]
    by_intervals = any(finding.n_not_told is not None for finding in findings)
    verdicts = _BY_INTERVALS if by_intervals else _BY_MEANS
    notes = [Note(f"{verdicts} {_NOTE}"), *([Note("Exceptions", tuple(exceptions))] if exceptions else [])]
    title = f"statements of the paper by {printable(numbers)}"
    return words_table(title, "statement", ("where", "verdict", "evidence"), rows, notes)


def _record(source: str, finding: Finding) -> dict[str, object]:
    claim, (lowest, highest) = finding.claim, finding.span or (None, None)
    return {
        "claim": claim.name, "section": claim.section, "text": claim.text, "source": source,
        "verdict": finding.verdict, "n_holds": finding.n_holds, "n_cases": finding.n_cases,
        "n_not_told": finding.n_not_told, "lowest": lowest, "highest": highest, "unit": claim.unit,
        "exceptions": finding.exceptions,
    }  # fmt: skip
