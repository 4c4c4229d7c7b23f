"""Models that wrap the model of a request: one holds back its stream, the other compacts through hooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import Any

from pydantic_ai.messages import (
    FinalResultEvent,
    ModelMessage,
    ModelResponse,
    ModelResponseState,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
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
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from hookline.adapters._streams import read_parts
from hookline.adapters.pydantic_ai import _conversion as convert
from hookline.calls import Message, ModelCall
from hookline.calls import ModelResponse as Answer
from hookline.errors import HooklineError, HookUsageError
from hookline.runtime import AdapterRun, HeldEvents

__all__ = ["CompactingModel", "HeldStream", "ask_again", "can_compact", "hold_model", "time_stream"]


async def ask_again(request: ModelRequestContext, ctx: RunContext[Any]) -> ModelResponse:
    """Ask a model once more in a request of the framework, which asks by itself only once."""
    model, settings, parameters = request.model, request.model_settings, request.model_request_parameters
    if not request.streaming or not _can_stream(model):
        return await model.request(request.messages, settings, parameters)
    async with model.request_stream(request.messages, settings, parameters, ctx) as stream:
        async for _ in stream:
            pass
        return stream.get()


class HeldStream:
    """A streamed model request whose answer is released when hooks have judged it: the whole of it, or its parts.

    The framework requests in one task and reads the stream in another, and its request ends when the stream has been
    read. So the request runs in a task of its own, and the model's answer is known here before that task ends.

    Args:
        handler: Sends the request to the model.
        to_answer: Converts an answer to the one that hooks see.

    Attributes:
        call: The call of a request whose answer hooks judge in parts; `None` for any other.
        answer: The model's answer, or the error of its stream.
        final_answer: The answer that hooks left.
    """

    def __init__(
        self,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
        to_answer: Callable[[ModelResponse], Answer],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._handler, self.to_answer = handler, to_answer
        self.call: ModelCall | None = None
        self._request_task: asyncio.Task[ModelResponse] | None = None
        self.answer: asyncio.Future[ModelResponse] = loop.create_future()
        self.final_answer: asyncio.Future[ModelResponse] = loop.create_future()

    async def __aenter__(self) -> HeldStream:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Cancel the request; an answer that hooks have not seen is never released."""
        if self._request_task is not None and not self._request_task.done():
            self._request_task.cancel()
            await asyncio.wait([self._request_task])
        self.final_answer.cancel()
        if self.answer.done() and not self.answer.cancelled():
            self.answer.exception()  # mark as retrieved, or asyncio would log it

    async def request(self, request: ModelRequestContext) -> ModelResponse:
        """Send the request and return the model's answer, which nobody has seen yet."""
        if _can_stream(request.model):  # for other models the framework raises its own error
            request = replace(request, model=HoldingModel(request.model, self))
        self._request_task = asyncio.create_task(self._request(request))
        await asyncio.wait([self._request_task, self.answer], return_when=asyncio.FIRST_COMPLETED)
        return self.answer.result() if self.answer.done() else self._request_task.result()

    async def _request(self, request: ModelRequestContext) -> ModelResponse:
        _current_stream.set(self)  # this task is the request's own
        return await self._handler(request)

    async def release(self, response: ModelResponse) -> ModelResponse:
        """Release the answer that hooks left; return the answer that the framework ends up with."""
        if self._request_task is None or not self.answer.done():
            return response
        self.final_answer.set_result(response)
        await asyncio.wait([self._request_task])
        return self._request_task.result()


RecordedEvent = tuple[ModelResponseStreamEvent, ModelResponse]
"""An event of a stream, and the answer after it, without its parts."""

DERIVED_EVENTS = (FinalResultEvent, PartEndEvent)
"""The events that follow from the others of a stream."""


