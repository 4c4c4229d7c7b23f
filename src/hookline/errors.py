"""Everything that hookline raises, in one tree.

```
HooklineError
├── HookDefinitionError (ValueError)        a hook that cannot be registered
├── UnsupportedHookError (ValueError)       a hook that another framework would never call
├── HookUsageError (RuntimeError)           a call at a wrong time, or with a wrong value
├── HookError                               a hook stood in the way of a call
│   ├── HookDenied                          it refused
│   ├── HookExecutionError                  it failed, and fails closed
│   ├── HookTimeoutError (TimeoutError)     it took too long: the cause of a HookExecutionError
│   └── HookReturnError (TypeError)         it returned what it may not: the cause of a HookExecutionError
├── PhaseTransitionError (ValueError)       an agent cannot move from this phase to that one
├── EventDecodeError (ValueError)           bytes that are not an event
├── EventEncodeError (ValueError)           an event that JSON cannot carry
├── MissingExtraError (ImportError)         an optional part is not installed
├── AgentDefinitionError (ValueError)       an agent or a tool that cannot work
├── ToolCallError                           why a tool call could not run; the model is told
│   ├── UnknownToolError                    no such tool
│   ├── ToolArgumentsError (ValueError)     arguments that do not fit the tool
│   └── ToolResultError (TypeError)         a result that is neither text nor JSON
├── ModelError                              a model that did not answer
│   ├── TransientModelError                 worth another try
│   └── ModelAnswerError (TypeError)        an answer that is not a `ModelResponse`
├── DeliveryError                           an event did not get where it belongs
│   └── CriticalDeliveryError               and the operation was for that
├── StoreUnavailableError (OSError)         a database that cannot be reached, or is full
│   └── StoreOverloadedError                more waits to be written than may
├── RunFailedError                          a run that failed in another process
├── MissingHooksError                       an operation would go on without interceptors that it was started with
└── OperationError                          the operation cannot be run or resumed like this
    ├── OperationExistsError                its id is taken
    ├── OperationNotFoundError              nobody knows its id
    ├── OperationFinishedError              it ended already
    ├── OperationBusyError                  somebody is running or resuming it
    ├── OperationMismatchError              it belongs to another agent
    ├── StaleStateError                     the stored state changed underneath
    ├── StateFormatError                    a newer version of hookline wrote it
    └── DecisionError                       a decision about a call that is not pending
```

The parts above the core have more, each in its place: `hookline.evals.errors`, and the modules of `hookline.adapters`.

Fields go in, the class writes the sentence; every error pickles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

__all__ = [
    "AgentDefinitionError",
    "CriticalDeliveryError",
    "DecisionError",
    "DeliveryError",
    "EventDecodeError",
    "EventEncodeError",
    "HookDefinitionError",
    "HookDenied",
    "HookError",
    "HookExecutionError",
    "HookReturnError",
    "HookTimeoutError",
    "HookUsageError",
    "HooklineError",
    "MissingExtraError",
    "MissingHooksError",
    "ModelAnswerError",
    "ModelError",
    "OperationBusyError",
    "OperationError",
    "OperationExistsError",
    "OperationFinishedError",
    "OperationMismatchError",
    "OperationNotFoundError",
    "PhaseTransitionError",
    "RunFailedError",
    "StaleStateError",
    "StateFormatError",
    "StoreOverloadedError",
    "StoreUnavailableError",
    "ToolArgumentsError",
    "ToolCallError",
    "ToolResultError",
    "TransientModelError",
    "UnknownToolError",
    "UnsupportedHookError",
    "message_of",
]


class HooklineError(Exception):
    """Anything that hookline raises on purpose."""

    def __init_subclass__(cls) -> None:
        """Name the class by the package that users import it from, where a private module of hookline defines it."""
        super().__init_subclass__()
        package, private, _ = cls.__module__.partition("._")
        if private and package.partition(".")[0] == "hookline":
            cls.__module__ = package


def message_of(error: BaseException) -> str:
    """What an exception says; its class name if it says nothing or fails to."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


class HookError(HooklineError):
    """A hook stood in the way of a call."""


class HookDenied(HookError):
    """A hook refused the call. Not a failure: `__cause__` is set only where the hook failed, and fails closed.

    Attributes:
        hook_id: The hook that refused.
        reason: Why, in its words.
    """

    def __init__(self, hook_id: str, reason: str) -> None:
        super().__init__(hook_id, reason)
        self.hook_id, self.reason = hook_id, reason

    def __str__(self) -> str:
        return f"Hook {self.hook_id!r} denied the call: {self.reason}"


