"""Run the hooks around the model calls and tool calls within a run of Pydantic AI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace as replaced
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext, ToolDefinition

from hookline.adapters._streams import must_hold_stream
from hookline.adapters.pydantic_ai import _conversion as convert
from hookline.adapters.pydantic_ai._conversion import RequestMessages
from hookline.adapters.pydantic_ai._models import CompactingModel, HeldStream, ask_again, can_compact, time_stream
from hookline.calls import Message, ModelCall, ToolRequest, ToolResult
from hookline.errors import RunStopped
from hookline.runtime import AdapterRun, ToolDone

__all__ = ["CALLEE_KEY", "CallHooks", "CallingRun", "RunScope", "current_caller", "unwind"]


class RunScope:
    """Replaces the cancel scope of a run: cancelling it ends the framework's run.

    Attributes:
        cancel_called: Whether the run was asked to end, by hookline or by the application.
        interrupted: Whether hookline asked it to end.
        ended: Whether the operation has ended.
    """

    def __init__(self, ctx: RunContext[Any]) -> None:
        self._ctx, self.cancel_called, self.interrupted, self.ended = ctx, False, False, False

    def cancel(self) -> None:
        """Cancel the framework's run."""
        self.cancel_called = self.interrupted = True
        self._ctx.cancel()


class CallingRun(msgspec.Struct, eq=False):
    """The run whose tool is running, and the operation id for the sub-agent that the tool calls."""

    run: AdapterRun
    scope: RunScope
    child: str | None = None


current_caller: ContextVar[CallingRun | None] = ContextVar("hookline_pydantic_ai_caller", default=None)


class Unwinding(msgspec.Struct, eq=False):
    """The end of a call whose run has ended before it.

    Attributes:
        ended: Set when the call has ended.
        unwound: Set when all open calls of the run have ended.
    """

    ended: asyncio.Event
    unwound: asyncio.Event

    async def end(self) -> None:
        """Note that the call has ended, and wait for the others.

        When the first call ends, the framework cancels the others, and would interrupt them while they clean up.
        """
        self.ended.set()
        await self.unwound.wait()


OpenCalls = dict[asyncio.Task[Any], Unwinding | None]
"""The tasks that make a call of a run, each with the end of its call if the run has ended before it."""


class OpenCall(msgspec.Struct, eq=False):
    """An async context manager around a call, which notes that the present task makes one.

    Attributes:
        calls: The open calls of the run.
        task: The task that makes the call, once it has begun.
    """

    calls: OpenCalls
    task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        self.task = task = asyncio.current_task()
        assert task is not None
        self.calls[task] = None

    async def __aexit__(self, *raised: object) -> None:
        assert self.task is not None
        unwinding = self.calls.pop(self.task)
        if unwinding is not None:
            await unwinding.end()


async def unwind(calls: OpenCalls) -> None:
    """Cancel open calls, each of them once, and wait until all have cleaned up."""
    unwound, ends = asyncio.Event(), list[asyncio.Event]()
    for task, known in list(calls.items()):
        ended = asyncio.Event() if known is None else known.ended
        calls[task] = Unwinding(ended, unwound)
        ends.append(ended)
        task.cancel()
    try:
        with anyio.CancelScope(shield=True):
            for ended in ends:
                await ended.wait()
    finally:
        unwound.set()


CALLEE_KEY = "hookline.callee"
"""Key in a tool's metadata for the agent that it calls."""


