"""A run of hookline around one run of the OpenAI Agents SDK: what the functions of the SDK tell it, and ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
from agents import Agent, AgentsException, Model, RunConfig, RunState

from hookline.adapters.openai_agents._items import call_id_of, parsed, pending_of, said_last, told
from hookline.calls import AgentCall, CompactCall, ModelCall, SubAgentCall, ToolCall, ToolRequest, ToolResult
from hookline.errors import HooklineError, message_of
from hookline.events import PendingTool
from hookline.runtime import KINDS, AdapterRun, AgentDone, Approve, Capabilities, Reject

__all__ = ["DRIVES", "Attached", "RunStopped", "here", "present"]

DRIVES = Capabilities(
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
        # What the SDK hangs on its errors is the whole run, which may not pickle.
        return type(self), (self.reason, self.hook_id), {**vars(self), "run_data": None}


class Attached:
    """Stands between a run of the SDK and its hooks. After a handoff `run` is that of the agent that took over.

    Args:
        run: The run of hookline.
        awaited: The agent whose run has not begun yet, where that is a tool of another run.

    Attributes:
        session: The session of the run.
        config: What the SDK was told for the run.
        asks: The agent that asks a model.
        reworded: An agent, and the instructions that hooks gave it.
        waits: The calls that wait for a person.
        asking: Whether a model is asked, and has not answered.
        handed: The runs that handed over, with what ends those that took over.
        stand_ins: Models, and what stands in for each.
    """

    def __init__(self, run: AdapterRun, *, awaited: Agent[Any] | None = None) -> None:
        self.run = run
        self.loop = asyncio.get_running_loop()
        self.over = False
        self.waits: list[PendingTool] = []
        self.session: Any = None
        self.config: RunConfig | dict[str, Any] | None = None
        self.asks: Agent[Any] | None = None
        self.reworded: tuple[Agent[Any], str] | None = None
        self.asking = False
        self.handed: list[tuple[AdapterRun, asyncio.Future[str], asyncio.Task[AgentDone]]] = []
        self.stand_ins: list[tuple[Model, Any]] = []
        self._awaited = awaited
        self._under_way: set[asyncio.Task[Any]] = set()

    @property
    def leads_models(self) -> bool:
        """Whether anybody looks at what a model is asked: interceptors and telemetry do, observers do not."""
        run = self.run.run
        return ModelCall in run.intercepted or bool(run.begun)

    def take_turn(self, agent: Agent[Any]) -> bool:
        """Whether it is the run of this agent for which it stands, and which begins now."""
        if self._awaited is None or self._awaited is not agent:
            return False
        self._awaited = None
        return True

    def go_on(self, state: RunState[Any]) -> None:
        """Begin where the run has paused, and tell what a person has decided since."""
        self.run.begin_step()
        self.run.step.type = "call_tool"
        context = state._context
        decisions: list[Approve | Reject] = []
        for item in state.get_interruptions():
            name, call_id = item.tool_name or "", call_id_of(item)
            if context is None:
                break
            approved = context.is_tool_approved(name, call_id)
            if approved is not None:
                reason = None if approved else context.get_rejection_message(name, call_id, existing_pending=item)
                decisions.append(
                    Approve(call_id) if approved else Reject(call_id, reason=reason or "", and_continue=True)
                )
        self.run.decided(decisions)

    # What the SDK's functions call.

    async def call(
        self,
        toolset: str,
        name: str,
        invoke: Callable[..., Awaitable[Any]],
        context: Any,
        given_context: Any,
        text: str,
    ) -> Any:
        """Call a tool; one that runs unchanged gives what it gives, or raises what it raises.

        Args:
            toolset: Where it comes from.
            name: Its name there.
            invoke: Runs it.
            context: What the SDK knows of the call.
            given_context: What it gives to the tool, which may be less.
            text: The arguments.
        """
        run, own, given = self.run, list[Any](), parsed(text)
        changeable = ToolCall in run.run.intercepted
        shown = given if isinstance(given, dict) else {}  # what to make of other text is the tool's own affair
        cancelled: list[asyncio.CancelledError] = []

        async def work(args: Mapping[str, Any]) -> ToolResult:
            final = text
            if changeable and args != shown:
                final = json.dumps(args)
                for each in (context, given_context):  # what the SDK has parsed for an approval
                    if getattr(each, "_function_tool_arguments", None) is not None:
                        each._function_tool_arguments = None
            try:
                own.append(await invoke(given_context, final))
            except asyncio.CancelledError as error:
                cancelled.append(error)
                raise
            return ToolResult(content=told(own[0]))

        approved = changeable and context.is_tool_approved(context.tool_name, context.tool_call_id) is True
        calling = ToolRequest(toolset=toolset, tool_name=name, args=shown, tool_call_id=context.tool_call_id)
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
        if left := self._under_way - {asyncio.current_task()}:
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
        """Let the SDK's functions find it."""
        token = present.set(self)
        try:
            yield
        finally:
            present.reset(token)


present: ContextVar[Attached | None] = ContextVar("hookline_openai_agents", default=None)
"""The run in which the SDK's functions are called."""


def here() -> Attached | None:
    """The run with hooks in which this is called; one of another loop, or that is over, is none."""
    attached = present.get()
    if attached is None or attached.over:
        return None
    try:
        return attached if attached.loop is asyncio.get_running_loop() else None
    except RuntimeError:  # no loop runs, as in `run_sync`
        return None


def _heed_cancellation() -> None:
    """A cancellation that the run took for the tool's own goes on: the SDK cancels the task of each tool call."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError
