"""The exceptions of hookline's core, and their base class.

```
HooklineError
├── HookDefinitionError (ValueError)        a hook cannot be registered as given
├── UnsupportedHookError (ValueError)       the adapter's framework would never call this hook
├── HookUsageError (RuntimeError)           a function was called at the wrong time, or with a wrong value
├── HookError                               a hook stopped a call
│   ├── HookDenied                          the hook denied the call
│   ├── HookExecutionError                  the hook failed, and it fails closed
│   ├── HookTimeoutError (TimeoutError)     the hook took too long: the cause of a HookExecutionError
│   └── HookReturnError (TypeError)         the hook returned a wrong value: the cause of a HookExecutionError
├── PhaseTransitionError (ValueError)       an agent cannot move from one phase to another
├── EventDecodeError (ValueError)           bytes are not an event
├── EventEncodeError (ValueError)           JSON cannot represent an event
├── MissingExtraError (ImportError)         an optional dependency is not installed
├── AgentDefinitionError (ValueError)       an agent or a tool is defined wrongly
├── ToolCallError                           a tool call could not run; the model reads why
│   ├── UnknownToolError                    the agent has no such tool
│   ├── ToolArgumentsError (ValueError)     the arguments are invalid
│   └── ToolResultError (TypeError)         the result is neither text nor JSON
├── ModelError                              a model call failed
│   ├── TransientModelError                 temporarily: the call is retried
│   └── ModelAnswerError (TypeError)        the model returned something other than a `ModelResponse`
├── DeliveryError                           an event was not delivered to its webhook
│   └── CriticalDeliveryError               and the operation failed because of it
├── StoreUnavailableError (OSError)         a database is unreachable, locked or full
│   └── StoreOverloadedError                too many writes are waiting
├── RunFailedError                          a run failed in another process
├── RunStopped                              a run of another framework was stopped
├── RunPaused                               a run of another framework waits for a person
├── MissingHooksError                       interceptors that an operation was started with are missing
├── FieldNotStoredError                     a hook uses a field that a stored call does not have
└── OperationError                          an operation cannot be run or resumed this way
    ├── OperationExistsError                its id is taken
    ├── OperationNotFoundError              no stored operation has this id
    ├── OperationFinishedError              it has already ended
    ├── OperationBusyError                  it is being run or resumed
    ├── OperationMismatchError              it belongs to another agent
    ├── StaleStateError                     its stored state has changed in the meantime
    ├── StateFormatError                    a newer version of hookline stored it
    └── DecisionError                       a decision is about a call that does not wait
```

`hookline.evals.errors`, `hookline.registry`, `hookline.delivery`, `hookline.store` and the modules of
`hookline.adapters` define more, with the same base class.

A class annotates its fields, and `define_error` gives it a constructor and the sentence that it formats from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

__all__ = [
    "AgentDefinitionError",
    "CriticalDeliveryError",
    "DecisionError",
    "DeliveryError",
    "EventDecodeError",
    "EventEncodeError",
    "FieldNotStoredError",
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
    "RunPaused",
    "RunStopped",
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
    "install_command",
    "message_of",
]


class HooklineError(Exception):
    """Base class of all exceptions of hookline."""

    _sentence: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Name the class by the package that users import it from, where a private module of hookline defines it."""
        super().__init_subclass__()
        package, private, _ = cls.__module__.partition("._")
        if private and package.partition(".")[0] == "hookline":
            cls.__module__ = package

    def __post_init__(self) -> None:
        """Set `args`, which `repr` shows and pickle makes the error from, to the fields, however they were given."""
        values = tuple(getattr(self, name) for name in type(self).__match_args__)  # type: ignore[attr-defined]
        super().__init__(*values)
        self.args = values  # again, since an `OSError` takes its third argument for a file name and drops it here

    def __str__(self) -> str:
        return self._sentence.format_map(vars(self)) if self._sentence else super().__str__()