class CallHooks:
    """Runs the hooks around the calls of one open run."""

    def __init__(self) -> None:
        self._run: AdapterRun
        self._scope: RunScope
        self._tools: Mapping[str, Any] = {}
        self._outputs: frozenset[str] = frozenset()
        self._toolsets: dict[str, str] = {}
        """The toolsets of the tools of this step that were asked for, by name."""
        self._open_calls: OpenCalls = {}
        self._hook_results: dict[str, str] = {}

    # Model calls.

    async def model_request(
        self,
        ctx: RunContext[Any],
        request: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Make a model request through the hooks."""
        if self._open_calls and self._is_in_call():
            return await handler(request)
        run = self._run
        self._record_tools(ctx)
        self._toolsets.clear()
        outputs = request.model_request_parameters.output_tools
        self._outputs = frozenset(tool.name for tool in outputs) if outputs else frozenset()
        run.begin_step()
        if can_compact(request.model):
            request = replace(request, model=CompactingModel(request.model, run, self._messages_of))
        if not run.leads(ModelCall):  # converting a long conversation for nobody would cost more than everything else
            run.begin_model_call()
            task = asyncio.current_task()
            assert task is not None
            self._open_calls[task] = None  # as `OpenCall` does, with two coroutines less
            try:
                response = await handler(request)
            finally:
                unwinding = self._open_calls.pop(task)
                if unwinding is not None:
                    await unwinding.end()
            run.asked_model(convert.to_model_response(response, self._toolset_of))
            return response
        if request.streaming and must_hold_stream(run, ModelCall):
            to_answer = partial(convert.to_model_response, toolset_of=self._toolset_of)
            async with HeldStream(self._tracked(handler), to_answer) as held:
                return await held.release(await self._ask_model(ctx, request, held.request, held))
        return await self._ask_model(ctx, request, handler)

    def _is_in_call(self) -> bool:
        """Return whether the present task makes a call of the run already: the capability is installed twice."""
        return asyncio.current_task() in self._open_calls

    def _tracked(
        self, handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]]
    ) -> Callable[[ModelRequestContext], Awaitable[ModelResponse]]:
        """Return a handler that counts as an open call of the run, for a task of its own."""

        async def track(request: ModelRequestContext) -> ModelResponse:
            async with OpenCall(self._open_calls):
                return await handler(request)

        return track

    async def _ask_model(
        self,
        ctx: RunContext[Any],
        request: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
        held: HeldStream | None = None,
    ) -> ModelResponse:
        """Make a model request with hooks around it, and return the answer that they leave.

        Args:
            ctx: The run.
            request: The request.
            handler: Sends the request.
            held: The streamed request that `handler` belongs to, if hooks judge its answer before it is released.
        """
        run, conversation = self._run, RequestMessages(request, self._toolset_of)
        responses: list[tuple[ModelResponse, Any]] = []
        model = request.model  # the framework's handler may put another one into the request

        async def ask(call: ModelCall) -> Any:
            final = conversation.request(call)
            if held is not None and run.judges_parts():
                held.call = call
            if request.streaming:
                final = replace(final, model=time_stream(final.model, run))
            # The framework takes one request; a hook that returned `Guide` has discarded its answer.
            response = await (ask_again(replace(final, model=model), ctx) if responses else handler(final))
            responses.append((response, convert.to_model_response(response, self._toolset_of)))
            return responses[-1][1]

        async with OpenCall(self._open_calls):
            answer = await run.ask_model(
                conversation.messages, ask, tools=conversation.tools, settings=request.model_settings
            )
        if answer is None:
            assert run.denied is not None
            raise RunStopped(run.denied.reason, run.denied.hook_id)
        if not responses:
            return convert.from_model_response(answer)
        response, own = responses[-1]
        return response if answer == own else convert.apply_changes(answer, own, response, self._toolset_of)

    def _messages_of(self, context: ModelRequestContext) -> list[Message]:
        return RequestMessages(context, self._toolset_of).messages

    def _record_tools(self, ctx: RunContext[Any]) -> None:
        """Record the tools of this step."""
        manager = ctx.tool_manager
        if manager is not None and manager.tools is not None and manager.tools is not self._tools:
            self._tools = manager.tools
            self._toolsets.clear()

    def _toolset_of(self, name: str) -> str:
        """Return a tool's toolset; `""` for a tool that gives the run's output."""
        known = self._toolsets.get(name)
        if known is None:
            known = self._toolsets[name] = self._find_toolset(name)
        return known

    def _find_toolset(self, name: str) -> str:
        if name in self._outputs:
            return ""
        tool = self._tools.get(name)
        if tool is not None and CALLEE_KEY in (tool.tool_def.metadata or {}):
            return "agent"
        return convert.toolset_of(tool)

    # Tool calls.

    async def tool_call(
        self,
        ctx: RunContext[Any],
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Call a tool through the hooks."""
        if self._open_calls and self._is_in_call():
            return await handler(args)
        self._record_tools(ctx)
        if call.tool_call_id in self._hook_results:
            return self._hook_results.pop(call.tool_call_id)
        if CALLEE_KEY in (tool_def.metadata or {}):
            return await self._call_agent(tool_def, args, handler)
        run = self._run
        given: list[Any] = []
        raised: list[Exception] = []
        request = self._to_tool_request(call)
        tool = self._tools.get(tool_def.name)
        if tool is not None and convert.may_rewrite_args(ctx):
            request = replaced(request, args=convert.final_args(ctx, tool, call, args))

        async def work(final: Mapping[str, Any]) -> ToolResult:
            token = current_caller.set(CallingRun(run, self._scope))
            try:
                same = final == request.args
                value = await handler(
                    args if same else await convert.validate_args(ctx, self._tools[tool_def.name], final)
                )
                result = convert.to_tool_result(call.tool_name, value)
            except asyncio.CancelledError:
                self._scope.cancel_called |= _is_cancelled()
                raise
            except Exception as error:
                raised.append(error)
            finally:
                current_caller.reset(token)
            if raised:  # raised outside of the handler, so that its cause and context stay unchanged
                raise convert.original_error(raised[0])
            given.append(value)
            return result

        task = asyncio.current_task()
        assert task is not None
        self._open_calls[task] = None  # as `OpenCall` does, with two coroutines less
        try:
            done = await run.call_tool(request, work, approved=ctx.tool_call_approved)
        finally:
            unwinding = self._open_calls.pop(task)
            if unwinding is not None:
                await unwinding.end()
        if done.asked is not None:
            raise ApprovalRequired()
        if done.stop is not None:
            raise RunStopped(done.stop.reason, done.stop.hook_id)
        if done.error is not None or (raised and isinstance(raised[0], ApprovalRequired | CallDeferred)):
            raise raised[0]  # a call that waits for a person keeps waiting, whatever hooks return
        if not done.changed:
            return given[0]
        if given and done.added:
            return convert.add_text(given[0], done)
        if not done.result.success:
            raise ToolFailed(done.result.content)
        return done.result.content

    async def invalid_arguments(
        self, ctx: RunContext[Any], call: ToolCallPart, tool_def: ToolDefinition, error: Exception
    ) -> dict[str, Any]:
        """Report a call with invalid arguments; a hook's answer takes the place of the tool's result."""
        if tool_def.kind != "function" or CALLEE_KEY in (tool_def.metadata or {}):
            raise error
        self._record_tools(ctx)
        done = await self._report_failed_call(call, error)
        if not done.changed or done.asked is not None:
            raise error
        if not done.result.success:
            raise ToolFailed(done.result.content)
        self._hook_results[call.tool_call_id] = done.result.content
        return {}

    async def _report_failed_call(self, call: ToolCallPart, error: Exception) -> ToolDone:
        """Run the hooks of a call that the framework does not make, with its error."""

        async def work(final: Mapping[str, Any]) -> ToolResult:
            raise error

        done = await self._run.call_tool(self._to_tool_request(call), work)
        if done.stop is not None:
            raise RunStopped(done.stop.reason, done.stop.hook_id)
        self._run.step.asked.pop(call.tool_call_id, None)
        return done

    def _to_tool_request(self, part: ToolCallPart) -> ToolRequest:
        """Convert a tool call with its parsed arguments; with none if they are not an object."""
        try:
            args = part.args_as_dict(raise_if_invalid=True)
        except (ValueError, AssertionError):
            args = {}
        return ToolRequest(
            toolset=self._toolset_of(part.tool_name),
            tool_name=part.tool_name,
            args=args,
            tool_call_id=part.tool_call_id,
        )

    async def _call_agent(
        self, tool_def: ToolDefinition, args: dict[str, Any], handler: Callable[[dict[str, Any]], Awaitable[Any]]
    ) -> Any:
        values: list[Any] = []

        async def work(instruction: str, child: str) -> str:
            token = current_caller.set(CallingRun(self._run, self._scope, child))
            try:
                values.append(await handler({**args, "instruction": instruction}))
            finally:
                current_caller.reset(token)
            return convert.to_tool_result(tool_def.name, values[0]).content

        metadata = tool_def.metadata or {}
        async with OpenCall(self._open_calls):
            done = await self._run.call_agent(
                metadata[CALLEE_KEY], convert.text_of(args.get("instruction", args)), work
            )
        if self._run.denied is not None:
            raise RunStopped(self._run.denied.reason, self._run.denied.hook_id)
        if done.denied is not None:
            raise ToolFailed(done.output)
        return done.output if done.changed else values[0]


def _is_cancelled() -> bool:
    """Return whether the present task was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
