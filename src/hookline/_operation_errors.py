"""What is wrong with an operation that cannot be run or resumed. The whole tree stands in `hookline.errors`."""

from __future__ import annotations

from collections.abc import Sequence

from hookline._error_root import HooklineError

__all__ = [
    "DecisionError",
    "MissingHooksError",
    "OperationBusyError",
    "OperationError",
    "OperationExistsError",
    "OperationFinishedError",
    "OperationMismatchError",
    "OperationNotFoundError",
    "StaleStateError",
    "StateFormatError",
]

SHOWN_HOOKS = 20
"""How many missing interceptors a message names; a run may have had thousands."""


class OperationError(HooklineError):
    """An operation cannot be run or resumed in this way.

    Attributes:
        operation_id: The operation.
    """

    def __init__(self, operation_id: str) -> None:
        super().__init__(operation_id)
        self.operation_id = operation_id


class MissingHooksError(HooklineError):
    """An operation would go on without interceptors that it was started with, so it does not go on.

    It is no `OperationError`: the operation can be resumed, by whoever gives the hooks.

    Attributes:
        operation_id: The operation.
        missing: What is missing: `(id, kind, call)` of each interceptor, `("rules.no_wire", "guard", "ToolCall")`.
    """

    def __init__(self, operation_id: str, missing: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(operation_id, missing)
        self.operation_id, self.missing = operation_id, missing

    @property
    def names(self) -> str:
        """What is missing, in words."""
        names = ", ".join(f"{hook_id!r} ({kind} {call})" for hook_id, kind, call in self.missing[:SHOWN_HOOKS])
        more = len(self.missing) - SHOWN_HOOKS
        return f"{names} and {more} more" if more > 0 else names

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} was started with interceptors that are missing here: {self.names}. They "
            "would no longer judge its calls, so it was not resumed, and nothing was changed. Give the same hooks in "
            "`hooks=[...]` or in `Agent(hooks=[...])`, or pass allow_missing_hooks=True to go on without them."
        )


class OperationExistsError(OperationError):
    """The operation id is taken by a live or stored operation."""

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} exists already. Leave `operation_id` out to get a fresh one, "
            "or use `resume_agent` if it waits for a person."
        )


class OperationNotFoundError(OperationError):
    """No operation of that id is in the store."""

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} is not in the store: the id is wrong, it ended and was forgotten, "
            "or it was paused with another `store`."
        )


class OperationFinishedError(OperationError):
    """The operation ended; there is nothing to resume.

    Attributes:
        reason: Why it ended.
    """

    def __init__(self, operation_id: str, reason: str) -> None:
        super().__init__(operation_id)
        self.args = (operation_id, reason)
        self.reason = reason

    def __str__(self) -> str:
        if self.reason == "waiting_for_human":
            return f"Operation {self.operation_id!r} waits for a person: `resume_agent` goes on with it."
        return f"Operation {self.operation_id!r} ended with reason {self.reason!r} and cannot be resumed."


class OperationBusyError(OperationError):
    """Somebody is running or resuming the operation at this moment."""

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} is being run or resumed already; wait for that to return. If the process "
            "that did it has died, `recover_agent` or a `Worker` goes on with it, given a store that knows."
        )


class OperationMismatchError(OperationError):
    """The operation was started by another agent than the one that should resume it.

    Attributes:
        started_by: Id of the agent that started it.
        given: Id of the agent that was given.
    """

    def __init__(self, operation_id: str, started_by: str, given: str) -> None:
        super().__init__(operation_id)
        self.args = (operation_id, started_by, given)
        self.started_by, self.given = started_by, given

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} belongs to agent {self.started_by!r}, not to {self.given!r}; "
            "resume it with the agent that started it."
        )


class StaleStateError(OperationError):
    """The stored state is not the one that the caller had read, so nothing was written.

    Attributes:
        expected: The version that the caller had read; `None` for a new operation.
        found: The version in the store.
    """

    def __init__(self, operation_id: str, expected: int | None, found: int | None) -> None:
        super().__init__(operation_id)
        self.args = (operation_id, expected, found)
        self.expected, self.found = expected, found

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} was changed by somebody else: version {self.found}, "
            f"expected {self.expected}. Nothing was written."
        )


class StateFormatError(OperationError):
    """The stored state was written by a newer version of hookline, which keeps things that this one does not know.

    Attributes:
        found: The version of its layout.
        known: The newest one that this version reads.
    """

    def __init__(self, operation_id: str, found: int, known: int) -> None:
        super().__init__(operation_id)
        self.args = (operation_id, found, known)
        self.found, self.known = found, known

    def __str__(self) -> str:
        if self.found <= self.known:
            return f"What is stored of operation {self.operation_id!r} cannot be read. Nothing was changed."
        return (
            f"Operation {self.operation_id!r} was stored in layout {self.found}; this version of hookline reads up to "
            f"{self.known}. Update hookline here, or resume the operation where it was written. Nothing was changed."
        )


class DecisionError(OperationError):
    """A decision that cannot be taken: its call is not pending, or it is decided twice.

    Attributes:
        problem: What is wrong with it.
        pending: Ids of the calls that wait for a decision.
    """

    def __init__(self, operation_id: str, problem: str, pending: list[str]) -> None:
        super().__init__(operation_id)
        self.args = (operation_id, problem, pending)
        self.problem, self.pending = problem, pending

    def __str__(self) -> str:
        waiting = ", ".join(repr(call) for call in self.pending) or "none"
        return f"Operation {self.operation_id!r}: {self.problem}. Calls that wait for a decision: {waiting}."
