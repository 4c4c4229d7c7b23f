"""What happens within a run of Pydantic AI: model requests and tool calls, led through hooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import anyio
from msgspec.structs import replace as replaced
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import (
    FinalResultEvent,
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RequestUsage

from hookline.adapters._held_streams import must_hold_stream
from hookline.adapters.pydantic_ai import _words as arguments
from hookline.adapters.pydantic_ai import _words as words
from hookline.adapters.pydantic_ai._compaction import CompactingModel, can_compact
from hookline.adapters.pydantic_ai._words import Conversation
from hookline.calls import Message, ModelCall, ToolRequest, ToolResult
from hookline.errors import HookDenied, HookUsageError
from hookline.runtime import AdapterRun, ToolDone

__all__ = ["CALLEE", "Caller", "Calls", "Held", "Scope", "UnderWay", "holding", "present_caller"]


class Scope:
    """Ends the run in the framework's way when somebody interrupts the operation.

    Attributes:
        cancel_called: Whether its end has been asked for.
        over: Whether the operation has ended.
    """

    def __init__(self, ctx: RunContext[Any]) -> None:
        self._ctx, self.cancel_called, self.over = ctx, False, False

    def cancel(self) -> None:
        """End it."""
        self.cancel_called = True
        self._ctx.cancel()


@dataclass
class Caller:
    """The run whose tool is running, and the operation that the agent which it calls is to be."""

    run: AdapterRun
    scope: Scope
    child: str | None = None


present_caller: ContextVar[Caller | None] = ContextVar("hookline_pydantic_ai_caller", default=None)


class UnderWay:
    """A call that is under way in the present task.

    Attributes:
        unwound: The end of all calls of a run that has ended before them, if it has.
    """

    def __init__(self, calls: dict[asyncio.Task[Any], UnderWay]) -> None:
        self._calls = calls
        self._over = asyncio.Event()
        self.unwound: asyncio.Event | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._calls[task] = self

    async def __aexit__(self, *raised: object) -> None:
        del self._calls[self._task]
        self._over.set()
        if self.unwound is not None:
            # The framework cancels what is left at the end of the first call, and so would interrupt what another one
            # still has to clean up.
            await self.unwound.wait()

    @classmethod
    async def unwind(cls, calls: dict[asyncio.Task[Any], UnderWay]) -> None:
        """Cancel calls, each of them once, and wait until all of them have cleaned up after themselves."""
        unwound, left = asyncio.Event(), dict(calls)
        for task, call in left.items():
            call.unwound = unwound
            task.cancel()
        try:
            with anyio.CancelScope(shield=True):
                for call in left.values():
                    await call._over.wait()
        finally:
            unwound.set()


class Held:
    """A streamed model request: the model's stream is heard to its end, judged, and only then given on.

    The framework asks in one task and reads the stream in another one, and its request is over when all has been read.
    So it asks in a task of its own, and what the model said is known here before that ends.

    Args:
        handler: Asks the model.
        calls: The calls that are under way.
    """

    def __init__(
        self,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
        calls: dict[asyncio.Task[Any], UnderWay],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._handler, self._calls = handler, calls
        self._asked: asyncio.Task[ModelResponse] | None = None
        self.heard: asyncio.Future[ModelResponse] = loop.create_future()
        self.judged: asyncio.Future[ModelResponse] = loop.create_future()

    async def __aenter__(self) -> Held:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Nothing of what was not judged is given on."""
        if self._asked is not None and not self._asked.done():
            self._asked.cancel()
            await asyncio.wait([self._asked])
        self.judged.cancel()

    async def ask(self, request: ModelRequestContext) -> ModelResponse:
        """Ask the model; what it answered, which nobody has seen yet."""
        if _can_stream(request.model):  # the framework refuses others, in its own words
            request = replace(request, model=HoldingModel(request.model, self))
        self._asked = asyncio.create_task(self._ask(request))
        await asyncio.wait([self._asked, self.heard], return_when=asyncio.FIRST_COMPLETED)
        return self.heard.result() if self.heard.done() else self._asked.result()

    async def _ask(self, request: ModelRequestContext) -> ModelResponse:
        _present.set(self)  # in a task of its own
        async with UnderWay(self._calls):
            return await self._handler(request)

    async def give(self, response: ModelResponse) -> ModelResponse:
        """Give on the answer as it was judged; the same as the framework ends up with it."""
        if self._asked is None or not self.heard.done():
            return response
        self.judged.set_result(response)
        await asyncio.wait([self._asked])
        return self._asked.result()