class HookExecutionError(HookError):
    """A hook that fails closed failed, so the call was denied; `__cause__` is what it raised.

    Attributes:
        hook_id: The hook.
        point: The call that it was asked about (`"ToolCall"`).
        kind: How it stood there: `"before"`, `"guard"`, `"after"` or `"around"`.
        problem: What went wrong.
    """

    def __init__(self, hook_id: str, point: str, kind: str, problem: str) -> None:
        super().__init__(hook_id, point, kind, problem)
        self.hook_id, self.point, self.kind, self.problem = hook_id, point, kind, problem

    def __str__(self) -> str:
        return (
            f"Hook {self.hook_id!r} ({self.kind} {self.point}) failed, and it fails closed, so the call was denied: "
            f"{self.problem}. Mend the hook, or register it with on_error='open'."
        )


class HookTimeoutError(HookError, TimeoutError):
    """An interceptor took more time of its own than it had.

    Attributes:
        hook_id: The hook.
        point: The call that it was asked about (`"ToolCall"`).
        timeout: Seconds that it had.
        of_chain: Whether that is what all hooks of the chain had together, its budget.
    """

    def __init__(self, hook_id: str, point: str, timeout: float, of_chain: bool = False) -> None:
        super().__init__(hook_id, point, timeout, of_chain)
        self.hook_id, self.point, self.timeout, self.of_chain = hook_id, point, timeout, of_chain

    def __str__(self) -> str:
        if self.of_chain:
            return (
                f"Hook {self.hook_id!r} on {self.point}: the {self.timeout:g} s are used up that all hooks of the "
                "chain have together; give the chain a larger `budget`"
            )
        return (
            f"Hook {self.hook_id!r} on {self.point} took more than the {self.timeout:g} s of its own time that it had; "
            "give it a longer `timeout`"
        )


class HookReturnError(HookError, TypeError):
    """An interceptor returned something that its kind may not return.

    Attributes:
        hook_id: The hook.
        point: The call that it was asked about (`"ToolCall"`).
        problem: What it returned, and what it may return.
    """

    def __init__(self, hook_id: str, point: str, problem: str) -> None:
        super().__init__(hook_id, point, problem)
        self.hook_id, self.point, self.problem = hook_id, point, problem

    def __str__(self) -> str:
        return f"Hook {self.hook_id!r} on {self.point} {self.problem}"


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


DeliveryCode = Literal[
    "configuration",
    "blocked",
    "network_error",
    "timeout",
    "http_error",
    "gone",
    "response_too_large",
    "invalid_response",
]


class DeliveryError(HooklineError):
    """An event did not get where it belongs, or a receiver gave no valid answer.

    Attributes:
        hook_id: The hook.
        code: What went wrong, to switch on: `"configuration"` (no key, no such variable), `"blocked"` (an address that
            may not be reached), `"network_error"`, `"timeout"`, `"http_error"` (any status but 2xx), `"gone"` (410),
            `"response_too_large"`, `"invalid_response"`.
        problem: What happened, without secrets.
        status_code: What the receiver answered, if it did.
        retry_after: Seconds that the receiver asks to be left alone.
    """

    def __init__(
        self,
        hook_id: str,
        code: DeliveryCode,
        problem: str,
        *,
        status_code: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(hook_id, code, problem)
        self.hook_id, self.code, self.problem = hook_id, code, problem
        self.status_code, self.retry_after = status_code, retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.hook_id, self.code, self.problem), self.__dict__

    def __str__(self) -> str:
        return f"Hook {self.hook_id!r} could not be delivered ({self.code}): {self.problem}"


class CriticalDeliveryError(DeliveryError):
    """A delivery with `fallback="none"` was not handed over, so that the operation has failed."""


class StoreUnavailableError(HooklineError, OSError):
    """A database that cannot be reached, is locked, or is full.

    Attributes:
        store: Which, without its password.
        problem: What it said.
    """

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(store, problem)
        self.store, self.problem = store, problem

    def __str__(self) -> str:
        return f"The store {self.store} cannot be used now: {self.problem}"


class StoreOverloadedError(StoreUnavailableError):
    """More waits to be written than the store was told to hold, and it was told to refuse rather than to wait."""


class HookDefinitionError(HooklineError, ValueError):
    """A hook cannot be registered as it was given.

    Attributes:
        where: Which hook, or which entry of a batch.
        problem: What is wrong, and how to fix it.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class UnsupportedHookError(HooklineError, ValueError):
    """A hook was given to a run of a framework that can never call it.

    Attributes:
        hook_id: The hook.
        what: What it waits for: an event, or an interceptor of a class of calls.
        framework: The framework.
    """

    def __init__(self, hook_id: str, what: str, framework: str) -> None:
        super().__init__(hook_id, what, framework)
        self.hook_id, self.what, self.framework = hook_id, what, framework

    def __str__(self) -> str:
        return (
            f"Hook {self.hook_id!r} would never be called: {self.framework} cannot drive {self.what}. Leave it out, or "
            "attach with best_effort=True to do without it."
        )


class HookUsageError(HooklineError, RuntimeError):
    """Something was called at a time or with a value that makes no sense."""


class EventDecodeError(HooklineError, ValueError):
    """The bytes are not one of the sixteen events.

    Attributes:
        path: Where in the document, as a JSON path (`$.stepIndex`).
        reason: What was found there.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"Not a hookline event: {self.reason} at {self.path}. `hookline.json_schema()` describes what is expected."
        )


