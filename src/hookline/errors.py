"""The exceptions of the core in one tree, and their base class.

```
HooklineError
├── HookDefinitionError (ValueError)        a hook cannot be registered as given
├── UnsupportedHookError (ValueError)       another framework would never call this hook
├── HookUsageError (RuntimeError)           a call at the wrong time, or with a wrong value
├── HookError                               a hook stopped a call
│   ├── HookDenied                          the hook refused the call
│   ├── HookExecutionError                  the hook failed, and it fails closed
│   ├── HookTimeoutError (TimeoutError)     the hook took too long: the cause of a HookExecutionError
│   └── HookReturnError (TypeError)         the hook returned a wrong value: the cause of a HookExecutionError
├── PhaseTransitionError (ValueError)       an agent cannot move from one phase to another
├── EventDecodeError (ValueError)           bytes that are not an event
├── EventEncodeError (ValueError)           an event that JSON cannot represent
├── MissingExtraError (ImportError)         an optional dependency is not installed
├── AgentDefinitionError (ValueError)       an agent or a tool that cannot work
├── ToolCallError                           a tool call could not run; the model is told why
│   ├── UnknownToolError                    the agent has no such tool
│   ├── ToolArgumentsError (ValueError)     the arguments do not fit the tool
│   └── ToolResultError (TypeError)         the result is neither text nor JSON
├── ModelError                              a model gave no answer
│   ├── TransientModelError                 for a passing reason: the call is tried again
│   └── ModelAnswerError (TypeError)        it answered with something other than a `ModelResponse`
├── DeliveryError                           an event was not delivered to its webhook
│   └── CriticalDeliveryError               and the operation fails because of it
├── StoreUnavailableError (OSError)         a database cannot be reached, or is full
│   └── StoreOverloadedError                more writes are waiting than allowed
├── RunFailedError                          a run failed in another process
├── RunStopped                              a hook or a person ended a run of another framework
├── RunPaused                               a run of another framework waits for a person
├── MissingHooksError                       an operation was started with interceptors that are missing here
└── OperationError                          an operation cannot be run or resumed this way
    ├── OperationExistsError                its id is taken
    ├── OperationNotFoundError              no stored operation has this id
    ├── OperationFinishedError              it has already ended
    ├── OperationBusyError                  it is being run or resumed
    ├── OperationMismatchError              it belongs to another agent
    ├── StaleStateError                     its stored state has changed in the meantime
    ├── StateFormatError                    a newer version of hookline stored it
    └── DecisionError                       a decision about a call that is not pending
```

The parts above the core have more: `hookline.evals.errors`, `hookline.registry`, `hookline.delivery`, `hookline.store`
and the modules of `hookline.adapters`. They have the same base class.

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
    """Base class of every exception that hookline raises on purpose."""

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
    """A hook refused the call. This is no failure: `__cause__` is set only where the hook failed, and fails closed.

    Attributes:
        hook_id: The hook that refused.
        reason: The reason that it gave.
    """

    hook_id: str
    reason: str


@define_error(
    "Hook {hook_id!r} ({kind} {point}) failed, and it fails closed, so the call was denied: {problem}. "
    "Mend the hook, or register it with on_error='open'."
)
class HookExecutionError(HookError):
    """A hook that fails closed failed, so the call was denied; `__cause__` is what it raised.

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
    """An interceptor took more time of its own than it had.

    Attributes:
        hook_id: The hook.
        point: The class of the call (`"ToolCall"`).
        timeout: Seconds that it had.
        of_chain: Whether these are the `budget` of the chain, which all its hooks share.
    """

    hook_id: str
    point: str
    timeout: float
    of_chain: bool = False

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


@define_error("Hook {hook_id!r} on {point} {problem}")
class HookReturnError(HookError, TypeError):
    """An interceptor returned something that its kind may not return.

    Attributes:
        hook_id: The hook.
        point: The class of the call (`"ToolCall"`).
        problem: What it returned, and what it may return.
    """

    hook_id: str
    point: str
    problem: str


@define_error()
class OperationError(HooklineError):
    """An operation cannot be run or resumed in this way.

    Attributes:
        operation_id: The operation.
    """

    operation_id: str


SHOWN_HOOKS = 20
"""How many missing interceptors a message names; a run may have had thousands."""


