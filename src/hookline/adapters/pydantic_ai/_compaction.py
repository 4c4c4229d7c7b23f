"""A model of Pydantic AI whose compaction of a conversation is led through hooks."""

from __future__ import annotations

from collections.abc import Callable

from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.wrapper import WrapperModel

from hookline.adapters.pydantic_ai import _words as words
from hookline.calls import Message
from hookline.errors import HooklineError
from hookline.runtime import AdapterRun

__all__ = ["CompactingModel", "can_compact"]


def can_compact(model: Model) -> bool:
    """Whether a model knows how to compact a conversation."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return type(model).compact_messages is not Model.compact_messages


class CompactingModel(WrapperModel):
    """A model whose compaction of a conversation is led through hooks."""

    def __init__(self, wrapped: Model, run: AdapterRun, talk: Callable[[ModelRequestContext], list[Message]]) -> None:
        super().__init__(wrapped)
        self._run, self._talk = run, talk

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        gave: list[ModelResponse] = []
        raised: list[Exception] = []

        async def summarize(messages: list[Message]) -> str:
            try:
                gave.append(await self.wrapped.compact_messages(request_context, instructions=instructions))
            except Exception as error:
                raised.append(error)
                raise
            return words.summary_of(gave[0])

        tokens = words.tokens_of(request_context.messages)
        summary = await self._run.compact(self._talk(request_context), tokens, summarize)
        if summary is None:
            raise (
                raised[0]
                if raised
                else HooklineError("A hook denied the compaction, and the run cannot go on without.")
            )
        if gave and summary == words.summary_of(gave[0]):
            return gave[0]
        return ModelResponse(parts=[TextPart(summary)])
