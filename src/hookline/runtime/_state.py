"""The state of an operation as one serialisable struct, where it is kept, and what a person decides about it."""

import abc
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from hookline.calls import Denial, Message, ToolRequest, ToolSpec, Usage
from hookline.errors import RunFailedError, StaleStateError
from hookline.events import CompletionReason, HookType, PendingTool, StepType, ToolOutcome
from hookline.webhooks import HookData

__all__ = [
    "FORMAT",
    "Approve",
    "BegunCall",
    "Decision",
    "DurableStore",
    "InMemoryHistory",
    "InMemoryStore",
    "InterceptorKey",
    "JournalEntry",
    "OfferedTool",
    "OpenStep",
    "OperationResult",
    "OperationState",
    "OperationStore",
    "Reject",
    "SessionMemory",
    "Steering",
    "Step",
    "WaitingCall",
    "default_store",
    "tool_message",
]

FORMAT = 3
"""Version of the layout of `OperationState` that this version writes; older ones are read too."""


class Approve(msgspec.Struct, frozen=True, tag="approve", rename="camel"):
    """A person lets a pending tool call run.

    Attributes:
        tool_call_id: The call.
    """

    tool_call_id: str


class Reject(msgspec.Struct, frozen=True, tag="reject", rename="camel"):
    """A person rejects a pending tool call, and stops the run or lets it continue.

    Attributes:
        tool_call_id: The call.
        reason: Why; the model is told.
        and_continue: `True` is *reject and continue*: the run goes on. `False` is *reject and stop*: the run ends with
            reason `"interrupted"`.
    """

    tool_call_id: str
    reason: str = ""
    and_continue: bool = False


Decision = Approve | Reject


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A call that hooks have seen and that waits for a person, as it is stored.

    Attributes:
        call_index: Its index, which nobody else gets.
        metadata: What hooks have noted, as far as JSON can carry it.
        asked_by: Who had the person asked before hooks further inside were heard, if not all were: its id, and how many
            hooks of that id stand before it.
    """

    call_index: int
    metadata: dict[str, Any] = {}
    asked_by: tuple[str, int] | None = None


class OfferedTool(ToolSpec, frozen=True, kw_only=True):
    """A tool that hooks have offered or changed, as it is kept over a pause.

    Attributes:
        needs_approval: Whether a call of it may need a person's approval.
        own: Whether what runs is the agent's own tool or sub-agent of that name.
    """

    needs_approval: bool = False
    own: bool = True


class Steering(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The changes that hooks made to an operation, as they are stored.

    Attributes:
        instructions: The system message, where hooks have changed it.
        continues: How often hooks have continued it.
        waiting: Calls that wait for a person and that hooks have seen already, by tool call id.
        metadata: What hooks of the `AgentCall` have noted, as far as JSON can carry it.
        offered: The tools that the model is offered, where hooks have changed them.
        offer: Names `offered`, so that it is not taken for that of another operation.
        said_from: Where in `messages` begins what the operation itself has said.
        denied: Which hook has denied something so that the run is to end.
    """

    instructions: str | None = None
    continues: int = 0
    waiting: dict[str, WaitingCall] = {}
    metadata: dict[str, Any] = {}
    offered: list[OfferedTool] | None = None
    offer: str = ""
    said_from: int | None = None
    denied: Denial | None = None


class InterceptorKey(NamedTuple):
    """The identity of an interceptor in a stored operation.

    Attributes:
        id: Its id, which need not be unique.
        kind: `"before"`, `"guard"`, `"after"` or `"around"`.
        call: Name of the class of the calls that it judges: `"ToolCall"`.
    """

    id: str
    kind: str
    call: str


class BegunCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A call of a tool or sub-agent that has begun, as it is stored.

    Attributes:
        call: The call as it runs; of a sub-agent with its id as `tool_name`.
        call_index: Its index.
        child: Of a sub-agent: the operation that it is.
        ended: Whether hooks were told of its end too, so that only its result is not in the conversation yet.
    """

    call: ToolRequest
    call_index: int = 1
    child: str | None = None
    ended: bool = False


class OpenStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A step that has begun and not ended, as it is stored.

    Attributes:
        index: The step.
        content: What the model said in it.
        reasoning: What it thought.
        cost_usd: What its model calls cost.
        entered: Whether the hooks of its `StepCall` had let it begin.
    """

    index: int
    entered: bool = False
    content: str = ""
    reasoning: str = ""
    cost_usd: float = 0.0


class OperationState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of an operation between two steps; it goes through JSON, so that another process can resume it.

    Attributes:
        operation_id: The run.
        agent_id: The agent that runs.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that called this one as a sub-agent.
        status: `"running"`, or the reason for which its last segment ended.
        messages: The conversation. While a person is asked it ends with the assistant message that calls the tools.
        open_calls: The tool calls of that message, in the model's order.
        outcomes: What is known of them already, by tool call id.
        pending: Those that wait for a person, with the very arguments that will run.
        decisions: What was decided about them so far.
        taking: The decisions with which this segment was started, until hooks were told of them.
        steps: Steps so far.
        llm_calls: Model calls so far.
        tool_calls: Tool calls so far.
        usage: What the model calls used.
        call_indices: Calls so far by `toolset/tool_name`.
        last_input_tokens: Input tokens of the last model call.
        last_content: What the model said last.
        error_type: The class of the exception with which it ended, if it did.
        error_message: What that exception said.
        steering: What hooks have made of it, where they have.
        conversation_id: The session that it is a task of.
        traceparents: W3C `traceparent` of its first and its latest segment, where they were traced.
        waiting_since_unix_nano: When it began to wait for a person, in nanoseconds since 1970.
        active_ms: How long its segments took.
        hooks: The hooks that travel with it: those that are data.
        interceptors: The interceptors that it was given, each as `(id, kind, call)`, so that it does not go on without
            one of them; `None` if a version of hookline that did not list them wrote it.
        begun: Tools and sub-agents that had begun and not ended when this was written, by tool call id.
        open_step: The step that had been told of and not ended when this was written.
        framework: The framework that runs it; empty for hookline's own loop.
        events: How many of its events are numbered, where a store keeps them.
        version: Counts the writes; a store refuses one that does not follow on the version that it holds.
        format: Version of this layout.
    """

    operation_id: str
    agent_id: str
    user_id: str = ""
    tenant_id: str = ""
    parent_operation_id: str | None = None
    status: CompletionReason | Literal["running"] = "running"
    messages: list[Message] = []
    open_calls: list[ToolRequest] = []
    outcomes: dict[str, ToolOutcome] = {}
    pending: list[PendingTool] = []
    decisions: dict[str, Decision] = {}
    taking: list[Decision] = []
    steps: int = 0
    llm_calls: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    call_indices: dict[str, int] = {}
    last_input_tokens: int = 0
    last_content: str = ""
    error_type: str | None = None
    error_message: str | None = None
    steering: Steering | None = None
    conversation_id: str | None = None
    traceparents: list[str] = []
    waiting_since_unix_nano: int | None = None
    active_ms: float = 0.0
    hooks: list[HookData] = []
    interceptors: list[InterceptorKey] | None = None
    begun: dict[str, BegunCall] = {}
    open_step: OpenStep | None = None
    framework: str = ""
    events: int = 0
    version: int = 1
    format: int = FORMAT


class OperationStore(Protocol):
    """A store for the states of operations. Implementations must make `save` atomic."""

    async def load(self, operation_id: str) -> OperationState | None:
        """Return the last state that was saved, or `None`."""
        ...

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        """Write a state if the stored one is of the expected version.

        Args:
            state: What to write; its `version` is the new one.
            expected_version: What the caller read; `None` if the operation must be new. A store may let a new
                operation take the id of a finished one.

        Raises:
            StaleStateError: If the stored version is another one; nothing was written.
        """
        ...


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an operation, as a store keeps it.

    Attributes:
        number: Its place among the events of the operation, from 1.
        type: Which of the sixteen.
        time_unix_nano: When it happened.
        wire: What `encode` made of it.
    """

    number: int
    type: HookType
    time_unix_nano: int
    wire: bytes


