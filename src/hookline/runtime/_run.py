"""One segment of a run: what it knows, what it counts, and how it tells the hooks."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns
from typing import Any, Literal

import anyio
import anyio.from_thread
import anyio.lowlevel
import msgspec

from hookline._deadline import runs_on_asyncio
from hookline.calls import Denial, Message, ModelResponse, ToolCall, ToolCalling, Usage
from hookline.dispatcher import HookDispatcher
from hookline.errors import StaleStateError, message_of
from hookline.events import (
    AfterStep,
    BeforeStep,
    CompletionReason,
    Event,
    OnComplete,
    OnError,
    PendingTool,
    StepType,
    ToolOutcome,
)
from hookline.hooks import AnyHook
from hookline.runtime._agent import Agent
from hookline.runtime._state import Decision, OperationState, OperationStore

__all__ = ["OperationResult", "Run", "Step", "new_operation_id"]

DETAIL_CHARACTERS = 8_000
"""How much of a traceback `OnError.error_detail` carries, counted from its end."""


class OperationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

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


def new_operation_id() -> str:
    """An id that no other operation has."""
    return f"op_{os.urandom(16).hex()}"


ExecChild = Callable[["Run", Agent, str, str], Awaitable[OperationResult]]
"""Runs a sub-agent: parent run, sub-agent, instruction, operation id."""


class Step:
    """One turn of the loop, while it lasts."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.started = perf_counter_ns()
        self.type: StepType = "call_llm"
        self.content = ""
        self.reasoning = ""
        self.calling: list[ToolCalling] = []
        self.outcomes: dict[str, ToolOutcome] = {}
        self.cost_usd = 0.0

    def results(self) -> list[ToolOutcome]:
        """What the model was told, in the order in which it asked."""
        return [self.outcomes[call.tool_call_id] for call in self.calling if call.tool_call_id in self.outcomes]