E = TypeVar("E", bound=HooklineError)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def define_error(sentence: str = "") -> Callable[[type[E]], type[E]]:
    """Give an error class a constructor that takes its annotated fields, by position or by keyword.

    Args:
        sentence: What the error says, with its fields in braces. Leave it out where the class has its own `__str__`.
    """

    def decorate(cls: type[E]) -> type[E]:
        if sentence:
            cls._sentence = sentence
            cls.__str__ = HooklineError.__str__  # type: ignore[method-assign]  # also where a base has words of its own
        return dataclass(eq=False, repr=False)(cls)

    return decorate


def message_of(error: BaseException) -> str:
    """Return an exception's message, or the name of its class if it has none or fails to format it."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


class HookError(HooklineError):
    """A hook stopped a call."""


@define_error("Hook {hook_id!r} denied the call: {reason}")
class HookDenied(HookError):
    """A hook denied the call. `__cause__` is set if the hook failed; otherwise it decided so.

    Attributes:
        hook_id: The hook that denied the call.
        reason: Why.
    """

    hook_id: str
    reason: str


@define_error(
    "Hook {hook_id!r} ({kind} {point}) failed, and it fails closed, so the call was denied: {problem}. "
    "Fix the hook, or register it with on_error='open'."
)
class HookExecutionError(HookError):
    """A hook that fails closed has failed, so the call was denied; `__cause__` is the exception of the hook.

    Attributes:
        hook_id: The hook.
        point: The class of the call (`"ToolCall"`).
        kind: The kind of the hook: `"before"`, `"guard"`, `"after"` or `"around"`.
        problem: What went wrong.
    """

    hook_id: str
    point: str
    kind: str
    problem: str


@define_error()
class HookTimeoutError(HookError, TimeoutError):
    """An interceptor exceeded its timeout, or its chain exceeded its budget. Both limit own time only.

    Attributes:
        hook_id: The hook.
        point: The class of the call (`"ToolCall"`).
        timeout: The limit in seconds.
        of_chain: Whether the limit is the `budget` that all hooks of the chain share.
    """

    hook_id: str
    point: str
    timeout: float
    of_chain: bool = False

    def __str__(self) -> str:
        if self.of_chain:
            return (
                f"Hook {self.hook_id!r} on {self.point}: the hooks of the chain took more than their budget of "
                f"{self.timeout:g} s; give the chain a larger `budget`"
            )
        return (
            f"Hook {self.hook_id!r} on {self.point} took more than its timeout of {self.timeout:g} s; give it a longer "
            "`timeout`"
        )


@define_error("Hook {hook_id!r} on {point} {problem}")
class HookReturnError(HookError, TypeError):
    """An interceptor returned a value that its kind must not return.

    Attributes:
        hook_id: The hook.
        point: The class of the call (`"ToolCall"`).
        problem: The value, and the values that are allowed.
    """

    hook_id: str
    point: str
    problem: str


@define_error()
class OperationError(HooklineError):
    """An operation cannot be run or resumed this way.

    Attributes:
        operation_id: The operation.
    """

    operation_id: str


@define_error("No store keeps `{field}`, so the call cannot be judged afterwards by a hook that uses it.")
class FieldNotStoredError(HooklineError):
    """A hook that judges a stored call uses a field that the store does not have.

    Attributes:
        field: The class and the field, such as `"ModelCall.settings"`.
    """

    field: str


SHOWN_HOOKS = 20
"""Number of missing interceptors that a message names; a run may have thousands."""


@define_error()
class MissingHooksError(HooklineError):
    """Interceptors that an operation was started with are missing, so it was not resumed.

    This is not an `OperationError`, since the operation can be resumed with those hooks.

    Attributes:
        operation_id: The operation.
        missing: The missing interceptors as `(id, kind, call)`: `("rules.no_wire", "guard", "ToolCall")`.
    """

    operation_id: str
    missing: Sequence[tuple[str, str, str]]

    @property
    def names(self) -> str:
        """The missing interceptors as text."""
        names = ", ".join(f"{hook_id!r} ({kind} {call})" for hook_id, kind, call in self.missing[:SHOWN_HOOKS])
        more = len(self.missing) - SHOWN_HOOKS
        return f"{names} and {more} more" if more > 0 else names

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} was started with interceptors that are missing here: {self.names}. "
            "They would not check its calls, so it was not resumed, and nothing was changed. Pass the same "
            "hooks in `hooks=[...]` or `Agent(hooks=[...])`, or pass allow_missing_hooks=True to go on without them."
        )


@define_error(
    "Operation {operation_id!r} exists already. Omit `operation_id` to get a new one, or use `resume_agent` if the "
    "operation waits for a person."
)
class OperationExistsError(OperationError):
    """A live or stored operation already has this id."""


@define_error(
    "Operation {operation_id!r} is not in the store. Check the id, and pass the `store` that the operation was started "
    "with. The default store remembers only the last 1,000 ended operations."
)
class OperationNotFoundError(OperationError):
    """The store has no operation with this id."""


@define_error()
class OperationFinishedError(OperationError):
    """The operation has ended, so it cannot be resumed.

    Attributes:
        reason: Why it ended.
    """

    reason: str

    def __str__(self) -> str:
        if self.reason == "waiting_for_human":
            return f"Operation {self.operation_id!r} waits for a person. Use `resume_agent` to continue it."
        return f"Operation {self.operation_id!r} ended with reason {self.reason!r} and cannot be resumed."


@define_error(
    "Operation {operation_id!r} is already being run or resumed; wait until that returns. If its process has died and "
    "the store is durable, continue it with `recover_agent` or a `Worker`."
)
class OperationBusyError(OperationError):
    """The operation is being run or resumed."""


@define_error(
    "Operation {operation_id!r} belongs to agent {started_by!r}, not to {given!r}. Resume it with the agent that "
    "started it."
)
class OperationMismatchError(OperationError):
    """The operation was started by another agent.

    Attributes:
        started_by: Id of the agent that started it.
        given: Id of the agent that was to resume it.
    """

    started_by: str
    given: str


@define_error(
    "Operation {operation_id!r} has changed in the store: it has version {found}, expected {expected}. Nothing was "
    "written. Load the state again."
)
class StaleStateError(OperationError):
    """The stored state has changed since the caller read it, so nothing was written.

    Attributes:
        expected: The version that the caller read; `None` for a new operation.
        found: The version in the store.
    """

    expected: int | None
    found: int | None


@define_error()
class StateFormatError(OperationError):
    """The stored state cannot be read: a newer version of hookline wrote it, or it is damaged.

    Attributes:
        found: The version of its format.
        known: The newest format that this version of hookline reads.
    """

    found: int
    known: int

    def __str__(self) -> str:
        if self.found <= self.known:
            return f"The stored state of operation {self.operation_id!r} is damaged. Nothing was changed."
        return (
            f"Operation {self.operation_id!r} was stored by a newer version of hookline, in format {self.found}; this "
            f"version reads formats up to {self.known}. Update hookline. Nothing was changed."
        )


@define_error()
class DecisionError(OperationError):
    """A decision is about a call that does not wait, or that is already decided.

    Attributes:
        problem: What is wrong with the decision.
        pending: Ids of the calls that wait for a decision.
    """

    problem: str
    pending: list[str]

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


@define_error("Hook {hook_id!r} could not be delivered ({code}): {problem}")
class DeliveryError(HooklineError):
    """An event was not delivered to its webhook, or the receiver's answer was invalid.

    Attributes:
        hook_id: The hook.
        code: What went wrong, for programs: `"configuration"` (a missing key or variable), `"blocked"` (a forbidden
            address), `"network_error"`, `"timeout"`, `"http_error"` (any status but 2xx), `"gone"` (410),
            `"response_too_large"`, `"invalid_response"`.
        problem: What happened, without secrets.
        status_code: The status of the receiver's answer, if there was one.
        retry_after: Seconds to wait before the next attempt, if the receiver said so.
    """

    hook_id: str
    code: DeliveryCode
    problem: str
    status_code: int | None = field(default=None, kw_only=True)
    retry_after: float | None = field(default=None, kw_only=True)


class CriticalDeliveryError(DeliveryError):
    """A webhook with `fallback="none"` was not delivered, so its operation failed."""


@define_error("The store {store} cannot be used now: {problem}")
class StoreUnavailableError(HooklineError, OSError):
    """A database cannot be reached, is locked, or is full.

    Attributes:
        store: Its URL, without the password.
        problem: The message of the database.
    """

    store: str
    problem: str


class StoreOverloadedError(StoreUnavailableError):
    """A store with `overflow="refuse"` has too many pending writes."""


@define_error("{where}: {problem}")
class HookDefinitionError(HooklineError, ValueError):
    """A hook is invalid and was not registered.

    Attributes:
        where: The hook, or the entry of a list.
        problem: What is wrong, and how to fix it.
    """

    where: str
    problem: str


@define_error(
    "Hook {hook_id!r} would never be called: {framework} cannot drive {what}. Leave it out, or pass best_effort=True "
    "to ignore it."
)
class UnsupportedHookError(HooklineError, ValueError):
    """A hook was given to a framework that can never call it.

    Attributes:
        hook_id: The hook.
        what: The event or the kind of interceptor that the framework does not support.
        framework: The framework.
    """

    hook_id: str
    what: str
    framework: str


class HookUsageError(HooklineError, RuntimeError):
    """A function was called at the wrong time, or with a wrong value."""


@define_error("Not a hookline event: {reason} at {path}. See `hookline.json_schema()` for the expected format.")
class EventDecodeError(HooklineError, ValueError):
    """The bytes are not one of the sixteen events.

    Attributes:
        path: The place in the document, as a JSON path (`$.stepIndex`).
        reason: What is wrong there.
    """

    path: str
    reason: str


@define_error(
    "A {event_type} event cannot be written as JSON: {reason}. Put only JSON values into `args` and `metadata`."
)
class EventEncodeError(HooklineError, ValueError):
    """An event has a value that JSON cannot represent.

    Attributes:
        event_type: The event's wire name.
        reason: The message of the encoder, which names the value.
    """

    event_type: str
    reason: str


def install_command(extra: str) -> str:
    """Return the command that installs an extra from the place where hookline was installed from.

    Source:
        PEP 610: `direct_url.json` says whether that was a folder, an archive or a repository; an index leaves no such
        file.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # most programs need none of these
    from json import loads
    from shlex import quote
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        installed = distribution("hookline")
        installer = (installed.read_text("INSTALLER") or "").strip()
        origin = loads(installed.read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        installer, origin = "", {}
    pip = "uv pip install" if installer == "uv" else "pip install"
    url, folder, repository = origin.get("url", ""), origin.get("dir_info"), origin.get("vcs_info")
    if folder is not None:
        path = url2pathname(urlsplit(url).path)
        return f"{pip} {'-e ' if folder.get('editable') else ''}{quote(f'{path}[{extra}]')}"
    if repository is not None:
        url = f"{repository['vcs']}+{url}@{repository.get('requested_revision') or repository['commit_id']}"
    return f"{pip} {quote(f'hookline[{extra}] @ {url}' if url else f'hookline[{extra}]')}"


@define_error()
class MissingExtraError(HooklineError, ImportError):
    """A part of hookline was used whose packages are not installed.

    Attributes:
        extra: The extra to install.
        needed_for: The part that needs it.
    """

    extra: str
    needed_for: str

    def __str__(self) -> str:
        return f"{self.needed_for} needs an extra that is not installed: {install_command(self.extra)}"


@define_error("{where}: {problem}")
class AgentDefinitionError(HooklineError, ValueError):
    """The definition of an agent or a tool is invalid.

    Attributes:
        where: The agent or tool.
        problem: What is wrong, and how to fix it.
    """

    where: str
    problem: str


class ToolCallError(HooklineError):
    """A tool call could not run. The model reads why, and the run continues."""


@define_error()
class UnknownToolError(ToolCallError):
    """The model called a tool that the agent does not have.

    Attributes:
        name: The name in the model's call.
        known: The names of the agent's tools.
    """

    name: str
    known: list[str]

    def __str__(self) -> str:
        return f"There is no tool {self.name!r}. Tools: {', '.join(self.known) or 'none'}."


@define_error("Invalid arguments for {tool}: {reason}")
class ToolArgumentsError(ToolCallError, ValueError):
    """The arguments of a tool call are invalid.

    Attributes:
        tool: The tool's name.
        reason: What is invalid, with its path.
    """

    tool: str
    reason: str


@define_error("{tool} ran, but its result cannot be shown to a model: {reason}")
class ToolResultError(ToolCallError, TypeError):
    """A tool returned a value that is neither text, nor a `ToolResult`, nor JSON.

    Attributes:
        tool: The tool's name.
        reason: The value that it returned.
    """

    tool: str
    reason: str


class ModelError(HooklineError):
    """A model call failed."""


@define_error("{message}")
class TransientModelError(ModelError):
    """A model call failed temporarily (overload, rate limit, broken connection) and is retried.

    Attributes:
        message: What happened.
        retry_after: Seconds to wait before the retry, if the provider said so; `None` for the agent's backoff.
    """

    message: str = ""
    retry_after: float | None = None


@define_error("Model {model!r} did not return a valid ModelResponse: {problem}.")
class ModelAnswerError(ModelError, TypeError):
    """A model returned something other than a valid `ModelResponse`.

    Attributes:
        model: The model's name.
        problem: What is wrong with the value.
    """

    model: str
    problem: str


@define_error()
class RunFailedError(HooklineError):
    """A run failed in another process, so its exception is not available here.

    Attributes:
        error_type: The exception's class name.
        message: The exception's message.
    """

    error_type: str
    message: str

    def __str__(self) -> str:
        error = f"{self.error_type or 'an unknown error'}{f': {self.message}' if self.message else ''}"
        return f"The run failed in another process with {error}. The log of that process has the traceback."


@define_error("{reason}")
class RunStopped(HooklineError):
    """A run of another framework was stopped by a hook, a person's rejection, or `interrupt`.

    All adapters raise it. If a framework has an error class of its own for this, the adapter raises a subclass of both.

    Attributes:
        reason: The reason.
        hook_id: The hook's id; `None` if a person or `interrupt` ended the run.
    """

    reason: str
    hook_id: str | None = None


@define_error()
class RunPaused(HooklineError):
    """A run of another framework, or of your own loop, waits for a person to decide about tool calls.

    Attributes:
        operation_id: The run.
        pending: The waiting calls, each a `PendingTool` with the id for `Approve` and `Reject`.
    """

    operation_id: str
    pending: Sequence[Any]

    def __str__(self) -> str:
        names = ", ".join(f"{call.tool_call_id!r} ({call.tool_name})" for call in self.pending)
        return (
            f"Run {self.operation_id!r} waits for a person to decide about {names}. To continue, here or in another "
            f"process, open it again with operation_id={self.operation_id!r} and the same store and hooks, and call "
            "`run.resume([Approve(...)])` or `run.resume([Reject(...)])`."
        )


@define_error()
class PhaseTransitionError(HooklineError, ValueError):
    """An agent cannot move from its current phase to the requested one.

    Attributes:
        agent_id: The agent.
        source: Its current phase.
        target: The requested phase.
        allowed: The phases that it can move to.
    """

    agent_id: str
    source: str
    target: str
    allowed: list[str]

    def __str__(self) -> str:
        return (
            f"Agent {self.agent_id!r} cannot move from {self.source!r} to {self.target!r}; "
            f"from there it may move to {', '.join(self.allowed) or 'nothing'}."
        )
