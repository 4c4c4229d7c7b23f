"""The thirteen phases of an agent, the transitions between them, and the hooks on a transition."""

import abc
import enum
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

__all__ = ["TRANSITIONS", "Phase", "PhaseHandler", "PhaseHook", "PhaseTransition"]


class Phase(enum.StrEnum):
    """The phase that an agent is in."""

    UNINITIALIZED = "uninitialized"
    BOOTSTRAPPING = "bootstrapping"
    IDLE = "idle"
    PROCESSING_USER_INPUT = "processing_user_input"
    AWAITING_LLM_RESPONSE = "awaiting_llm_response"
    ANALYZING_LLM_RESPONSE = "analyzing_llm_response"
    AWAITING_TOOL_APPROVAL = "awaiting_tool_approval"
    TOOL_DENIED = "tool_denied"
    EXECUTING_TOOL = "executing_tool"
    PROCESSING_TOOL_RESULT = "processing_tool_result"
    SHUTTING_DOWN = "shutting_down"
    SHUTDOWN_COMPLETE = "shutdown_complete"
    ERROR = "error"

    @property
    def is_initializing(self) -> bool:
        """Whether the agent is starting."""
        return self is Phase.BOOTSTRAPPING

    @property
    def is_processing(self) -> bool:
        """Whether the agent works on a task."""
        return self in _PROCESSING

    @property
    def is_terminal(self) -> bool:
        """Whether the agent has stopped, until it is started again."""
        return self is Phase.SHUTDOWN_COMPLETE or self is Phase.ERROR


_PROCESSING = frozenset(list(Phase)[3:10])


def _transitions() -> dict[Phase, frozenset[Phase]]:
    every = Phase
    moves: dict[Phase, set[Phase]] = {
        every.UNINITIALIZED: {every.BOOTSTRAPPING},
        every.BOOTSTRAPPING: {every.IDLE},
        # Back to the question, when a task that waited for a person is taken up again.
        every.IDLE: {every.PROCESSING_USER_INPUT, every.AWAITING_TOOL_APPROVAL},
        every.PROCESSING_USER_INPUT: {every.AWAITING_LLM_RESPONSE},
        every.AWAITING_LLM_RESPONSE: {every.ANALYZING_LLM_RESPONSE},
        every.ANALYZING_LLM_RESPONSE: {
            every.AWAITING_TOOL_APPROVAL,
            every.EXECUTING_TOOL,
            every.PROCESSING_USER_INPUT,
        },
        every.AWAITING_TOOL_APPROVAL: {every.EXECUTING_TOOL, every.TOOL_DENIED},
        every.TOOL_DENIED: {every.PROCESSING_USER_INPUT},
        every.EXECUTING_TOOL: {every.PROCESSING_TOOL_RESULT, every.PROCESSING_USER_INPUT},
        every.PROCESSING_TOOL_RESULT: {every.AWAITING_LLM_RESPONSE, every.PROCESSING_USER_INPUT},
        every.SHUTTING_DOWN: {every.SHUTDOWN_COMPLETE},
        every.SHUTDOWN_COMPLETE: {every.UNINITIALIZED},
        every.ERROR: {every.UNINITIALIZED},
    }
    for source, targets in moves.items():
        if source.is_processing:
            targets.add(every.IDLE)
        if not source.is_terminal:
            targets.add(every.ERROR)
            if source is not every.SHUTTING_DOWN:
                targets.add(every.SHUTTING_DOWN)
    return {source: frozenset(targets) for source, targets in moves.items()}


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = MappingProxyType(_transitions())
"""The law: from each phase, the phases that may follow it."""


class PhaseTransition(msgspec.Struct, frozen=True, kw_only=True):
    """An agent has moved from one phase to another.

    Attributes:
        agent_id: The agent.
        operation_id: The run; `""` outside a run.
        source: The previous phase.
        target: The new phase.
        time_unix_nano: When, in nanoseconds since 1970.
        reason: The reason, if one was given.
    """

    hook_type: ClassVar[str] = "phase"

    agent_id: str
    operation_id: str = ""
    source: Phase
    target: Phase
    time_unix_nano: int = msgspec.field(default_factory=time.time_ns)
    reason: str = ""


class PhaseHandler(msgspec.Struct, frozen=True, kw_only=True):
    """A handler and the moves that it handles. `Hooks.on_phase` makes these.

    Attributes:
        id: Name of the hook in logs and records; need not be unique.
        source: The phase that the agent leaves; `None` for any.
        target: The phase that the agent enters; `None` for any.
        handler: `(transition) -> None`, plain or async. Its return value decides nothing.
        timeout: Time limit of an async handler in seconds; `None` for 30, `math.inf` for none.
    """

    id: str
    source: Phase | None
    target: Phase | None
    handler: Callable[[Any], object]
    timeout: float | None = None


class PhaseHook(abc.ABC):
    """Base class of phase hooks: two phases, and the function for a move between them.

    A subclass must define both phases and `execute`. Set the phases as class attributes: `source_phase = None`,
    `target_phase = Phase.IDLE`.

    Attributes:
        source_phase: The phase that the agent leaves; `None` for any.
        target_phase: The phase that the agent enters; `None` for any.
        timeout: Time limit in seconds; `None` for 30, `math.inf` for none.
    """

    timeout: float | None = None

    if TYPE_CHECKING:  # checkers let a subclass override an attribute with one, but not a property
        source_phase: Phase | None
        target_phase: Phase | None
    else:

        @property
        @abc.abstractmethod
        def source_phase(self) -> Phase | None:
            """The phase that the agent leaves; `None` for any."""

        @property
        @abc.abstractmethod
        def target_phase(self) -> Phase | None:
            """The phase that the agent enters; `None` for any."""

    @abc.abstractmethod
    async def execute(self, context: PhaseTransition) -> None:
        """Handle the move. Exceptions are logged.

        Args:
            context: The move.
        """