class DurableStore(abc.ABC):
    """An `OperationStore` that also keeps events and calls under way, so that an operation outlives its process.

    A run on such a store writes its state before and after every tool, with the events since the last write, in one
    transaction; deliveries to the hooks of the state are made in the same transaction.
    """

    def check_open(self) -> None:  # noqa: B027 - most have nothing to open
        """Raise if the store cannot be used now; most stores always can be.

        Raises:
            HookUsageError: If it is not open, or not here.
        """

    @abc.abstractmethod
    async def load(self, operation_id: str) -> OperationState | None:
        """Return the last state that was saved, or `None`."""

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        """Write a state if the stored one is of the expected version; see `OperationStore`."""
        await self.commit(state, expected_version=expected_version, entries=())

    @abc.abstractmethod
    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        """Write a state, its events since the last write, and the deliveries that they cause: all or nothing.

        While the state is `"running"` it belongs to this process, until the process is gone.

        Args:
            state: What to write; its `version` is the new one, its `hooks` say what is delivered.
            expected_version: What the caller read; `None` if the operation must be new.
            entries: The events, in order.

        Raises:
            StaleStateError: If the stored version is another one; nothing was written.
            StoreUnavailableError: If the database could not be reached for too long. Whether it was written is then
                unknown.
        """

    @abc.abstractmethod
    async def orphaned(self, operation_id: str) -> bool:
        """Whether the operation is running, but not in any process that is alive."""

    @abc.abstractmethod
    async def release(self, operation_id: str) -> None:
        """Release a running operation that this process will not continue, so that another one may."""

    @abc.abstractmethod
    async def children(self, operation_id: str) -> list[OperationState]:
        """Return the operations that this one called as sub-agents and that have not ended."""


class LiveState:
    """The state of a run of this process, which is put together when somebody asks for it.

    A run saves its state at every step, and hardly anybody reads it: to copy the conversation each time would make a
    run quadratic in its steps.

    Attributes:
        version: Of the state.
    """

    __slots__ = ("_make", "version")

    def __init__(self, make: Callable[[int], OperationState], version: int) -> None:
        self._make = make
        self.version = version

    def read(self) -> OperationState:
        """Return the state of the run as it is now."""
        return self._make(self.version)


class InMemoryStore:
    """Keeps the states of this process's operations while they run or wait for a person.

    A finished operation is forgotten, but for its reason, which the last `remember` of them keep.

    Args:
        remember: Of how many finished operations the reason is kept.
    """

    def __init__(self, *, remember: int = 1000) -> None:
        self._states: dict[str, OperationState | LiveState] = {}
        self._finished: dict[str, OperationState] = {}
        self._remember = remember

    async def load(self, operation_id: str) -> OperationState | None:
        """Return the state of an operation: while it runs in this process, as it is now.

        Of a finished operation there is only its identity, status and version.
        """
        found = self._states.get(operation_id)
        if found is None:
            return self._finished.get(operation_id)
        return found.read() if isinstance(found, LiveState) else found

    def _keep_live(
        self, operation_id: str, make: Callable[[int], OperationState], *, expected_version: int | None
    ) -> int:
        """Keep a run of this process as its own state, instead of a copy of it.

        Args:
            operation_id: The run.
            make: Makes the state, of the given version.
            expected_version: As of `save`.

        Returns:
            The new version.

        Raises:
            StaleStateError: If the stored version is another one; nothing has changed.
        """
        found = self._states.get(operation_id)
        version = found.version if found else None
        if version != expected_version:
            raise StaleStateError(operation_id, expected_version, version)
        if isinstance(found, LiveState):
            found.version += 1
            return found.version
        self._finished.pop(operation_id, None)
        found = self._states[operation_id] = LiveState(make, (expected_version or 0) + 1)
        return found.version

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        """Write a state if the stored one is of the expected version; a new one may replace a finished one.

        Raises:
            StaleStateError: If the stored version is another one; nothing was written.
        """
        found = self._states.get(state.operation_id)
        if (found.version if found else None) != expected_version:
            raise StaleStateError(state.operation_id, expected_version, found.version if found else None)
        self._finished.pop(state.operation_id, None)
        if state.status in ("running", "waiting_for_human"):
            self._states[state.operation_id] = state
            return
        self._states.pop(state.operation_id, None)
        if not self._states:
            self._states.clear()
        self._finished[state.operation_id] = OperationState(
            operation_id=state.operation_id, agent_id=state.agent_id, status=state.status, version=state.version
        )
        while len(self._finished) > self._remember:
            del self._finished[next(iter(self._finished))]


