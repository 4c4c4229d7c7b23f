"""The state of an operation as one serialisable struct, where it is kept, and what a person decides about it."""

import abc
import logging
from collections.abc import Callable, Collection, Sequence
from time import perf_counter_ns
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import anyio
import msgspec
from msgspec import UNSET, UnsetType

from hookline.calls import AddedContext, Denial, Message, ToolRequest, ToolSpec, Usage
from hookline.errors import OperationNotFoundError, RunFailedError, StaleStateError
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
    "ModelCallRecord",
    "OfferedTool",
    "OpenStep",
    "OperationResult",
    "OperationState",
    "OperationStore",
    "Reject",
    "RemoteHearer",
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
    """A person approves a pending tool call.

    Attributes:
        tool_call_id: The call.
    """

    tool_call_id: str


class Reject(msgspec.Struct, frozen=True, tag="reject", rename="camel"):
    """A person rejects a pending tool call. The run stops, or continues.

    Attributes:
        tool_call_id: The call.
        reason: Why. The model reads it.
        and_continue: `True` for *reject and continue*: the run continues. `False` for *reject and stop*: the run ends
            with reason `"interrupted"`.
    """

    tool_call_id: str
    reason: str = ""
    and_continue: bool = False


Decision = Approve | Reject


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A call that hooks have judged and that waits for a person, as it is stored.

    Attributes:
        call_index: Its index, which no other call gets.
        metadata: What hooks have noted, as far as JSON can carry it.
        asked_by: The hook that asked the person before inner hooks ran, if one did: its id, and the number of hooks
            with that id before it.
        context: The texts that hooks have added for the model; left out if there are none.
    """

    call_index: int
    metadata: dict[str, Any] = {}
    asked_by: tuple[str, int] | None = None
    context: list[AddedContext] | UnsetType = UNSET


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
        input_from: Where in `messages` begins the first input of the operation, until it is compacted; left out if
            an older version of hookline, or the adapter of a framework, wrote the state.
        denied: Which hook has denied something so that the run is to end.
        context: The texts that hooks of the `AgentCall` have added after the prompt; left out if there are none.
    """

    instructions: str | None = None
    continues: int = 0
    waiting: dict[str, WaitingCall] = {}
    metadata: dict[str, Any] = {}
    offered: list[OfferedTool] | None = None
    offer: str = ""
    said_from: int | None = None
    input_from: int | UnsetType = UNSET
    denied: Denial | None = None
    context: list[AddedContext] | UnsetType = UNSET


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


class CallingOperation(NamedTuple):
    """A run that called an operation, itself or through other runs.

    Attributes:
        operation_id: The run.
        agent_id: Its agent.
    """

    operation_id: str
    agent_id: str


class RemoteHearer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who hears the stored events of an operation in other processes, through a relay.

    Attributes:
        name: The name under which they hear, which `hookline.bus.serve` serves.
        inherit: Whether they hear sub-agents too.
        events: Wire names of the events that they hear; empty for all.
    """

    name: str
    inherit: bool = False
    events: list[str] = []


class BegunCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A call of a tool or sub-agent that has begun, as it is stored.

    Attributes:
        call: The call as it runs; of a sub-agent with its id as `tool_name`.
        call_index: Its index.
        child: Of a sub-agent: the operation that it is.
        ended: Whether its closing event has fired, so that only its result is missing from the conversation.
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
        guides: How often hooks had its model asked again; left out if never.
    """

    index: int
    entered: bool = False
    guides: int | UnsetType = UNSET
    content: str = ""
    reasoning: str = ""
    cost_usd: float = 0.0