class EventEncodeError(HooklineError, ValueError):
    """An event carries a value that JSON cannot.

    Attributes:
        event_type: The event's wire name.
        reason: Which value, in the encoder's words.
    """

    def __init__(self, event_type: str, reason: str) -> None:
        super().__init__(event_type, reason)
        self.event_type, self.reason = event_type, reason

    def __str__(self) -> str:
        return (
            f"A {self.event_type} event cannot be written as JSON: {self.reason}. "
            "Put only JSON values into `args` and `metadata`."
        )


class MissingExtraError(HooklineError, ImportError):
    """An optional part of hookline is used, and what it needs is not installed.

    Attributes:
        extra: The extra to install.
        needed_for: What asked for it.
    """

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(extra, needed_for)
        self.extra, self.needed_for = extra, needed_for

    def __str__(self) -> str:
        return f"{self.needed_for} needs an extra that is not installed: pip install 'hookline[{self.extra}]'"


class AgentDefinitionError(HooklineError, ValueError):
    """An agent or a tool is defined in a way that cannot work.

    Attributes:
        where: Which agent or tool.
        problem: What is wrong, and how to fix it.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class ToolCallError(HooklineError):
    """A tool call could not run as the model asked for it; the model is told and the run goes on."""


class UnknownToolError(ToolCallError):
    """The model asked for a tool that the agent does not have.

    Attributes:
        name: What the model asked for.
        known: The tools that there are.
    """

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"There is no tool {self.name!r}. Tools: {', '.join(self.known) or 'none'}."


class ToolArgumentsError(ToolCallError, ValueError):
    """The arguments do not fit the tool's parameters.

    Attributes:
        tool: The tool's name.
        reason: What does not fit, with its path.
    """

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(tool, reason)
        self.tool, self.reason = tool, reason

    def __str__(self) -> str:
        return f"Invalid arguments for {self.tool}: {self.reason}"


class ToolResultError(ToolCallError, TypeError):
    """A tool returned something that is neither text, nor a `ToolResult`, nor JSON.

    Attributes:
        tool: The tool's name.
        reason: What it returned.
    """

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(tool, reason)
        self.tool, self.reason = tool, reason

    def __str__(self) -> str:
        return f"{self.tool} ran, but its result cannot be shown to a model: {self.reason}"


class ModelError(HooklineError):
    """A model did not give an answer."""


class TransientModelError(ModelError):
    """A model failed for a passing reason (overload, rate limit, broken connection); the call is tried again.

    Args:
        message: What happened.
        retry_after: Seconds that the provider asked to wait; `None` leaves it to the agent's backoff.
    """

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.message, self.retry_after = message, retry_after

    def __str__(self) -> str:
        return self.message


class ModelAnswerError(ModelError, TypeError):
    """A model answered with something that is not a `ModelResponse`.

    Attributes:
        model: The model's name.
        problem: What it answered.
    """

    def __init__(self, model: str, problem: str) -> None:
        super().__init__(model, problem)
        self.model, self.problem = model, problem

    def __str__(self) -> str:
        return f"Model {self.model!r} did not answer with a proper ModelResponse: {self.problem}."


class RunFailedError(HooklineError):
    """A run ended with an error whose exception is not here, because it was raised in another process.

    Attributes:
        error_type: The exception's class name.
        message: What the exception said.
    """

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(error_type, message)
        self.error_type, self.message = error_type, message

    def __str__(self) -> str:
        said = f"{self.error_type or 'an error that is not known'}{f': {self.message}' if self.message else ''}"
        return f"The run failed in another process with {said}. The log of that process has the traceback."


class PhaseTransitionError(HooklineError, ValueError):
    """An agent cannot move from the phase that it is in to the one that was asked for.

    Attributes:
        agent_id: The agent.
        source: The phase that it is in.
        target: The phase that was asked for.
        allowed: The phases that it may move to.
    """

    def __init__(self, agent_id: str, source: str, target: str, allowed: list[str]) -> None:
        super().__init__(agent_id, source, target, allowed)
        self.agent_id, self.source, self.target, self.allowed = agent_id, source, target, allowed

    def __str__(self) -> str:
        return (
            f"Agent {self.agent_id!r} cannot move from {self.source!r} to {self.target!r}; "
            f"from there it may move to {', '.join(self.allowed) or 'nothing'}."
        )
