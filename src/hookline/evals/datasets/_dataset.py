"""Tasks made from the cases of a file, of a list or of a matrix, each when it is asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from hookline._yaml import BadLine
from hookline.errors import HooklineError, HookUsageError, message_of
from hookline.evals.datasets._parameters import MissingParameterError
from hookline.evals.datasets._rows import Row, RowFile

__all__ = ["CaseMatrix", "CaseSource", "Dataset", "InlineCases"]

KEPT = 64
"""How many tasks of a dataset are kept at a time; the others are made again when they are asked for."""


class HasId(Protocol):
    """A task that has an id."""

    @property
    def id(self) -> str:
        """The id."""


T = TypeVar("T", bound=HasId)


class CaseSource(Protocol):
    """A file or a list of cases, which can be read in order and by row."""

    def __iter__(self) -> Iterator[Row]:
        """Read all cases in order."""
        ...

    def read(self, key: int) -> dict[str, Any]:
        """Read the values of a case again, by the key of its row."""
        ...

    def line_of(self, key: int) -> int:
        """Return the line in which a case begins, from 1."""
        ...

    def refuse(self, problem: str, line: int | None) -> NoReturn:
        """Raise an error about a case that begins in a line."""
        ...

    def place_of(self, line: int) -> str:
        """Describe where a case is, in words."""
        ...


class InlineCases:
    """Cases that stand in the file of a suite.

    Args:
        cases: The values of each case.
        lines: The line of each.
    """

    def __init__(self, cases: Sequence[Mapping[str, Any]], lines: Sequence[int]) -> None:
        self._cases, self._lines = cases, lines

    def __iter__(self) -> Iterator[Row]:
        """Return all cases in order."""
        for key, (case, line) in enumerate(zip(self._cases, self._lines, strict=True)):
            yield Row(dict(case), key, line)

    def read(self, key: int) -> dict[str, Any]:
        """Return the values of a case."""
        return dict(self._cases[key])

    def line_of(self, key: int) -> int:
        """Return the line of a case."""
        return self._lines[key]

    def refuse(self, problem: str, line: int | None) -> NoReturn:
        """Raise an error about a line of the suite's file."""
        raise BadLine(line or 1, problem)

    def place_of(self, line: int) -> str:
        """Describe where a case is."""
        return f"the case in line {line}"