class OperationState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of an operation between two steps, as JSON, so that another process can resume it.

    Attributes:
        operation_id: The run.
        agent_id: The agent that runs.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that called this run as a sub-agent.
        retry_of: The operation that this operation retries.
        agent_version: The version of the agent, so that a worker of another version leaves it; `""` for any.
        callers: The runs that called it, the outermost first; left out if there are none.
        hearers: Who hears its stored events in other processes; left out if nobody does.
        tags: Its tags; left out if there are none.
        status: `"running"`, or the reason of its last segment.
        messages: The conversation. While calls wait for a person, it ends with the assistant message that requests
            them.
        open_calls: The tool calls of that message, in the model's order.
        outcomes: Their known outcomes, by tool call id.
        pending: The calls that wait for a person, with the arguments that will run.
        decisions: Decisions so far.
        taking: The decisions that started this segment, until their events have fired.
        steps: Steps so far.
        llm_calls: Model calls so far.
        tool_calls: Tool calls so far.
        usage: Tokens and cost of the model calls.
        call_indices: Number of calls so far, by `toolset/tool_name`.
        last_input_tokens: Input tokens of the last model call.
        last_content: The model's last text.
        error_type: The class name of the exception, if the run ended with one.
        error_message: The message of that exception.
        steering: Changes made by hooks, if any.
        conversation_id: The session of the run.
        traceparents: W3C `traceparent`s of the first and the latest segment, if they were traced.
        waiting_since_unix_nano: When it started to wait for a person, in nanoseconds since 1970.
        active_ms: Duration of its segments.
        hooks: Hooks that are data.
        interceptors: The interceptors of the run, each as `(id, kind, call)`, so that it does not continue without one;
            `None` if an old version of hookline wrote the state.
        begun: Tool and sub-agent calls that were running when the state was written, by tool call id.
        open_step: The step that was running when the state was written.
        framework: The framework that runs it; `""` for hookline's runtime.
        events: Number of numbered events, if the store keeps events.
        version: Number of writes. A store rejects a write that does not follow its stored version.
        format: Version of this format.
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
    retry_of: str | None = None
    agent_version: str = ""
    callers: list[CallingOperation] | UnsetType = UNSET
    hearers: list[RemoteHearer] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    events: int = 0
    version: int = 1
    format: int = FORMAT


class OperationStore(Protocol):
    """The interface of a store for states of operations. `save` must be atomic."""

    async def load(self, operation_id: str) -> OperationState | None:
        """Return the last saved state, or `None`."""
        ...

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        """Write a state if the stored state has the expected version.

        Args:
            state: The new state, with the new `version`.
            expected_version: The version that the caller read; `None` if the operation must be new. A store can allow a
                new operation to reuse the id of a finished one.

        Raises:
            StaleStateError: If the stored version is different. Nothing was written.
        """
        ...


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an operation, as it is stored.

    Attributes:
        number: The number of the event in its operation, from 1.
        type: The type of the event.
        time_unix_nano: When it happened.
        wire: The event as JSON, from `encode`.
    """

    number: int
    type: HookType
    time_unix_nano: int
    wire: bytes


class ModelCallRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model call of an operation, as it is stored.

    Attributes:
        step_index: The step that made it.
        provider: The provider of the model.
        model: The model's name.
        start_unix_nano: When it began, in nanoseconds since 1970.
        duration_ms: How long it took, with its retries.
        input_tokens: Tokens that the model read.
        output_tokens: Tokens that it wrote.
        cost_usd: What the call cost.
        error_type: The class name of the exception that it raised, if it failed.
    """

    step_index: int
    provider: str
    model: str
    start_unix_nano: int
    duration_ms: float
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    error_type: str | None = None


logger = logging.getLogger("hookline")


