"""What happens within a run of Pydantic AI: model requests and tool calls, led through hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replaced
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext, ToolDefinition

from hookline.adapters import _pydantic_ai_arguments as arguments
from hookline.adapters import _pydantic_ai_words as words
from hookline.adapters._pydantic_ai_compaction import CompactingModel, can_compact
from hookline.adapters._pydantic_ai_conversation import Conversation
from hookline.adapters._pydantic_ai_streams import Held
from hookline.adapters._pydantic_ai_under_way import Caller, Scope, UnderWay, present_caller
from hookline.adapters._relay import holds
from hookline.calls import Message, ModelCall, ToolCalling, ToolResult
from hookline.errors import HookDenied
from hookline.runtime import ForeignRun, ToolDone

__all__ = ["CALLEE", "Calls"]

CALLEE = "hookline.callee"
"""Key of a tool's metadata: the agent that it calls."""


class Calls:
    """The seams within a run, which has begun."""

    def __init__(self) -> None:
        self._run: ForeignRun
        self._scope: Scope
        self._tools: Mapping[str, Any] = {}
        self._outputs: frozenset[str] = frozenset()
        self._calls: dict[asyncio.Task[Any], UnderWay] = {}
        self._answers: dict[str, str] = {}

    # Model calls.

    async def model_request(
        self,
        ctx: RunContext[Any],
        request: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """The model is asked."""
        if asyncio.current_task() in self._calls:  # the capability was given twice
            return await handler(request)
        run = self._run
        self._look(ctx)
        self._outputs = frozenset(tool.name for tool in request.model_request_parameters.output_tools)
        run.begin_step()
        if can_compact(request.model):
            request = replace(request, model=CompactingModel(request.model, run, self._shown))
        if not run.leads(ModelCall):  # translating a long conversation for nobody would cost more than all the rest
            run.begin_model_call()
            async with UnderWay(self._calls):
                response = await handler(request)
            run.asked_model(words.answer_of(response, self._source))
            return response
        if request.streaming and holds(run, ModelCall):
            async with Held(handler, self._calls) as held:
                return await held.give(await self._judged(request, held.ask))
        return await self._judged(request, handler)

    async def _judged(
        self, request: ModelRequestContext, handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """What the model answers, as hooks leave it."""
        run, talk = self._run, Conversation(request, self._source)
        gave: list[tuple[ModelResponse, Any]] = []

        async def ask(call: ModelCall) -> Any:
            response = await handler(talk.request(call))
            gave.append((response, words.answer_of(response, self._source)))
            return gave[0][1]

        async with UnderWay(self._calls):
            answer = await run.ask_model(talk.messages, ask, tools=talk.tools, settings=request.model_settings)
        if answer is None:
            assert run.denied is not None
            raise HookDenied(run.denied.hook_id, run.denied.reason)
        if not gave:
            return words.response_of(answer)
        response, own = gave[0]
        return response if answer == own else words.changed_response(answer, own, response, self._source)

    def _shown(self, context: ModelRequestContext) -> list[Message]:
        return Conversation(context, self._source).messages

    def _look(self, ctx: RunContext[Any]) -> None:
        """Remember the tools of this step."""
        if ctx.tool_manager is not None and ctx.tool_manager.tools is not None:
            self._tools = ctx.tool_manager.tools

    def _source(self, name: str) -> str:
        """Where a tool comes from; `""` if it gives the run's output."""
        if name in self._outputs:
            return ""
        tool = self._tools.get(name)
        if tool is not None and CALLEE in (tool.tool_def.metadata or {}):
            return "agent"
        return words.source_of(tool)

    # Tool calls.

    async def tool_call(
        self,
        ctx: RunContext[Any],
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """A tool is called."""
        if asyncio.current_task() in self._calls:  # the capability was given twice
            return await handler(args)
        self._look(ctx)
        if call.tool_call_id in self._answers:
            return self._answers.pop(call.tool_call_id)
        if CALLEE in (tool_def.metadata or {}):
            return await self._call_agent(tool_def, args, handler)
        run = self._run
        given: list[Any] = []
        raised: list[Exception] = []
        calling = self._calling(call)
        tool = self._tools.get(tool_def.name)
        if tool is not None and arguments.may_change(ctx):
            calling = replaced(calling, args=arguments.as_it_will_run(ctx, tool, call, args))

        async def work(final: Mapping[str, Any]) -> ToolResult:
            present = present_caller.set(Caller(run, self._scope))
            try:
                same = final == calling.args
                value = await handler(
                    args if same else await arguments.validated(ctx, self._tools[tool_def.name], final)
                )
                told = words.result_of(call.tool_name, value)
            except asyncio.CancelledError:
                self._scope.cancel_called |= _cancelled()
                raise
            except Exception as error:
                raised.append(error)
            finally:
                present_caller.reset(present)
            if raised:  # out here, where raising it leaves its cause and its context as they are
                raise words.cause_of(raised[0])
            given.append(value)
            return told

        async with UnderWay(self._calls):
            done = await run.call_tool(calling, work, approved=ctx.tool_call_approved)
        if done.asked is not None:
            raise ApprovalRequired()
        if done.stop is not None:
            raise HookDenied(done.stop.hook_id, done.stop.reason)
        if done.error is not None or (raised and isinstance(raised[0], ApprovalRequired | CallDeferred)):
            raise raised[0]  # a call that waits goes on waiting, whatever hooks make of it
        if not done.changed:
            return given[0]
        if not done.result.success:
            raise ToolFailed(done.result.content)
        return done.result.content

    async def wrong_arguments(
        self, ctx: RunContext[Any], call: ToolCallPart, tool_def: ToolDefinition, error: Exception
    ) -> dict[str, Any]:
        """A call whose arguments are wrong is an attempt too; what hooks answer takes the place of the tool."""
        if tool_def.kind != "function" or CALLEE in (tool_def.metadata or {}):
            raise error
        self._look(ctx)
        done = await self._failed(call, error)
        if not done.changed or done.asked is not None:
            raise error
        if not done.result.success:
            raise ToolFailed(done.result.content)
        self._answers[call.tool_call_id] = done.result.content
        return {}

    async def _failed(self, call: ToolCallPart, error: Exception) -> ToolDone:
        """A call that the framework does not make, and why."""

        async def work(final: Mapping[str, Any]) -> ToolResult:
            raise error

        done = await self._run.call_tool(self._calling(call), work)
        if done.stop is not None:
            raise HookDenied(done.stop.hook_id, done.stop.reason)
        self._run.step.asked.pop(call.tool_call_id, None)
        return done

    def _calling(self, part: ToolCallPart) -> ToolCalling:
        """A call with its arguments as the framework reads them; with none where it finds no object."""
        try:
            args = part.args_as_dict(raise_if_invalid=True)
        except (ValueError, AssertionError):
            args = {}
        return ToolCalling(
            identifier=self._source(part.tool_name), api_name=part.tool_name, args=args, tool_call_id=part.tool_call_id
        )

    async def _call_agent(
        self, tool_def: ToolDefinition, args: dict[str, Any], handler: Callable[[dict[str, Any]], Awaitable[Any]]
    ) -> Any:
        values: list[Any] = []

        async def work(instruction: str, child: str) -> str:
            present = present_caller.set(Caller(self._run, self._scope, child))
            try:
                values.append(await handler({**args, "instruction": instruction}))
            finally:
                present_caller.reset(present)
            return words.result_of(tool_def.name, values[0]).content

        metadata = tool_def.metadata or {}
        async with UnderWay(self._calls):
            done = await self._run.call_agent(metadata[CALLEE], words.text_of(args.get("instruction", args)), work)
        if self._run.denied is not None:
            raise HookDenied(self._run.denied.hook_id, self._run.denied.reason)
        if done.denied is not None:
            raise ToolFailed(done.output)
        return done.output if done.changed else values[0]


def _cancelled() -> bool:
    """Whether somebody has cancelled the present task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