class StreamRecording:
    """The events of a model's stream, each with the state of the answer after it.

    Args:
        stream: The stream, not read yet.
    """

    def __init__(self, stream: StreamedResponse) -> None:
        self.stream = stream
        self.beginning = _without_parts(stream)
        self.events: list[RecordedEvent] = []
        self._started: set[int] = set()
        self.is_faithful = True
        """Whether the final answer holds everything that was streamed, with no part replaced by a later one."""

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Add an event of the stream and the answer so far, without its parts, which follow from the events."""
        if isinstance(event, DERIVED_EVENTS):
            return
        if isinstance(event, PartStartEvent):
            self.is_faithful &= event.index not in self._started
            self._started.add(event.index)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, ToolCallPartDelta):
            self.is_faithful &= not isinstance(event.delta.args_delta, dict)
        last, now = self.events[-1][1] if self.events else self.beginning, _without_parts(self.stream)
        self.events.append((event, last if now == last else now))


def _without_parts(stream: StreamedResponse) -> ModelResponse:
    return _without_all_parts(stream.get())


def _without_all_parts(answer: ModelResponse) -> ModelResponse:
    return replace(answer, parts=[], usage=copy(answer.usage))


class ReplayedStream(CompletedStreamedResponse):
    """A stream that replays what a model streamed, event by event.

    Args:
        response: The whole answer.
        recording: The recorded stream.
    """

    def __init__(self, response: ModelResponse, recording: StreamRecording) -> None:
        # Use the parameters that the model prepared, because they determine what counts as the final output.
        super().__init__(
            response, model_request_parameters=recording.stream.model_request_parameters, replay_events=True
        )
        self._recording, self._now = recording, recording.beginning

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for event, now in self._recording.events:
            if self.cancelled:
                return
            self._parts_manager.apply_event(event)
            self._now = now
            yield event

    def get(self) -> ModelResponse:
        """Return the answer as far as it has been streamed."""
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
        """The usage so far."""
        return self.response.usage if self._finished else self._now.usage


class JudgedResponseStream(StreamedResponse):
    """A stream that releases the text of a model in parts that hooks have judged.

    Args:
        stream: The stream of the model, not read yet.
        held: The request.
        call: The call that the stream answers.
        to_answer: Converts an answer to the one that hooks see.
    """

    def __init__(
        self, stream: StreamedResponse, held: HeldStream, call: ModelCall, to_answer: Callable[[ModelResponse], Answer]
    ) -> None:
        super().__init__(stream.model_request_parameters)
        self._stream, self._held = stream, held
        self._recording = StreamRecording(stream)
        self._now = self._recording.beginning
        self._final: ModelResponse | None = None
        self._text_start: PartStartEvent | None = None
        self._text_begun = False
        self._parts = HeldEvents[RecordedEvent](
            call,
            text_of=self._text_of,
            with_text=self._with_text,
            is_frame=lambda recorded: False,
            read_so_far=lambda: to_answer(stream.get()),
        )

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        try:
            async with aclosing(read_parts(self._parts, self._pieces())) as released:
                async for recorded in released:
                    yield self._apply(recorded)
            answer = self._stream.get()
            _refuse_suspended(answer)
        except Exception as error:
            if not self._held.answer.done():
                self._held.answer.set_exception(error)
            # The hooks and the request end with the error, and the framework raises it in this task.
            await asyncio.wait([self._held.final_answer])
            raise
        if self.cancelled or self._held.answer.done():
            return
        self._held.answer.set_result(answer)
        await asyncio.wait([self._held.final_answer])  # not `await`, which a cancellation would pass on to the future
        self._final = response = self._held.final_answer.result()
        for recorded in takewhile(lambda _: not self.cancelled, self._rest(response, answer)):
            yield self._apply(recorded)

    async def _pieces(self) -> AsyncGenerator[RecordedEvent, None]:
        async for event in self._stream:
            if not isinstance(event, DERIVED_EVENTS):
                self._recording.add(event)
                yield self._recording.events[-1]

    def _text_of(self, recorded: RecordedEvent) -> str | None:
        """Return the text of an event of the first part that is text, with nothing else in it."""
        event, start = recorded[0], self._text_start
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) and start is None:
            self._text_start = event
            return event.part.content
        if start is None or not isinstance(event, PartDeltaEvent) or event.index != start.index:
            return None
        delta = event.delta
        only_text = isinstance(delta, TextPartDelta) and delta == TextPartDelta(delta.content_delta)
        return delta.content_delta if isinstance(delta, TextPartDelta) and only_text else None

    def _with_text(self, recorded: RecordedEvent, text: str) -> RecordedEvent:
        """Return an event with text that is released; the first one starts the part."""
        start = self._text_start
        assert start is not None
        event: ModelResponseStreamEvent = PartDeltaEvent(index=start.index, delta=TextPartDelta(text))
        if not self._text_begun and isinstance(start.part, TextPart):
            self._text_begun, event = True, replace(start, part=replace(start.part, content=text))
        return event, recorded[1]

    def _apply(self, recorded: RecordedEvent) -> ModelResponseStreamEvent:
        """Note that an event is released."""
        event, self._now = recorded
        self._parts_manager.apply_event(event)
        return event

    def _rest(self, response: ModelResponse, answer: ModelResponse) -> Iterator[RecordedEvent]:
        """Yield what was not released of an answer, as hooks left it."""
        if response is answer and self._recording.is_faithful:
            yield from self._parts.rest()
            return
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        yield from self._parts.rest_of(text)
        released = bool(self._parts.released)
        for part in response.parts:
            if not (released and isinstance(part, TextPart)):
                index = len(self._parts_manager.get_parts())
                yield PartStartEvent(index=index, part=part), _without_all_parts(response)

    async def close_stream(self) -> None:
        """Close the stream of the model."""
        await self._stream.cancel()

    def get(self) -> ModelResponse:
        """Return the answer as far as it was released."""
        if self._finished and self._final is not None:
            failed = [*(self.failed_attempts or ()), *(self._final.failed_attempts or ())]
            return replace(self._final, failed_attempts=failed) if self.failed_attempts else self._final
        state: ModelResponseState = "interrupted" if self.cancelled else "incomplete"
        return replace(self._now, parts=self._parts_manager.get_parts(), state=state)

    @property
    def usage(self) -> RequestUsage:
        """The usage so far."""
        return self._final.usage if self._finished and self._final is not None else self._now.usage

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._stream.model_name

    @property
    def provider_name(self) -> str | None:
        """The name of the provider."""
        return self._stream.provider_name

    @property
    def provider_url(self) -> str | None:
        """The URL of the provider."""
        return self._stream.provider_url

    @property
    def timestamp(self) -> datetime:
        """The time of the answer."""
        return self._stream.timestamp


def _refuse_suspended(answer: ModelResponse) -> None:
    if answer.state == "suspended":
        raise HookUsageError(
            "The model paused within its answer, and a stream of several parts cannot be held back until the hooks "
            "of ModelCall have run. Use `run` instead."
        )


class HoldingModel(WrapperModel):
    """A model whose stream is released when hooks have judged its answer, or parts of it."""

    def __init__(self, wrapped: Model, held: HeldStream) -> None:
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
        """Read the stream of the model, and stream the answer that hooks left."""
        async with self.wrapped.request_stream(
            messages, model_settings, model_request_parameters, run_context
        ) as stream:
            if self._held.call is not None:
                yield JudgedResponseStream(stream, self._held, self._held.call, self._held.to_answer)
                return
            recording = StreamRecording(stream)
            async for event in stream:
                recording.add(event)
            answer = stream.get()
        _refuse_suspended(answer)
        self._held.answer.set_result(answer)
        response = await self._held.final_answer
        if response is answer and recording.is_faithful:
            yield ReplayedStream(answer, recording)
        else:
            # Use the parameters that the model prepared, because they determine what counts as the final output, and
            # so what is requested again.
            prepared = stream.model_request_parameters
            yield CompletedStreamedResponse(response, model_request_parameters=prepared, replay_events=True)


_current_stream: ContextVar[HeldStream | None] = ContextVar("hookline_pydantic_ai_held", default=None)


def hold_model(model: Model) -> Model | None:
    """Hold back the stream of a model that answers in place of the first one; `None` if that is not needed.

    Args:
        model: The model.
    """
    held, inner = _current_stream.get(), model
    if held is None:
        return None
    while isinstance(inner, WrapperModel) and not isinstance(inner, HoldingModel):
        inner = inner.wrapped
    if isinstance(inner, HoldingModel) or not _can_stream(model):
        return None
    return HoldingModel(model, held)


class TimedModel(WrapperModel):
    """A model that tells when the pieces of its streamed answer arrive.

    Args:
        wrapped: The model.
        note_piece: Called for each piece.
    """

    def __init__(self, wrapped: Model, note_piece: Callable[[], None]) -> None:
        super().__init__(wrapped)
        self._note_piece = note_piece

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream the answer of the model."""
        async with self.wrapped.request_stream(
            messages, model_settings, model_request_parameters, run_context
        ) as stream:
            events_of = stream._get_event_iterator

            async def timed() -> AsyncGenerator[ModelResponseStreamEvent]:
                async for event in events_of():
                    self._note_piece()
                    yield event

            vars(stream)["_get_event_iterator"] = timed
            yield stream


def time_stream(model: Model, run: AdapterRun) -> Model:
    """Return a model that tells when the pieces of its streamed answer arrive, if telemetry measures the run."""
    if ModelCall not in run.run.enclosing or not _can_stream(model):
        return model
    return TimedModel(model, run.begin_stream())


def _can_stream(model: Model) -> bool:
    return type(model).request_stream is not Model.request_stream


def can_compact(model: Model) -> bool:
    """Return whether a model can compact a conversation."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return type(model).compact_messages is not Model.compact_messages


class CompactingModel(WrapperModel):
    """A model whose compactions pass through the hooks of the run."""

    def __init__(
        self, wrapped: Model, run: AdapterRun, messages_of: Callable[[ModelRequestContext], list[Message]]
    ) -> None:
        super().__init__(wrapped)
        self._run, self._messages_of = run, messages_of

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        responses: list[ModelResponse] = []
        raised: list[Exception] = []

        async def summarize(messages: list[Message]) -> str:
            try:
                responses.append(await self.wrapped.compact_messages(request_context, instructions=instructions))
            except Exception as error:
                raised.append(error)
                raise
            return convert.summary_text(responses[0])

        tokens = convert.last_input_tokens(request_context.messages)
        summary = await self._run.compact(self._messages_of(request_context), tokens, summarize)
        if summary is None:
            raise (
                raised[0]
                if raised
                else HooklineError("A hook denied the compaction, and the run cannot continue without it.")
            )
        if responses and summary == convert.summary_text(responses[0]):
            return responses[0]
        return ModelResponse(parts=[TextPart(summary)])