class DurableStore(abc.ABC):
    """An `OperationStore` that also stores events and running calls, so that an operation survives its process.

    A run writes its state before and after every tool call, with the events since the last write and their deliveries,
    in one transaction. The first write is a `commit` of the whole state; the later ones `append` what is new.
    """

    relays: ClassVar[bool] = False
    """Whether the hearers of a state (`OperationState.hearers`) hear its events: a `Relay` can read them."""
    _writes_whole_states: ClassVar[set[type]] = set()
    """Classes of stores without an `append` of their own that were logged."""

    def check_open(self) -> None:  # noqa: B027 - most have nothing to open
        """Raise if the store cannot be used now. By default, it can.

        Raises:
            HookUsageError: If the store is not open, or belongs to another event loop.
        """

    @abc.abstractmethod
    async def load(self, operation_id: str) -> OperationState | None:
        """Return the last saved state, or `None`."""

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        """Write a state if the stored state has the expected version; see `OperationStore`."""
        await self.commit(state, expected_version=expected_version, entries=())

    @abc.abstractmethod
    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        """Write a state, the events since the last write, and their deliveries, in one transaction.

        While the state is `"running"`, the operation belongs to this process, until the process ends.

        Args:
            state: The new state, with the new `version`. Its `hooks` determine the deliveries.
            expected_version: The version that the caller read; `None` if the operation must be new.
            entries: The events, in order.

        Raises:
            StaleStateError: If the stored version is different. Nothing was written.
            StoreUnavailableError: If the database was unreachable for too long. It is unknown whether the state was
                written.
        """

    async def append(
        self,
        state: OperationState,
        *,
        expected_version: int,
        entries: Sequence[JournalEntry],
        kept_messages: int,
        kept_outcomes: Collection[str],
        model_calls: Sequence[ModelCallRecord] = (),
    ) -> None:
        """Write what a state adds to the stored one, like `commit`.

        A store that overrides this writes an amount that follows what is new, not the length of the conversation.
        `DurableStore` itself writes the whole state with `commit`, logs that once at INFO, and drops `model_calls`.

        Args:
            state: The new state, whole, with the new `version`.
            expected_version: The version that the caller read.
            entries: The events, in order.
            kept_messages: The first messages of `state` that begin the stored conversation too. The other stored
                messages are no longer part of the conversation, as after a compaction.
            kept_outcomes: Ids of the outcomes of `state` that are stored already.
            model_calls: The model calls that ended since the last write.

        Raises:
            StaleStateError: As for `commit`.
            StoreUnavailableError: As for `commit`.
        """
        if self.__class__ not in self._writes_whole_states:
            self._writes_whole_states.add(self.__class__)
            logger.info(
                "%s writes the whole state of an operation at each commit, which is slow for long conversations. "
                "Override `append` to write only what is new.",
                self.__class__.__name__,
            )
        await self.commit(state, expected_version=expected_version, entries=entries)

    @abc.abstractmethod
    async def orphaned(self, operation_id: str) -> bool:
        """Return whether the operation is running according to the store, but in no living process."""

    @abc.abstractmethod
    async def release(self, operation_id: str) -> None:
        """Release a running operation, so that another process can continue it."""

    async def wait_until_stopped(self, operation_id: str) -> OperationState:
        """Wait until an operation has ended or waits for a person, in whatever process it runs.

        `DurableStore` itself loads the state twice a second; a store that is told of changes overrides this.

        Returns:
            Its state.

        Raises:
            OperationNotFoundError: If the operation is not in the store.
        """
        while True:
            state = await self.load(operation_id)
            if state is None:
                raise OperationNotFoundError(operation_id)
            if state.status != "running":
                return state
            await anyio.sleep(0.5)

    @abc.abstractmethod
    async def children(self, operation_id: str) -> list[OperationState]:
        """Return the unfinished operations of sub-agents that this operation called."""


class LiveState(msgspec.Struct, eq=False):
    """The state of a run of this process, which is built when it is read.

    A run saves its state at every step, but the state is rarely read. Copying the conversation each time would make a
    run quadratic in its steps.

    Attributes:
        make: Makes the state, of the given version.
        version: Of the state.
    """

    make: Callable[[int], OperationState]
    version: int

    def read(self) -> OperationState:
        """Return the state of the run as it is now."""
        return self.make(self.version)


