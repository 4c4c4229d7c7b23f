"""Streams of Pydantic AI of which nothing is shown before hooks have judged the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import (
    FinalResultEvent,
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
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

from hookline.adapters._pydantic_ai_under_way import UnderWay
from hookline.errors import HookUsageError

__all__ = ["Held", "holding"]


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