class Recording:
    """What the stream of a model said, piece by piece.

    Args:
        stream: The stream, of which nothing has been read yet.
    """

    def __init__(self, stream: StreamedResponse) -> None:
        self.stream = stream
        self.begun = _without_parts(stream)
        self.events: list[tuple[ModelResponseStreamEvent, ModelResponse]] = []
        self._started: set[int] = set()
        self.is_faithful = True
        """Whether all that it said is in the answer that hooks judge: nothing has taken the place of what it said."""

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Add what the stream has just given, with the answer as it is now, but for its parts: they follow from it."""
        if isinstance(event, FinalResultEvent | PartEndEvent):  # these follow from the others
            return
        if isinstance(event, PartStartEvent):
            self.is_faithful &= event.index not in self._started
            self._started.add(event.index)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, ToolCallPartDelta):
            self.is_faithful &= not isinstance(event.delta.args_delta, dict)
        last, now = self.events[-1][1] if self.events else self.begun, _without_parts(self.stream)
        self.events.append((event, last if now == last else now))


def _without_parts(stream: StreamedResponse) -> ModelResponse:
    answer = stream.get()
    return replace(answer, parts=[], usage=copy(answer.usage))


class Replayed(CompletedStreamedResponse):
    """A stream that gives again what a model has said, piece by piece as the model did.

    Args:
        response: The whole answer.
        recording: What the model said.
    """

    def __init__(self, response: ModelResponse, recording: Recording) -> None:
        # The parameters that the model has prepared: they say what counts as the final output.
        super().__init__(
            response, model_request_parameters=recording.stream.model_request_parameters, replay_events=True
        )
        self._recording, self._now = recording, recording.begun

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for event, now in self._recording.events:
            if self.cancelled:
                return
            self._parts_manager.apply_event(event)
            self._now = now
            yield event

    def get(self) -> ModelResponse:
        """Return the answer as far as it has been given."""
        whole = super().get()
        if self._finished:
            return whole
        return replace(
            self._now,
            parts=self._parts_manager.get_parts(),
            state="interrupted" if self.cancelled else "incomplete",
            failed_attempts=whole.failed_attempts,
        )

    @property
    def usage(self) -> RequestUsage:
        """What has been used so far."""
        return self.response.usage if self._finished else self._now.usage


class HoldingModel(WrapperModel):
    """A model whose stream begins when its answer has been judged."""

    def __init__(self, wrapped: Model, held: Held) -> None:
        super().__init__(wrapped)
        self._held = held

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Hear the stream of the model, and stream what it was judged to be."""
        async with self.wrapped.request_stream(
            messages, model_settings, model_request_parameters, run_context
        ) as stream:
            recording = Recording(stream)
            async for event in stream:
                recording.add(event)
            heard = stream.get()
        if heard.state == "suspended":
            raise HookUsageError(
                "The model paused within its answer, and a stream of several parts cannot be held back until hooks of "
                "ModelCall have judged it. Use `run` instead."
            )
        self._held.heard.set_result(heard)
        response = await self._held.judged
        if response is heard and recording.is_faithful:
            yield Replayed(heard, recording)
        else:
            # With the parameters that the model has prepared: they say what counts as the final output, and so what is
            # asked for again.
            prepared = stream.model_request_parameters
            yield CompletedStreamedResponse(response, model_request_parameters=prepared, replay_events=True)


_present: ContextVar[Held | None] = ContextVar("hookline_pydantic_ai_held", default=None)


def holding(model: Model) -> Model | None:
    """A model that is to answer instead of the one that was asked first, held as that one; `None` if it need not be.

    Args:
        model: The model.
    """
    held, inner = _present.get(), model
    while isinstance(inner, WrapperModel) and not isinstance(inner, HoldingModel):
        inner = inner.wrapped
    if held is None or isinstance(inner, HoldingModel) or not _can_stream(model):
        return None
    return HoldingModel(model, held)


def _can_stream(model: Model) -> bool:
    return type(model).request_stream is not Model.request_stream


CALLEE = "hookline.callee"
"""Key of a tool's metadata: the agent that it calls."""


class Calls:
    """The seams within a run, which has begun."""

    def __init__(self) -> None:
        self._run: AdapterRun
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
        if request.streaming and must_hold_stream(run, ModelCall):
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

    def _calling(self, part: ToolCallPart) -> ToolRequest:
        """A call with its arguments as the framework reads them; with none where it finds no object."""
        try:
            args = part.args_as_dict(raise_if_invalid=True)
        except (ValueError, AssertionError):
            args = {}
        return ToolRequest(
            toolset=self._source(part.tool_name), tool_name=part.tool_name, args=args, tool_call_id=part.tool_call_id
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