class InMemoryStore:
    """A store in the memory of this process, for operations that run or wait for a person.

    Of finished operations it only remembers the reason, for the last `remember` of them.

    Args:
        remember: Number of finished operations to remember.
    """

    def __init__(self, *, remember: int = 1000) -> None:
        self._states: dict[str, OperationState | LiveState] = {}
        self._finished: dict[str, OperationState] = {}
        self._remember = remember

    async def load(self, operation_id: str) -> OperationState | None:
        """Return the state of an operation, up to date while it runs in this process.

        The state of a finished operation only has its ids, status and version.
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
        """Write a state if the stored state has the expected version; a new operation can reuse a finished one's id.

        Raises:
            StaleStateError: If the stored version is different. Nothing was written.
        """
        found = self._states.get(state.operation_id)
        if (found.version if found else None) != expected_version:
            raise StaleStateError(state.operation_id, expected_version, found.version if found else None)
        self._finished.pop(state.operation_id, None)
        if state.status in ("running", "waiting_for_human"):
            self._states[state.operation_id] = state
            return
        self._remember_end(state.operation_id, state.agent_id, state.status, state.version)

    def _finish(
        self, operation_id: str, agent_id: str, reason: CompletionReason, *, expected_version: int | None
    ) -> int:
        """Save the end of a run of this process, of which nothing but the reason is kept.

        Args:
            operation_id: The run.
            agent_id: Its agent.
            reason: Why it ended.
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
        self._remember_end(operation_id, agent_id, reason, (expected_version or 0) + 1)
        return (expected_version or 0) + 1

    def _remember_end(
        self, operation_id: str, agent_id: str, reason: CompletionReason | Literal["running"], version: int
    ) -> None:
        self._states.pop(operation_id, None)
        if not self._states:
            self._states.clear()
        self._finished[operation_id] = OperationState(
            operation_id=operation_id, agent_id=agent_id, status=reason, version=version
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
        operation_id: The run; use it to resume.
        reason: Why the run returned.
        output: The agent's final answer, or its last text if it did not finish.
        messages: The conversation, including the instructions.
        steps: Steps of the operation so far.
        usage: Tokens and cost of the operation so far.
        tool_calls: Tool calls so far.
        pending: The calls that wait for a person.
        error: The exception, if `reason` is `"error"`.
        denied: The hook that denied the run, and its reason.
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
        """Raise the exception of a failed run; otherwise return the result.

        Returns:
            The result, so that you can write `(await exec_agent(...)).raise_for_error().output`.

        Raises:
            BaseException: The run's `error`, if its `reason` is `"error"`; a `RunFailedError` if the exception is not
                in this process.
        """
        if self.reason != "error":
            return self
        raise self.error or RunFailedError("", "")


class Step(msgspec.Struct, eq=False):
    """One step of a run, while it lasts.

    Attributes:
        index: The step, counted from 0.
        started: When it began, in nanoseconds of `perf_counter_ns`.
        type: What it does, as far as it is known.
        content: What the model has said.
        reasoning: The model's reasoning.
        calling: The calls that the model asked for.
        outcomes: The outcomes of the calls that have ended, by tool call id.
        asked: Calls about which a person must decide, by tool call id.
        entered: Whether the hooks of its `StepCall`, if there are any, have let it begin.
        ran: Whether any of its calls was run, answered or denied.
        cost_usd: Cost of its model calls so far, in US dollars.
        guides: How often hooks had the model asked again.
        asking: Whether a model was asked, and has not answered yet: another attempt is the same call.
    """

    index: int
    started: int = msgspec.field(default_factory=perf_counter_ns)
    type: StepType = "call_llm"
    content: str = ""
    reasoning: str = ""
    calling: list[ToolRequest] = []
    outcomes: dict[str, ToolOutcome] = {}
    asked: dict[str, PendingTool] = {}
    entered: bool = False
    ran: bool = False
    cost_usd: float = 0.0
    guides: int = 0
    asking: bool = False

    def results(self) -> list[ToolOutcome]:
        """Return the outcomes for the model, in the order of its calls."""
        results: list[ToolOutcome] = []
        for call in self.calling:
            outcome = self.outcomes.get(call.tool_call_id)
            if outcome is not None:
                results.append(outcome)
        return results


def tool_message(outcome: ToolOutcome) -> Message:
    """Return the message with the outcome of a tool call for the model."""
    return Message(role="tool", content=outcome.content, tool_call_id=outcome.tool_call_id)


class SessionMemory(Protocol):
    """The interface of a store for conversations of sessions."""

    async def load(self, key: str) -> Sequence[Message] | None:
        """Return the last saved conversation of a session, or `None`."""
        ...

    async def save(self, key: str, messages: Sequence[Message]) -> None:
        """Save the conversation of a session, replacing the previous one."""
        ...


class InMemoryHistory:
    """A store for conversations in the memory of this object."""

    def __init__(self) -> None:
        self._conversations: dict[str, tuple[Message, ...]] = {}

    async def load(self, key: str) -> Sequence[Message] | None:
        """Return the last saved conversation of a session, or `None`."""
        return self._conversations.get(key)

    async def save(self, key: str, messages: Sequence[Message]) -> None:
        """Save the conversation of a session, replacing the previous one."""
        self._conversations[key] = tuple(messages)