@define_error()
class MissingHooksError(HooklineError):
    """An operation was started with interceptors that are missing here, so it was not resumed.

    This is no `OperationError`: the operation can be resumed with those hooks.

    Attributes:
        operation_id: The operation.
        missing: The missing interceptors as `(id, kind, call)`: `("rules.no_wire", "guard", "ToolCall")`.
    """

    operation_id: str
    missing: Sequence[tuple[str, str, str]]

    @property
    def names(self) -> str:
        """The missing interceptors in words."""
        names = ", ".join(f"{hook_id!r} ({kind} {call})" for hook_id, kind, call in self.missing[:SHOWN_HOOKS])
        more = len(self.missing) - SHOWN_HOOKS
        return f"{names} and {more} more" if more > 0 else names

    def __str__(self) -> str:
        return (
            f"Operation {self.operation_id!r} was started with interceptors that are missing here: {self.names}. They "
            "would no longer judge its calls, so it was not resumed, and nothing was changed. Give the same hooks in "
            "`hooks=[...]` or in `Agent(hooks=[...])`, or pass allow_missing_hooks=True to go on without them."
        )


@define_error(
    "Operation {operation_id!r} exists already. Leave `operation_id` out to get a fresh one, or use `resume_agent` if "
    "it waits for a person."
)
class OperationExistsError(OperationError):
    """A live or stored operation already has this id."""


