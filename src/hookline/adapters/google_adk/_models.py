"""Release the streamed answers of an agent's model in parts that hooks have judged."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from hookline.adapters._streams import read_parts
from hookline.adapters.google_adk import _conversion as convert
from hookline.adapters.google_adk._plugin import AdkBinding, current_binding
from hookline.calls import ModelCall
from hookline.runtime import HeldEvents

__all__ = ["wrap_models"]


@functools.cache
def wrap_models() -> None:
    """Wrap `LlmAgent.canonical_model_async`, so that the stream of a model passes hooks that judge it in parts.

    It happens once per process. ADK's callbacks see a model's stream only when a part comes, and so could not judge
    text that waits. Without such hooks the wrapper only calls the method.
    """
    own_model = LlmAgent.canonical_model_async

    @functools.wraps(own_model)
    async def canonical_model_async(self: LlmAgent, ctx: Any) -> BaseLlm:
        model, binding = await own_model(self, ctx), current_binding.get()
        call = binding.judged_call if binding is not None else None
        return model if binding is None or call is None else JudgedModel(model, binding, call)

    cast(Any, LlmAgent).canonical_model_async = canonical_model_async


class JudgedModel(BaseLlm):
    """A model whose streamed answer hooks judge in parts.

    Args:
        inner: The model.
        binding: The operation that asks it.
        call: The call as hooks left it.
    """

    def __init__(self, inner: BaseLlm, binding: AdkBinding, call: ModelCall) -> None:
        super().__init__(model=inner.model)
        self._inner, self._binding, self._call = inner, binding, call

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        binding, whole = self._binding, list[LlmResponse]()
        parts = HeldEvents[LlmResponse](
            self._call,
            text_of=lambda response: convert.text_of(response.content),
            with_text=lambda response, text: response.model_copy(
                update={"content": convert.text_content("model", text)}
            ),
            is_frame=lambda response: False,
            read_so_far=lambda: convert.from_llm_response(binding.last_part),
        )
        binding.reads_parts = True

        async def read(responses: AsyncGenerator[LlmResponse, None]) -> AsyncGenerator[LlmResponse, None]:
            async for response in responses:
                if response.partial:
                    binding.note_part(response)
                    yield response
                else:
                    whole.append(response)

        async with aclosing(self._inner.generate_content_async(llm_request, stream=stream)) as responses:
            async with aclosing(read_parts(parts, read(responses))) as released:
                async for response in released:
                    yield response
            for response in whole:
                yield response
