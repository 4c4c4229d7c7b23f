"""Bind one run of the OpenAI Agents SDK to hookline's `AdapterRun`; patched SDK functions find the binding here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
from agents import Agent, AgentsException, Model, RunConfig, RunState

from hookline.adapters._attaching import mark_paused
from hookline.adapters.openai_agents._conversion import (
    add_text,
    call_id_of,
    output_text,
    parse_arguments,
    to_pending_tool,
    tool_output_text,
)
from hookline.calls import AgentCall, CompactCall, ModelCall, SubAgentCall, ToolCall, ToolRequest, ToolResult
from hookline.errors import RunStopped, message_of
from hookline.events import PendingTool
from hookline.runtime import KINDS, AdapterRun, AgentDone, Approve, Capabilities, Reject

__all__ = ["DRIVES", "OpenAIBinding", "OpenAIRunStopped", "current_binding", "mark_stopping", "present_binding"]

DRIVES = Capabilities(
    framework="OpenAI Agents",
    calls={ToolCall: KINDS, ModelCall: KINDS, AgentCall: KINDS, SubAgentCall: KINDS, CompactCall: KINDS},
    adds_context=frozenset({ToolCall, AgentCall}),
    guides=True,
)
"""All sixteen events. Hooks cannot `Ask`: the SDK asks for approval before it calls a tool, and hooks run later."""


class OpenAIRunStopped(RunStopped, AgentsException):
    """Raised when a hook, a person or `interrupt` ended the run: a `RunStopped` that is also an error of the SDK.

    Attributes:
        reason: The reason.
        hook_id: The hook's id; `None` if a person ended the run.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # What the SDK hangs on its errors is the whole run, which may not pickle.
        return type(self), (self.reason, self.hook_id), {**vars(self), "run_data": None}


_STOPPING_KEY = "_hookline_stopping_rejections"


def mark_stopping(state: RunState[Any], rejection: Reject) -> None:
    """Note in a state a rejection that ends the run; the SDK itself would tell the model and go on."""
    vars(state)[_STOPPING_KEY] = {**stopping_rejections(state), rejection.tool_call_id: rejection}


def stopping_rejections(state: RunState[Any]) -> Mapping[str, Reject]:
    """Return the rejections in a state that end the run, by the id of their call."""
    found: Mapping[str, Reject] = getattr(state, _STOPPING_KEY, {})
    return found