@define_error(
    "Operation {operation_id!r} is not in the store: the id is wrong, it ended and was forgotten, or it was paused "
    "with another `store`."
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
            return f"Operation {self.operation_id!r} waits for a person: `resume_agent` goes on with it."
        return f"Operation {self.operation_id!r} ended with reason {self.reason!r} and cannot be resumed."


@define_error(
    "Operation {operation_id!r} is being run or resumed already; wait for that to return. If the process that did it "
    "has died, `recover_agent` or a `Worker` goes on with it, if its store is a durable one."
)
class OperationBusyError(OperationError):
    """The operation is being run or resumed at this moment."""


@define_error(
    "Operation {operation_id!r} belongs to agent {started_by!r}, not to {given!r}; resume it with the agent that "
    "started it."
)
class OperationMismatchError(OperationError):
    """The operation was started by another agent than the one that should resume it.

    Attributes:
        started_by: Id of the agent that started it.
        given: Id of the agent that should resume it.
    """

    started_by: str
    given: str


@define_error(
    "Operation {operation_id!r} was changed by somebody else: version {found}, expected {expected}. "
    "Nothing was written."
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
        found: The version of its layout.
        known: The newest layout that this version of hookline reads.
    """

    found: int
    known: int

    def __str__(self) -> str:
        if self.found <= self.known:
            return f"What is stored of operation {self.operation_id!r} cannot be read. Nothing was changed."
        return (
            f"Operation {self.operation_id!r} was stored in layout {self.found}; this version of hookline reads up to "
            f"{self.known}. Update hookline here, or resume the operation where it was written. Nothing was changed."
        )


@define_error()
class DecisionError(OperationError):
    """A decision is about a call that is not pending, or a call is decided twice.

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
    """An event was not delivered to its webhook, or the receiver gave no valid answer.

    Attributes:
        hook_id: The hook.
        code: What went wrong, to switch on: `"configuration"` (no key, no such variable), `"blocked"` (an address that
            may not be reached), `"network_error"`, `"timeout"`, `"http_error"` (any status but 2xx), `"gone"` (410),
            `"response_too_large"`, `"invalid_response"`.
        problem: What happened, without secrets.
        status_code: The status of the receiver's answer, if there was one.
        retry_after: Seconds that the receiver asks to be left alone.
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
        problem: What the database said.
    """

    store: str
    problem: str


class StoreOverloadedError(StoreUnavailableError):
    """A store that was told to refuse rather than wait has more pending writes than it may hold."""


@define_error("{where}: {problem}")
class HookDefinitionError(HooklineError, ValueError):
    """A hook cannot be registered as it was given.

    Attributes:
        where: Which hook, or which entry of a batch.
        problem: What is wrong, and how to fix it.
    """

    where: str
    problem: str


@define_error(
    "Hook {hook_id!r} would never be called: {framework} cannot drive {what}. Leave it out, or attach with "
    "best_effort=True to do without it."
)
class UnsupportedHookError(HooklineError, ValueError):
    """A hook was given to a run of a framework that can never call it.

    Attributes:
        hook_id: The hook.
        what: The event or the kind of interceptor that the framework does not have.
        framework: The framework.
    """

    hook_id: str
    what: str
    framework: str


class HookUsageError(HooklineError, RuntimeError):
    """Something was called at a time or with a value that makes no sense."""


@define_error("Not a hookline event: {reason} at {path}. `hookline.json_schema()` describes what is expected.")
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
        reason: Which value, in the encoder's words.
    """

    event_type: str
    reason: str


def install_command(extra: str) -> str:
    """Return the command that installs an extra of hookline from where hookline itself was installed.

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
    """An optional part of hookline is used, and the packages that it needs are not installed.

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
    """An agent or a tool is defined in a way that cannot work.

    Attributes:
        where: Which agent or tool.
        problem: What is wrong, and how to fix it.
    """

    where: str
    problem: str


class ToolCallError(HooklineError):
    """A tool call could not run as the model asked for it; the model is told why, and the run goes on."""


@define_error()
class UnknownToolError(ToolCallError):
    """The model asked for a tool that the agent does not have.

    Attributes:
        name: The name that the model gave.
        known: The names of the agent's tools.
    """

    name: str
    known: list[str]

    def __str__(self) -> str:
        return f"There is no tool {self.name!r}. Tools: {', '.join(self.known) or 'none'}."


@define_error("Invalid arguments for {tool}: {reason}")
class ToolArgumentsError(ToolCallError, ValueError):
    """The arguments do not fit the tool's parameters.

    Attributes:
        tool: The tool's name.
        reason: What does not fit, with its path.
    """

    tool: str
    reason: str


@define_error("{tool} ran, but its result cannot be shown to a model: {reason}")
class ToolResultError(ToolCallError, TypeError):
    """A tool returned something that is neither text, nor a `ToolResult`, nor JSON.

    Attributes:
        tool: The tool's name.
        reason: What it returned.
    """

    tool: str
    reason: str


class ModelError(HooklineError):
    """A model did not give an answer."""


@define_error("{message}")
class TransientModelError(ModelError):
    """A model failed for a passing reason (overload, rate limit, broken connection); the call is tried again.

    Attributes:
        message: What happened.
        retry_after: Seconds that the provider asked to wait; `None` leaves it to the agent's backoff.
    """

    message: str = ""
    retry_after: float | None = None


@define_error("Model {model!r} did not answer with a proper ModelResponse: {problem}.")
class ModelAnswerError(ModelError, TypeError):
    """A model answered with something that is not a `ModelResponse`.

    Attributes:
        model: The model's name.
        problem: What it answered.
    """

    model: str
    problem: str


@define_error()
class RunFailedError(HooklineError):
    """A run failed in another process, so the exception itself is not here.

    Attributes:
        error_type: The exception's class name.
        message: The exception's message.
    """

    error_type: str
    message: str

    def __str__(self) -> str:
        error = f"{self.error_type or 'an error that is not known'}{f': {self.message}' if self.message else ''}"
        return f"The run failed in another process with {error}. The log of that process has the traceback."


@define_error("{reason}")
class RunStopped(HooklineError):
    """A hook or a person ended a run of another framework, which has no result for that.

    Attributes:
        reason: The reason.
        hook_id: The hook's id; `None` if a person ended the run.
    """

    reason: str
    hook_id: str | None = None


@define_error()
class RunPaused(HooklineError):
    """A run of another framework, or of a loop of your own, waits for a person to decide about tool calls.

    Attributes:
        operation_id: The run.
        pending: The calls, each a `PendingTool`, with the ids to name in `Approve` and `Reject`.
    """

    operation_id: str
    pending: Sequence[Any]

    def __str__(self) -> str:
        names = ", ".join(f"{call.tool_call_id!r} ({call.tool_name})" for call in self.pending)
        return (
            f"Run {self.operation_id!r} waits for a person to decide about {names}. To go on, here or in another "
            f"process, open it again with operation_id={self.operation_id!r} and the same store and hooks, and call "
            "`run.resume([Approve(...)])` or `run.resume([Reject(...)])`."
        )


@define_error()
class PhaseTransitionError(HooklineError, ValueError):
    """An agent cannot move from its present phase to the one that was asked for.

    Attributes:
        agent_id: The agent.
        source: Its present phase.
        target: The phase that was asked for.
        allowed: The phases that it may move to.
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