class Run:
    """One segment of an operation: from `exec_agent` or `resume_agent` to its return."""

    def __init__(
        self,
        agent: Agent,
        state: OperationState,
        *,
        version: int | None,
        hooks: Sequence[AnyHook],
        dispatcher: HookDispatcher,
        store: OperationStore,
        drain_timeout: float,
        exec_child: ExecChild,
    ) -> None:
        self.agent = agent
        self.exec_child = exec_child
        self.hooks = hooks
        self.dispatcher = dispatcher
        self.store = store
        self.drain_timeout = drain_timeout
        self.scope = anyio.CancelScope()
        self.claimed = False
        self.finishing = False
        self.task = asyncio.current_task() if runs_on_asyncio() else None
        self.cancellations = self.task.cancelling() if self.task is not None else 0
        self.thread = threading.get_ident()
        self.token = anyio.lowlevel.current_token() if self.task is None else None
        self.started = perf_counter_ns()
        self.ended: int | None = None
        self.step_index: int | None = None

        self.operation_id = state.operation_id
        self.tenant_id = state.tenant_id
        self.user_id = state.user_id
        self.ids: dict[str, Any] = {
            "operation_id": state.operation_id,
            "agent_id": agent.id,
            "user_id": state.user_id,
            "tenant_id": state.tenant_id,
            "parent_operation_id": state.parent_operation_id,
        }
        self.version = version
        self.attempted: OperationState | None = None
        self.earlier_ms = state.active_ms
        self.messages: list[Message] = list(state.messages)
        self.open_calls: list[ToolCalling] = list(state.open_calls)
        self.outcomes: dict[str, ToolOutcome] = dict(state.outcomes)
        self.pending: list[PendingTool] = list(state.pending)
        self.decisions: dict[str, Decision] = dict(state.decisions)
        self.steps = state.steps
        self.llm_calls = state.llm_calls
        self.tool_calls = state.tool_calls
        self.usage = state.usage
        self.call_indices: dict[str, int] = dict(state.call_indices)
        self.last_input_tokens = state.last_input_tokens
        self.last_content = state.last_content

    # Telling the hooks. Callers ask `hooked` first, so that an event is built only if somebody wants it.

    def hooked(self, event: type[Event]) -> bool:
        """Whether anybody wants this event."""
        return self.dispatcher.has_hooks(self.operation_id, event)

    def tell(self, event: Event) -> None:
        """Dispatch an event."""
        self.dispatcher.dispatch(event)

    def before_step(self) -> Step:
        """Start a step."""
        step = Step(self.steps)
        self.step_index = step.index
        self.steps += 1
        if self.hooked(BeforeStep):
            self.tell(BeforeStep(**self.ids, step_index=step.index))
        return step

    def after_step(self, step: Step, *, should_continue: bool) -> None:
        """End a step, whatever happened in it."""
        if not self.hooked(AfterStep):
            return
        now = perf_counter_ns()
        self.tell(
            AfterStep(
                **self.ids,
                step_index=step.index,
                step_type=step.type,
                content=step.content,
                reasoning=step.reasoning,
                tools_calling=step.calling,
                tools_result=step.results(),
                should_continue=should_continue,
                execution_time_ms=(now - step.started) / 1e6,
                elapsed_ms=self.active_ms(),
                step_cost_usd=step.cost_usd,
                total_cost_usd=self.usage.cost_usd,
                total_input_tokens=self.usage.input_tokens,
                total_output_tokens=self.usage.output_tokens,
                total_steps=self.steps,
                total_tool_calls=self.tool_calls,
            )
        )

    def complete(self, reason: CompletionReason, error: BaseException | None) -> None:
        """End the segment: `onComplete`, then `onError` if it failed."""
        failed = reason == "error" and error is not None
        if self.hooked(OnComplete):
            self.tell(
                OnComplete(
                    **self.ids,
                    reason=reason,
                    steps=self.steps,
                    llm_calls=self.llm_calls,
                    tool_calls=self.tool_calls,
                    total_tokens=self.usage.input_tokens + self.usage.output_tokens,
                    cost_usd=self.usage.cost_usd,
                    duration_ms=self.active_ms(),
                    last_assistant_content=self.last_content,
                    error_type=type(error).__name__ if failed else None,
                    error_message=message_of(error) if failed and error else None,
                )
            )
        if failed and error is not None and self.hooked(OnError):
            self.tell(
                OnError(
                    **self.ids,
                    error_message=message_of(error),
                    error_type=type(error).__name__,
                    error_detail="".join(traceback.format_exception(error))[-DETAIL_CHARACTERS:],
                    step_index=self.step_index,
                )
            )

    async def take_turn(self) -> None:
        """Let other tasks run even if model and tools never wait, and take note of an interrupt or a cancellation.

        asyncio asks a task only once to be cancelled; a tool that swallowed that must not keep the run alive.
        """
        if self.task is None:
            await anyio.lowlevel.checkpoint()
            return
        await asyncio.sleep(0)
        if self.task.cancelling() > self.cancellations:
            raise asyncio.CancelledError

    def nobody_cancelled(self) -> bool:
        """Inside of `except CancelledError`, in this task or in that of a parallel call: whether it is the tool's own.

        Only asyncio lets code cancel itself, or raise it by awaiting a future that somebody else cancelled.
        """
        if self.task is None or self.scope.cancel_called:
            return False
        present = asyncio.current_task()
        if present is not None and not present.cancelling():
            return True
        return present is not self.task and self.task.cancelling() <= self.cancellations

    def interrupt(self) -> None:
        """Cancel the segment's scope, from whatever thread."""
        if threading.get_ident() == self.thread:
            self.scope.cancel()
        elif self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.scope.cancel)
        else:
            anyio.from_thread.run_sync(self.scope.cancel, token=self.token)

    # Counting.

    def active_ms(self) -> float:
        """How long the operation has been running, pauses not counted."""
        ended = self.ended or perf_counter_ns()
        return self.earlier_ms + (ended - self.started) / 1e6

    def count_call(self, call: ToolCall) -> None:
        """Take a tool call that will now happen into the totals."""
        self.call_indices[f"{call.identifier}/{call.api_name}"] = call.call_index
        self.tool_calls += 1

    def count(self, step: Step, response: ModelResponse) -> None:
        """Take a model's answer into the step and the totals."""
        usage = response.usage
        self.llm_calls += 1
        self.usage = Usage(
            input_tokens=self.usage.input_tokens + usage.input_tokens,
            output_tokens=self.usage.output_tokens + usage.output_tokens,
            cost_usd=self.usage.cost_usd + usage.cost_usd,
        )
        self.last_input_tokens = usage.input_tokens
        self.last_content = step.content = response.content
        step.reasoning = response.reasoning
        step.cost_usd = usage.cost_usd

    # Keeping.

    async def save(self, status: CompletionReason | Literal["running"]) -> None:
        """Store the state between two steps."""
        if self.attempted is not None:
            await self._look_up(self.attempted)
        expected = self.version
        state = OperationState(
            operation_id=self.operation_id,
            agent_id=self.agent.id,
            user_id=self.user_id,
            tenant_id=self.tenant_id,
            parent_operation_id=self.ids["parent_operation_id"],
            status=status,
            messages=list(self.messages),
            open_calls=list(self.open_calls),
            outcomes=dict(self.outcomes),
            pending=list(self.pending),
            decisions=dict(self.decisions),
            steps=self.steps,
            llm_calls=self.llm_calls,
            tool_calls=self.tool_calls,
            usage=self.usage,
            call_indices=dict(self.call_indices),
            last_input_tokens=self.last_input_tokens,
            last_content=self.last_content,
            active_ms=self.active_ms(),
            version=(expected or 0) + 1,
        )
        self.attempted = state
        try:
            await self.store.save(state, expected_version=expected)
        except StaleStateError:
            self.attempted = None
            raise
        self.attempted = None
        self.version = state.version

    async def _look_up(self, attempted: OperationState) -> None:
        """A write was cut short or failed: find out whether it had happened, and was not somebody else's."""
        stored = await self.store.load(self.operation_id)
        if stored is None or stored.version != attempted.version:
            return
        # A store need not keep more of a finished operation than its status.
        finished = attempted.status not in ("running", "waiting_for_human")
        if stored == attempted or (finished and stored.status == attempted.status):
            self.version = attempted.version

    def result(self, reason: CompletionReason, error: BaseException | None) -> OperationResult:
        """What the caller of the run gets."""
        return OperationResult(
            operation_id=self.operation_id,
            reason=reason,
            output=self.last_content,
            messages=self.conversation(),
            steps=self.steps,
            usage=self.usage,
            tool_calls=self.tool_calls,
            pending=self.undecided() if reason == "waiting_for_human" else [],
            error=error,
        )

    def undecided(self) -> list[PendingTool]:
        """The calls that still wait for a person."""
        return [pending for pending in self.pending if pending.tool_call_id not in self.decisions]

    def conversation(self) -> list[Message]:
        """All messages, with the results known so far of a step that waits for a person."""
        known = [self.outcomes[call.tool_call_id] for call in self.open_calls if call.tool_call_id in self.outcomes]
        return [*self.messages, *(tool_message(outcome) for outcome in known)]

    def close_step(self, unanswered: str) -> None:
        """Append the results of the open calls, one message each, in the model's order.

        Args:
            unanswered: What the model is told of a call that has no result.
        """
        for call in self.open_calls:
            outcome = self.outcomes.get(call.tool_call_id)
            content = outcome.content if outcome is not None else unanswered
            self.messages.append(Message(role="tool", content=content, tool_call_id=call.tool_call_id))
        self.open_calls, self.outcomes, self.pending, self.decisions = [], {}, [], {}


def tool_message(outcome: ToolOutcome) -> Message:
    """The message that tells a model what a tool call came to."""
    return Message(role="tool", content=outcome.content, tool_call_id=outcome.tool_call_id)