class OpenAIBinding:
    """Connects a run of the SDK with its hooks. After a handoff, `run` is the run of the new agent.

    Args:
        run: The run of hookline.
        awaited: The agent whose run has not begun yet, if that agent is called as a tool of another run.

    Attributes:
        ended: Whether the run is over.
        session: The session of the run.
        config: The SDK's `RunConfig` of the run.
        asking_agent: The agent that makes the next model call.
        instruction_override: An agent and the instructions that hooks gave it.
        waiting: The calls that wait for a person.
        model_pending: Whether a model call is open.
        handoffs: The runs that handed over, each with the future and the task of the run that took over.
        substitutes: Models and their substitutes.
    """

    def __init__(self, run: AdapterRun, *, awaited: Agent[Any] | None = None) -> None:
        self.run = run
        self.loop = asyncio.get_running_loop()
        self.ended = False
        self.waiting: list[PendingTool] = []
        self.session: Any = None
        self.config: RunConfig | dict[str, Any] | None = None
        self.asking_agent: Agent[Any] | None = None
        self.instruction_override: tuple[Agent[Any], str] | None = None
        self.model_pending = False
        self.handoffs: list[tuple[AdapterRun, asyncio.Future[str], asyncio.Task[AgentDone]]] = []
        self.substitutes: list[tuple[Model, Any]] = []
        self._awaited = awaited
        self._tasks: set[asyncio.Task[Any]] = set()

    def claim_run(self, agent: Agent[Any]) -> bool:
        """Return whether the run that begins now is the awaited run of this agent."""
        if self._awaited is None or self._awaited is not agent:
            return False
        self._awaited = None
        return True

    def end(self) -> None:
        """Mark the run as over, and forget its models, whose substitutes refer to this binding."""
        self.ended = True
        self.substitutes.clear()

    def resume(self, state: RunState[Any]) -> None:
        """Resume a paused run and report the person's decisions."""
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
                stopping = stopping_rejections(state).get(call_id)
                reason = None if approved else context.get_rejection_message(name, call_id, existing_pending=item)
                decisions.append(
                    Approve(call_id)
                    if approved
                    else stopping or Reject(call_id, reason=reason or "", and_continue=True)
                )
        self.run.decided(decisions)
        if any(isinstance(each, Reject) and not each.and_continue for each in decisions):
            self.run.finish("interrupted")
            self.run.raise_if_stopped(OpenAIRunStopped)

    # Called by the patched functions.

    async def call_tool(
        self,
        toolset: str,
        name: str,
        invoke: Callable[..., Awaitable[Any]],
        context: Any,
        given_context: Any,
        text: str,
    ) -> Any:
        """Call a tool through the hooks; if they change nothing, return or raise what the tool does.

        Args:
            toolset: The tool's toolset.
            name: The tool's name.
            invoke: Runs the tool.
            context: The SDK's context of the call.
            given_context: The context that the tool receives, which may have less.
            text: The arguments as text.
        """
        run, own, parsed = self.run, list[Any](), parse_arguments(text)
        changeable = ToolCall in run.run.intercepted
        # The tool itself decides what to do with text that is not an object.
        shown = parsed if isinstance(parsed, dict) else {}
        cancelled: list[asyncio.CancelledError] = []

        async def work(args: Mapping[str, Any]) -> ToolResult:
            final = text
            if changeable and args != shown:
                final = json.dumps(args)
                for each in (context, given_context):  # drop the arguments that the SDK parsed for an approval
                    if getattr(each, "_function_tool_arguments", None) is not None:
                        each._function_tool_arguments = None
            try:
                own.append(await invoke(given_context, final))
            except asyncio.CancelledError as error:
                cancelled.append(error)
                raise
            return ToolResult(content=tool_output_text(own[0]))

        approved = changeable and context.is_tool_approved(context.tool_name, context.tool_call_id) is True
        request = ToolRequest(toolset=toolset, tool_name=name, args=shown, tool_call_id=context.tool_call_id)
        task = asyncio.current_task()
        assert task is not None
        is_known = task in self._tasks
        self._tasks.add(task)  # as `track_task` does, without a context manager for each call
        try:
            done = await run.call_tool(request, work, approved=approved)
        finally:
            if not is_known:
                self._tasks.discard(task)
        if task.cancelling():  # the SDK cancels the task of each call, and the hooked call took that for the tool's own
            raise asyncio.CancelledError
        if done.asked is not None:
            run.step.asked.pop(done.asked.tool_call_id, None)
            return (
                f"Not run: a person would have to approve this call, and nobody can be asked here. {done.asked.prompt}"
            )
        if done.error is not None:
            raise done.error
        if cancelled and done.result.content == f"{type(cancelled[0]).__name__}: {message_of(cancelled[0])}":
            raise cancelled[0]  # the tool cancelled itself: the SDK decides what that means
        if own and done.added:
            return add_text(own[0], done)
        return own[0] if own and not done.changed else done.result.content

    # The end of the run.

    def track_task(self) -> _TrackedTask:
        """Mark the present task as working for the run, while the block runs."""
        return _TrackedTask(self._tasks)

    async def wait_for_tasks(self) -> None:
        """Wait for tasks that the SDK cancelled and left: it ends a cancelled run before the run's tools."""
        if left := self._tasks - {asyncio.current_task()}:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(left, timeout=self.run.run.drain_timeout)

    def record_end(self, result: Any) -> None:
        """Record how the SDK's run ended."""
        if result is None:
            return
        if result.interruptions:
            self.waiting = [to_pending_tool(item) for item in result.interruptions]
            self.run.pause(self.waiting)
            mark_paused(result, self.run.operation_id)
            self.run.end_step(should_continue=False)
        else:
            self.run.finish("done", output_text(result))

    def raise_if_stopped(self) -> None:
        """End the SDK's run if a hook denied it; an error raised by a tool would only reach the model.

        Raises:
            OpenAIRunStopped: If a hook denied the run.
        """
        if self.run.run.denied is not None:
            self.run.raise_if_stopped(OpenAIRunStopped)
        for parent, _, _ in self.handoffs:
            if parent.denied is not None:
                parent.raise_if_stopped(OpenAIRunStopped)


current_binding: ContextVar[OpenAIBinding | None] = ContextVar("hookline_openai_agents", default=None)
"""The binding of the run in which patched functions are called."""


class _TrackedTask:
    """A context manager that keeps the present task in a set of tasks, unless it is there already."""

    __slots__ = ("_task", "_tasks")

    def __init__(self, tasks: set[asyncio.Task[Any]]) -> None:
        self._tasks = tasks

    def __enter__(self) -> None:
        task = asyncio.current_task()
        self._task = None if task in self._tasks else task
        if self._task is not None:
            self._tasks.add(self._task)

    def __exit__(self, *raised: object) -> None:
        if self._task is not None:
            self._tasks.discard(self._task)


def present_binding() -> OpenAIBinding | None:
    """Return the binding of the present run; `None` if it has ended or belongs to another event loop."""
    binding = current_binding.get()
    if binding is None or binding.ended:
        return None
    try:
        return binding if binding.loop is asyncio.get_running_loop() else None
    except RuntimeError:  # no event loop is running, as in `run_sync`
        return None
