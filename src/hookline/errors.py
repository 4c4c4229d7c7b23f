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

from hookline._delivery_errors import (
    CriticalDeliveryError,
    DeliveryError,
    StoreOverloadedError,
    StoreUnavailableError,
)
from hookline._error_root import HooklineError, message_of
from hookline._hook_errors import HookDenied, HookError, HookExecutionError, HookReturnError, HookTimeoutError
from hookline._operation_errors import (
    DecisionError,
    MissingHooksError,
    OperationBusyError,
    OperationError,
    OperationExistsError,
    OperationFinishedError,
    OperationMismatchError,
    OperationNotFoundError,
    StaleStateError,
    StateFormatError,
)

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
