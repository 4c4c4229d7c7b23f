"""A run of hookline around one run of the OpenAI Agents SDK: what the twins of its agents tell, and ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
from agents import Agent, AgentsException, RunConfig, RunResultStreaming, RunState, ToolApprovalItem

from hookline.adapters._openai_items import call_id_of, parsed, pending_of, told
from hookline.adapters._openai_outputs import said_last
from hookline.calls import AgentCall, CompactCall, ModelCall, SubAgentCall, ToolCall, ToolCalling, ToolResult
from hookline.errors import HooklineError, message_of
from hookline.events import PendingTool
from hookline.runtime import KINDS, AgentDone, Approve, Drives, ForeignRun, Reject

__all__ = ["DRIVES", "Attached", "RunStopped", "masked", "present"]

DRIVES = Drives(
    framework="OpenAI Agents",
    calls={ToolCall: KINDS, ModelCall: KINDS, AgentCall: KINDS, SubAgentCall: KINDS, CompactCall: KINDS},
)
"""All sixteen events; the SDK asks a person before a tool is called, so an `Ask` of a hook comes too late for it."""


class RunStopped(HooklineError, AgentsException):
    """A hook, or a person, ended the run.

    Attributes:
        reason: Why.
        hook_id: The hook; `None` if it was a person.
    """

    def __init__(self, reason: str, hook_id: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.hook_id = reason, hook_id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.hook_id)


class Attached:
    """Stands between the twins of a run and its hooks. After a handoff `run` is that of the agent that took over."""

    def __init__(self, run: ForeignRun, *, awaited: Agent[Any] | None = None) -> None:
        self.run = run
        self.loop = asyncio.get_running_loop()
        self.waits: list[PendingTool] = []
        self.streamed: RunResultStreaming | None = None
        self.undecided: list[ToolApprovalItem] = []
        self.nested = awaited is not None
        self._awaited = awaited
        self.config: RunConfig | None = None
        self.asking = False
        self.handed: list[tuple[ForeignRun, asyncio.Future[str], asyncio.Task[AgentDone]]] = []
        self._under_way: set[asyncio.Task[Any]] = set()

    @property
    def leads_models(self) -> bool:
        """Whether anybody looks at what a model is asked: interceptors and telemetry do, observers do not."""
        run = self.run.run
        return ModelCall in run.intercepted or bool(run.begun)

    def take_turn(self) -> Agent[Any] | None:
        """The agent whose run this stands for, if that is the next one to begin."""
        awaited, self._awaited = self._awaited, None
        return awaited

    def go_on(self, state: RunState[Any]) -> None:
        """The run begins where it has paused."""
        self.undecided = state.get_interruptions()
        self.run.begin_step()
        self.run.step.type = "call_tool"

    # What the twins call.

    def hear(self, context: Any) -> None:
        """Tell what a person has decided since the run paused."""
        decisions: list[Approve | Reject] = []
        for item in self.undecided:
            name, call_id = item.tool_name or "", call_id_of(item)
            approved = context.is_tool_approved(name, call_id)
            if approved is not None:
                reason = None if approved else context.get_rejection_message(name, call_id, existing_pending=item)
                decisions.append(
                    Approve(call_id) if approved else Reject(call_id, reason=reason or "", and_continue=True)
                )
        self.undecided = []
        self.run.decided(decisions)

    async def call(self, identifier: str, name: str, invoke: Callable[..., Awaitable[Any]], ctx: Any, text: str) -> Any:
        """A tool is called; one that runs unchanged gives what it gives, or raises what it raises."""
        run, own, given = self.run, list[Any](), parsed(text)
        changeable = ToolCall in run.run.intercepted
        shown = given if isinstance(given, dict) else {}  # what to make of other text is the tool's own affair
        cancelled: list[asyncio.CancelledError] = []

        async def work(args: Mapping[str, Any]) -> ToolResult:
            final = text
            if changeable and args != shown:
                final = json.dumps(args)
                ctx._function_tool_arguments = None  # what the SDK has parsed for an approval
            try:
                own.append(await invoke(ctx, final))
            except asyncio.CancelledError as error:
                cancelled.append(error)
                raise
            return ToolResult(content=told(own[0]))

        approved = changeable and ctx.is_tool_approved(ctx.tool_name, ctx.tool_call_id) is True
        calling = ToolCalling(identifier=identifier, api_name=name, args=shown, tool_call_id=ctx.tool_call_id)
        with self.busy():
            done = await run.call_tool(calling, work, approved=approved)
        _heed_cancellation()
        if done.asked is not None:
            run.step.asked.pop(done.asked.tool_call_id, None)
            return f"Not run: a person would have to be asked first, and nobody can be here. {done.asked.prompt}"
        if done.error is not None:
            raise done.error
        if cancelled and done.result.content == f"{type(cancelled[0]).__name__}: {message_of(cancelled[0])}":
            raise cancelled[0]  # the tool's own: what the SDK makes of that is its affair
        return own[0] if own and not done.changed else done.result.content

    # Its end.

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Note that the present task has begun something of the run."""
        task = asyncio.current_task()
        if task is None or task in self._under_way:
            yield
            return
        self._under_way.add(task)
        try:
            yield
        finally:
            self._under_way.discard(task)

    async def rest(self) -> None:
        """Wait for what the SDK has cancelled, and left: a cancelled run of its ends before its tools do."""
        left = set(self._under_way)
        if self.streamed is not None and self.streamed.run_loop_task is not None:
            left.add(self.streamed.run_loop_task)
        if left:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(left, timeout=self.run.run.drain_timeout)

    def ended(self, result: Any) -> None:
        """Tell what the SDK's run came to."""
        if result is None:
            return
        if result.interruptions:
            self.waits = [pending_of(item) for item in result.interruptions]
            self.run.pause(self.waits)
            self.run.end_step(should_continue=False)
        else:
            self.run.finish("done", said_last(result))

    def heed_stop(self) -> None:
        """End the SDK's run, if a hook has; what a tool raises would only be told to the model.

        Raises:
            RunStopped: If a hook has.
        """
        for run in (self.run, *(parent for parent, _, _ in self.handed)):
            if run.denied is not None:
                raise RunStopped(run.denied.reason, run.denied.hook_id)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Let the twins find it."""
        token = present.set(self)
        try:
            yield
        finally:
            present.reset(token)


present: ContextVar[Attached | None] = ContextVar("hookline_openai_agents", default=None)
"""The run in which the twins are."""


@contextmanager
def masked() -> Iterator[None]:
    """Let nothing find a run of another loop."""
    token = present.set(None)
    try:
        yield
    finally:
        present.reset(token)


def _heed_cancellation() -> None:
    """A cancellation that the run took for the tool's own goes on: the SDK cancels the task of each tool call."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError
