"""Streams of Pydantic AI of which nothing is shown before hooks have judged the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse
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
        self._asked = asyncio.create_task(self._ask(replace(request, model=HoldingModel(request.model, self))))
        await asyncio.wait([self._asked, self.heard], return_when=asyncio.FIRST_COMPLETED)
        return self.heard.result() if self.heard.done() else self._asked.result()

    async def _ask(self, request: ModelRequestContext) -> ModelResponse:
        _present.set(self)  # in a task of its own
        with UnderWay(self._calls):
            return await self._handler(request)

    async def give(self, response: ModelResponse) -> ModelResponse:
        """Give on the answer as it was judged; the same as the framework ends up with it."""
        if self._asked is None or not self.heard.done():
            return response
        self.judged.set_result(response)
        await asyncio.wait([self._asked])
        return self._asked.result()


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
            async for _ in stream:
                pass
            response = stream.get()
        if response.state == "suspended":
            raise HookUsageError(
                "The model paused within its answer, and a stream of several parts cannot be held back until hooks of "
                "ModelCall have judged it. Use `run` instead."
            )
        self._held.heard.set_result(response)
        response = await self._held.judged
        # Those that the model has prepared: they say what counts as the final output, and so what is asked for again.
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
    return None if held is None or isinstance(inner, HoldingModel) else HoldingModel(model, held)
