"""The protocol of suites: tools, tasks with their expected calls, and a way to run a task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from hookline.calls import ToolRequest, ToolSpec
from hookline.dispatcher import HookDispatcher
from hookline.evals.errors import UnknownTaskError
from hookline.evals.mocking import ToolMocks
from hookline.evals.running._results import TaskOutcome
from hookline.hooks import AnyHook
from hookline.runtime import OperationStore

__all__ = ["RunsTasks", "Suite", "select_tasks"]


def select_tasks(suite: str, known: Collection[str], names: Iterable[str]) -> list[str]:
    """Return the tasks with these names, each once, or all tasks of a suite if there are no names.

    Args:
        suite: The name of the suite.
        known: The names of its tasks.
        names: The names of the selected tasks.

    Raises:
        UnknownTaskError: If there is no task of a name.
    """
    chosen = list(dict.fromkeys(names)) or list(known)
    for name in chosen:
        if name not in known:
            raise UnknownTaskError(suite, name, list(known))
    return chosen


class RunsTasks(Protocol):
    """A minimal suite: tasks that can be run.

    Attributes:
        name: The suite's name; the first part of a task's full name.
    """

    name: str

    def select(self, names: Iterable[str] = ()) -> list[str]:
        """Return the tasks with these names, each once, or all tasks if there are no names.

        Raises:
            UnknownTaskError: If there is no task of a name.
        """
        ...

    async def run_task(
        self,
        task_id: str,
        *,
        hooks: Iterable[AnyHook] = (),
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        forbid_tools: bool = False,
    ) -> TaskOutcome:
        """Run one task as one operation, and check the result.

        Args:
            task_id: The task.
            hooks: Hooks of this operation.
            dispatcher: An open dispatcher to share with other runs.
            store: The store of the operation.
            forbid_tools: No real tool may run; one that is about to raises `ForbiddenToolError` and is counted.
        """
        ...


class Suite(RunsTasks, Protocol):
    """A suite whose tasks can be mocked, recorded, replayed and judged.

    `hookline.evals.suites.agentdojo` is one; `UserSuite` is for your own.
    """

    @property
    def tool_specs(self) -> Sequence[ToolSpec]:
        """Every tool that a task of this suite can discover."""
        ...

    def prompt(self, task_id: str) -> str:
        """Return the prompt of a task."""
        ...

    def ground_truth(self, task_id: str) -> list[ToolRequest]:
        """Return the calls that solve a task; an empty list if they are not known."""
        ...

    def arrange(self, task_id: str, mocks: ToolMocks) -> None:
        """Add the rules of a task before it runs. A suite without rules does nothing."""
        ...
