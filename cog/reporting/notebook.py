"""Results in a notebook: scores that can be selected, put into a table or converted to pandas.

>>> import cog
>>> results = cog.read_results(published="v2")
>>> few = results.select(model=["sup_resnet50", "dino_resnet50"], dataset=["in1k", "cog_l1", "cog_l5"], n_shots=0)
>>> print(few.table(rows="model", columns="dataset"))
logreg, all training images, top1 [paper v2]
<BLANKLINE>
               in1k        cog_l1      cog_l5
sup_resnet50   75.8 ± 0.0  67.9 ± 0.1  52.0 ± 0.0
dino_resnet50  74.8 ± 0.0  71.1 ± 0.0  57.6 ± 0.0
<BLANKLINE>
>>> few[0].value, few[0].std
(75.8, 0.0)
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cog.data import datasets as data_sets
from cog.errors import CogError, did_you_mean, printable
from cog.models.zoo import MODELS
from cog.reporting.tables.layout import seeds_there
from cog.reporting.tables.pivot import own_number
from cog.reporting.tables.writers import DRAWN, Note, Table, draw
from cog.results import find, official, query, scores
from cog.results.labels import shots_column, shots_label
from cog.results.model_facts import ModelFacts, shows_levels
from cog.results.published import SOURCES
from cog.results.run_records import Problem
from cog.results.scores import RUNS, Score, SeedAverage

logger = logging.getLogger(__name__)

#: Names of the fields of a score that a table can have in its rows or columns.
FIELDS = scores.PLACE


def read_results(
    root: str | os.PathLike[str] | None = None,
    *,
    models: str | Iterable[str] | None = None,
    datasets: str | Iterable[str] | None = None,
    imports: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    published: str | None = None,
) -> Results:
    """Read results of runs, analyses, shared files and the paper.

    Args:
        root: folder of all models; None: nothing is read from folders.
        models: one or several names, or patterns such as ``deit_*``; None: all.
        datasets: one or several names; None: all.
        imports: one or several files that ``print_results.py --export`` wrote.
        published: version of the paper whose numbers are read too, ``"v2"`` or ``"v1"``; None: no published numbers.

    Returns:
        Scores in the order of tables; folders without a result are in ``problems``. A root without any result causes a
        warning.

    Raises:
        CogError: a folder or file that cannot be read, a model, data set or version that is not known.
    """
    if published is not None and published not in tuple(SOURCES):
        raise CogError(f"published {published!r} is not known, expected {' or '.join(SOURCES)}")
    models, datasets = _several(models), _several(datasets)
    results = Results(
        *query.read_scores(root, models=models, datasets=datasets, imports=_several(imports), paper=published)
    )
    folders = () if root is None else find.list_models(root)
    if root is not None and models is None and datasets is None and RUNS not in results.names("source"):
        logger.warning(
            "no result of any model under %s (%d folders could not be counted); expected "
            "<title>/<architecture>/<dataset>/eval_<name>[_N<shots>]/seed-<seed> there",
            root,
            len(results.problems),
        )
    for name in models or ():
        _require_known("model", name, {*folders, *results.names("model")})
    for name in datasets or ():
        if root is None or next(Path(root).glob(f"*/*/{name}"), None) is None:
            _require_known("dataset", name, results.names("dataset"))
    return results


class Results(Sequence[Score]):
    """Scores in the order of tables.

    Attributes:
        problems: folders that were not counted, with the reasons.
    """

    def __init__(
        self,
        members: Iterable[Score],
        problems: Iterable[Problem] = (),
        model_facts: ModelFacts | None = None,
    ) -> None:
        self._scores = tuple(members)
        self.problems = tuple(problems)
        self._facts = model_facts or ModelFacts()

    def __len__(self) -> int:
        return len(self._scores)

    def __iter__(self) -> Iterator[Score]:
        return iter(self._scores)

    def __getitem__(self, index: Any) -> Any:
        """Return a score, or the results of a slice."""
        selected = self._scores[index]
        return self._of(selected) if isinstance(index, slice) else selected

    def _of(self, members: Iterable[Score]) -> Results:
        return Results(members, self.problems, self._facts)

    def __repr__(self) -> str:
        return f"<{len(self)} scores of {len({score.model for score in self})} models>"

    def names(self, field: str) -> set[Any]:
        """Return the distinct values of a field, such as ``model``."""
        return {getattr(score, field) for score in self}

    def select(self, **wanted: Any) -> Results:
        """Return the scores whose fields have the given values: a single value, or a list of values per field.

        Models may be patterns such as ``"deit_*"``; None stands for all models or data sets.

        Raises:
            CogError: a model or data set that is not known; the message names the nearest one.
            ValueError: a field that scores do not have.
        """
        for field in wanted.keys() & {"model", "dataset"}:
            texts, known = wanted.pop(field), self.names(field)
            if texts is not None:
                texts = list(_several(texts))
                for text in texts:
                    _require_known(field, text, known)
                wanted[field] = {name for name in known if any(find.matches(name, text) for text in texts)}
        if unknown := sorted(wanted.keys() - Score.__dataclass_fields__.keys()):
            raise ValueError(
                f"a score has no {unknown[0]}, expected some of {', '.join(Score.__dataclass_fields__)}"
            )
        allowed = {
            name: set(value) if isinstance(value, list | tuple | set | frozenset | range) else {value}
            for name, value in wanted.items()
        }
        return self._of(
            score for score in self if all(getattr(score, name) in allowed[name] for name in allowed)
        )

    def average(self) -> list[SeedAverage]:
        """Return means and deviations over seeds; see :func:`cog.results.scores.average`.

        Averages over runs name their missing seeds: those of the protocol, or of other such averages.
        """
        return scores.average(self)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each score and its fields as columns.

        Raises:
            CogError: when pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise CogError("to_pandas needs pandas: pip install pandas") from None
        columns = [field.name for field in dataclasses.fields(Score) if field.name != "concepts"]
        rows = (dataclasses.replace(score, concepts=None) for score in self)
        return pandas.DataFrame([dataclasses.asdict(row) for row in rows], columns=columns)

    def table(self, rows: str = "model", columns: str = "dataset", *, format: str = "text") -> str:
        """Return a table of means over seeds, with 95 % intervals over concepts and seeds in brackets.

        Models that may have seen concepts of levels are marked. Notes below name numbers that are not comparable.

        Args:
            rows: one of ``FIELDS``.
            columns: another one of ``FIELDS``. The scores must agree on the remaining fields; select them before.
            format: ``text``, ``markdown`` or ``latex``.

        Raises:
            CogError: an unknown field or format, no score, or several averages for one entry of the table.
        """
        if format not in DRAWN:
            raise CogError(f"format {format} is not known, expected one of {', '.join(DRAWN)}")
        averages = self.average()
        at = _by_place(averages, rows, columns)
        names = {
            field: list(dict.fromkeys(_value(average, field) for average in averages)) for field in FIELDS
        }
        names["dataset"].sort(key=scores.dataset_key)
        names["n_shots"].sort()
        grid = [[at.get((row, column)) for column in names[columns]] for row in names[rows]]
        shared = {field: names[field] for field in FIELDS if field not in (rows, columns)}
        marked = shows_levels(average.dataset for average in averages)
        marks = {a.model: self._facts.mark(a.model, a.source) for a in averages if marked}

        def name(field: str, value: Any) -> str:
            return str(value) + (marks.get(value, "") if field == "model" else "")

        title = ", ".join(
            shots_label(value) if field == "n_shots" else name(field, value)
            for field, (value, *others) in shared.items()
            if field != "source" and not others
        )
        source = shared.get("source", [RUNS])
        title += f" [{source[0]}]" if len(source) == 1 and source != [RUNS] else ""
        labels, header = (
            tuple(shots_column(value) if field == "n_shots" else name(field, value) for value in names[field])
            for field in (rows, columns)
        )
        entries = (
            tuple(None if a is None else own_number(a).entry(seeds_there(a)) for a in line) for line in grid
        )
        texts = [official.as_sentence(text) for text in official.compare(averages).remarks]
        texts += (
            [self._facts.footnote(((a.model, a.source) for a in averages), advice=False)] if marked else []
        )
        notes = tuple(Note(printable(text)) for text in texts if text)
        lines = tuple(zip(labels, entries, strict=True))
        return draw([Table(title, header, lines, notes=notes, corner=rows)], format)


def _several(given: Any) -> Any:
    """Return the given values; a single text or path is one of them, not its characters."""
    return [given] if isinstance(given, str | os.PathLike) else given


def _require_known(field: str, name: str, known: Collection[str]) -> None:
    """Check that a model or data set is among those read or declared; patterns pass."""
    declared = MODELS if field == "model" else data_sets.names()
    if name not in known and name not in declared and not find.is_pattern(name):
        hint = did_you_mean(name, [*known, *declared])
        raise CogError(f"{field} {name}: no result of it among those read{hint}")


def _value(average: SeedAverage, field: str) -> Any:
    return getattr(average, "n_shot" if field == "n_shots" else field)


def _by_place(averages: Sequence[SeedAverage], rows: str, columns: str) -> dict[tuple[Any, Any], SeedAverage]:
    """Return the averages by their values of the two fields."""
    for field in (rows, columns):
        if field not in FIELDS:
            raise CogError(f"a score has no {field}, expected one of {', '.join(FIELDS)}")
    if not averages:
        raise CogError("there is no score to show")
    at: dict[tuple[Any, Any], SeedAverage] = {}
    for average in averages:
        place = (_value(average, rows), _value(average, columns))
        other = at.setdefault(place, average)
        apart = [field for field in FIELDS if _value(average, field) != _value(other, field)]
        if apart:
            raise CogError(
                f"several numbers for {place[0]}, {place[1]}: they differ in {', '.join(apart)}; select one, such as "
                f"{apart[0]}={_value(other, apart[0])!r}"
            )
    return at
