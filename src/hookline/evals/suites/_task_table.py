"""The tasks of a suite by id: those that were given, and those that datasets make when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hookline._checks import quote
from hookline.errors import HookUsageError
from hookline.evals.datasets import Dataset
from hookline.evals.suites._task import Task

__all__ = ["TaskTable"]


class TaskTable(Mapping[str, Task]):
    """Tasks by id, in the order in which they were added.

    Args:
        suite: The name of the suite, for errors.
    """

    def __init__(self, suite: str) -> None:
        self._suite = suite
        self._parts: list[dict[str, Task] | Dataset[Task]] = []

    def add(self, tasks: Iterable[Task | Dataset[Task]] | Dataset[Task]) -> Iterator[Task]:
        """Add tasks, and yield each of them, those of datasets too, which are not kept.

        Raises:
            HookUsageError: If two tasks have one id, or something is no task.
            DataFileError: If the cases of a dataset cannot be used.
        """
        for entry in [tasks] if isinstance(tasks, Dataset) else tasks:
            if isinstance(entry, Dataset):
                for task in entry.scan():
                    self._check(task)
                    yield task
                self._parts.append(entry)
                continue
            self._check(entry)
            if not self._parts or isinstance(self._parts[-1], Dataset):
                self._parts.append({})
            part = self._parts[-1]
            assert isinstance(part, dict)
            part[entry.id] = entry
            yield entry

    def _check(self, task: object) -> None:
        name = getattr(task, "id", None)
        if not isinstance(name, str) or not hasattr(task, "prompt"):
            raise HookUsageError(f"Suite {self._suite!r} takes tasks; got {quote(task)}.")
        if name in self:
            raise HookUsageError(f"Suite {self._suite!r} has two tasks {name!r}; rename one.")

    def __getitem__(self, task_id: str) -> Task:
        for part in self._parts:
            if task_id in part:
                return part[task_id]
        raise KeyError(task_id)

    def __contains__(self, task_id: object) -> bool:
        return any(task_id in part for part in self._parts)

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            yield from part

    def __len__(self) -> int:
        return sum(map(len, self._parts))