_default = InMemoryStore()


def default_store() -> InMemoryStore:
    """Return the store of this process, which is used where none is given."""
    return _default


class OperationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    Attributes:
        operation_id: The run, to resume it with.
        reason: Why it returned.
        output: The agent's final answer; what it said last, if it did not finish.
        messages: The conversation, the instructions included.
        steps: Steps of the operation so far.
        usage: What its model calls used so far.
        tool_calls: Tool calls so far.
        pending: The calls that wait for a person.
        error: On `reason="error"`: what was raised.
        denied: Which hook refused the run, and why.
    """

    operation_id: str
    reason: CompletionReason
    output: str
    messages: list[Message]
    steps: int
    usage: Usage
    tool_calls: int
    pending: list[PendingTool] = []
    error: BaseException | None = None
    denied: Denial | None = None

    def raise_for_error(self) -> "OperationResult":
        """Raise what a failed run raised, or return the result of any other run.

        Returns:
            The result itself, for `(await exec_agent(...)).raise_for_error().output`.

        Raises:
            BaseException: The run's `error`, if its `reason` is `"error"`; a `RunFailedError` where the exception
                itself is not in this process.
        """
        if self.reason != "error":
            return self
        raise self.error or RunFailedError("", "")


class Step:
    """One step of a run, while it lasts."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.started = perf_counter_ns()
        self.type: StepType = "call_llm"
        self.content = ""
        self.reasoning = ""
        self.calling: list[ToolRequest] = []
        self.outcomes: dict[str, ToolOutcome] = {}
        self.asked: dict[str, PendingTool] = {}
        """Calls about which a person must decide, by tool call id."""
        self.entered = False
        """Whether the hooks of its `StepCall`, if there are any, have let it begin."""
        self.ran = False
        """Whether any of its calls was run, answered or denied."""
        self.cost_usd = 0.0
        self.asking = False
        """Whether a model was asked, and has not answered yet: another attempt is the same call."""

    def results(self) -> list[ToolOutcome]:
        """Return the outcomes that the model is told, in the order in which it asked."""
        return [self.outcomes[call.tool_call_id] for call in self.calling if call.tool_call_id in self.outcomes]


def tool_message(outcome: ToolOutcome) -> Message:
    """Return the message that tells a model the outcome of a tool call."""
    return Message(role="tool", content=outcome.content, tool_call_id=outcome.tool_call_id)


class SessionMemory(Protocol):
    """A store for the conversations of sessions, from one task and process to the next."""

    async def load(self, key: str) -> Sequence[Message] | None:
        """Return the conversation that was saved last under a session's id, or `None`."""
        ...

    async def save(self, key: str, messages: Sequence[Message]) -> None:
        """Keep a session's conversation in the place of the one before."""
        ...


class InMemoryHistory:
    """Keeps conversations for as long as the object lives."""

    def __init__(self) -> None:
        self._conversations: dict[str, tuple[Message, ...]] = {}

    async def load(self, key: str) -> Sequence[Message] | None:
        """Return the conversation that was saved last under a session's id, or `None`."""
        return self._conversations.get(key)

    async def save(self, key: str, messages: Sequence[Message]) -> None:
        """Keep a session's conversation in the place of the one before."""
        self._conversations[key] = tuple(messages)