class CaseMatrix:
    """Every combination of some values, alone or for each case of another source.

    Args:
        values: The values of each parameter.
        line: The line of the matrix in the suite's file.
        cases: The cases that are combined with them; `None` for one case without values.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]], line: int, cases: CaseSource | None = None) -> None:
        self._values = {name: list(each) for name, each in values.items()}
        self._count = 1
        for each in self._values.values():
            self._count *= len(each)
        self._cases: CaseSource = InlineCases([{}], [line]) if cases is None else cases

    def __iter__(self) -> Iterator[Row]:
        """Return all combinations; the values of the last parameter change fastest."""
        for row in self._cases:
            for number, values in enumerate(product(*self._values.values())):
                yield Row(self._combine(row.values, values, row.line), row.key * self._count + number, row.line)

    def read(self, key: int) -> dict[str, Any]:
        """Return the values of a combination."""
        outer, inner = divmod(key, self._count)
        chosen: list[Any] = []
        for each in reversed(self._values.values()):
            inner, place = divmod(inner, len(each))
            chosen.append(each[place])
        return self._combine(self._cases.read(outer), chosen[::-1], None)

    def line_of(self, key: int) -> int:
        """Return the line of the case of a combination."""
        return self._cases.line_of(key // self._count)

    def refuse(self, problem: str, line: int | None) -> NoReturn:
        """Raise an error about a case."""
        self._cases.refuse(problem, line)

    def place_of(self, line: int) -> str:
        """Describe where a case is."""
        return self._cases.place_of(line)

    def _combine(self, case: dict[str, Any], values: Sequence[Any], line: int | None) -> dict[str, Any]:
        for name in self._values:
            if name in case:
                self.refuse(f"the case has a value for {name!r}, and so has the matrix; rename one", line)
        return {**case, **dict(zip(self._values, values, strict=True))}


class FileCases(RowFile):
    """The cases of a file."""

    def place_of(self, line: int) -> str:
        """Describe where a case is."""
        return f"the case in line {line} of {self.path.name}"


class Dataset(Generic[T]):
    """One task for each case of a file. Give it to a `UserSuite` among its tasks.

    The file is read a row at a time, and a task is made when it runs: in memory are only the ids, and where each row
    begins. All rows are read once when the suite is made, so that a mistake is found before anything runs.

    Args:
        cases: A file in UTF-8: `.jsonl` with a JSON object per line, or `.csv` with a header, whose values are texts.
        make: Makes the task of a case from its values by name. It may be called several times for a case.

    Raises:
        DataFileError: If the file has another ending.
    """

    def __init__(self, cases: str | Path | CaseSource, make: Callable[[dict[str, Any]], T]) -> None:
        self._cases: CaseSource = FileCases(cases) if isinstance(cases, str | Path) else cases
        if not callable(make):
            raise HookUsageError(f"A Dataset takes a function that makes the task of a case; got {make!r:.100}.")
        self._make = make
        self._keys: dict[str, int] | None = None
        self._recent: OrderedDict[str, T] = OrderedDict()

    def __repr__(self) -> str:
        count = "unread" if self._keys is None else f"{len(self._keys):,} cases"
        return f"Dataset({getattr(self._cases, 'path', 'inline')!s}, {count})"

    def __len__(self) -> int:
        return len(self._index())

    def __iter__(self) -> Iterator[str]:
        return iter(self._index())

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._index()

    def __getitem__(self, task_id: str) -> T:
        key = self._index()[task_id]
        task = self._recent.get(task_id)
        if task is None:
            task = self._task(self._cases.read(key), None, key)
            if task.id != task_id:
                self._cases.refuse(f"the task {task_id!r} has the id {task.id!r} when it is made again", None)
            self._recent[task_id] = task
            if len(self._recent) > KEPT:
                self._recent.popitem(last=False)
        return task

    def scan(self) -> Iterator[T]:
        """Make the task of every case, in order, and note where each case is.

        Raises:
            DataFileError: If the file or a case cannot be used, or two cases have the same id.
        """
        keys: dict[str, int] = {}
        for row in self._cases:
            task = self._task(row.values, row.line, row.key)
            if task.id in keys:
                first = self._cases.line_of(keys[task.id])
                self._cases.refuse(f"the id {task.id!r} is given twice; line {first} has it too", row.line)
            keys[task.id] = row.key
            yield task
        if not keys:
            self._cases.refuse("there are no cases", None)
        self._keys = keys

    def _index(self) -> dict[str, int]:
        if self._keys is None:
            for _ in self.scan():
                pass
        assert self._keys is not None
        return self._keys

    def _task(self, values: dict[str, Any], line: int | None, key: int) -> T:
        try:
            return self._make(values)
        except MissingParameterError as missing:
            self._cases.refuse(str(missing), line or self._cases.line_of(key))
        except BadLine as error:  # from the file of the suite, which the case has filled in
            place = self._cases.place_of(line or self._cases.line_of(key))
            raise BadLine(error.line, f"{error.problem}, with {place}") from error.__cause__
        except Exception as error:
            told = message_of(error).rstrip(".")
            kind = "" if isinstance(error, HooklineError) else f"{type(error).__name__}: "
            problem = f"the task of this case cannot be made: {kind}{told}"
            raise_from(self._cases, problem, line or self._cases.line_of(key), error)


def raise_from(cases: CaseSource, problem: str, line: int, cause: Exception) -> NoReturn:
    """Raise the error of a source about a case, with its cause."""
    try:
        cases.refuse(problem, line)
    except Exception as error:
        raise error from cause
