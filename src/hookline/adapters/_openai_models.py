"""Models of the OpenAI Agents SDK, asked through the hooks of the run that asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from agents import Agent, Model, ModelProvider, ModelResponse, RunConfig, Usage
from openai.types.responses import ResponseCompletedEvent, ResponseOutputItemDoneEvent

from hookline.adapters._openai_attached import Attached, present
from hookline.adapters._openai_items import (
    answer_of,
    completed,
    input_of,
    named,
    names_of,
    output_of,
    specs_of,
    spoken,
)
from hookline.calls import ModelCall
from hookline.calls import ModelResponse as Answer
from hookline.runtime import ForeignRun

__all__ = ["TwinProvider", "alike", "model_name", "twin_model"]


@dataclass(frozen=True)
class Asked:
    """What a model is asked."""

    instructions: str | None
    input: Any
    settings: Any
    tools: Any
    handoffs: Any


def alike(given: Any, kind: type[Any] | None = None) -> Any:
    """A copy with the same attributes; `copy.copy` takes several times as long, and some classes make more of it."""
    found = object.__new__(kind or type(given))
    vars(found).update(vars(given))
    return found


def twin_model(model: Any) -> Any:
    """The twin of a model; a name stays a name."""
    return TwinModel(model) if isinstance(model, Model) and not isinstance(model, TwinModel) else model


def model_name(agent: Agent[Any], config: RunConfig | dict[str, Any] | None) -> str:
    """The name of the model that an agent asks; one of the run is before its own."""
    given = config.get("model") if isinstance(config, dict) else getattr(config, "model", None)
    model = agent.model if given is None else given
    name = model if isinstance(model, str) else getattr(model, "model", "")
    return name if isinstance(name, str) else ""


class TwinProvider(ModelProvider):
    """Gives the twins of a provider's models."""

    def __init__(self, inner: ModelProvider) -> None:
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        found: Model = twin_model(self._inner.get_model(model_name))
        return found

    async def aclose(self) -> None:
        await self._inner.aclose()


class TwinModel(Model):
    """Asks a model, through the hooks of the run that asks."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_retry_advice(self, request: Any) -> Any:
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        await self._inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        tracing: Any,
        **further: Any,
    ) -> ModelResponse:
        attached = present.get()
        if attached is None or not attached.leads_models:
            if attached is not None:
                begin(attached)
            given = system_instructions, input, model_settings, tools, output_schema, handoffs, tracing
            response = await self._inner.get_response(*given, **further)
            if attached is not None:
                heard(attached, response, tools, handoffs)
            return response

        async def ask_it(final: Asked) -> ModelResponse:
            given = final.instructions, final.input, final.settings, final.tools, output_schema, final.handoffs, tracing
            return await self._inner.get_response(*given, **further)

        return await ask(attached, Asked(system_instructions, input, model_settings, tools, handoffs), ask_it)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        tracing: Any,
        **further: Any,
    ) -> AsyncIterator[Any]:
        asked = Asked(system_instructions, input, model_settings, tools, handoffs)
        attached = present.get()

        def stream(final: Asked) -> AsyncIterator[Any]:
            given = final.instructions, final.input, final.settings, final.tools, output_schema, final.handoffs, tracing
            return self._inner.stream_response(*given, **further)

        async for event in stream(asked) if attached is None else ask_stream(attached, asked, stream):
            yield event


def begin(attached: Attached) -> None:
    """A model is about to be asked. What fails and is tried again is the same step."""
    attached.heed_stop()
    if not attached.asking:
        attached.run.begin_step()
        attached.asking = True
    if not attached.leads_models:
        attached.run.begin_model_call()


def heard(attached: Attached, response: ModelResponse, tools: Any, handoffs: Any) -> None:
    """A model has answered, and only observers look."""
    run = attached.run
    run.asked_model(answer_of(response, tools, handoffs))
    attached.asking = False


async def ask(attached: Attached, asked: Asked, get: Callable[[Asked], Awaitable[ModelResponse]]) -> ModelResponse:
    """A model is asked."""
    begin(attached)
    if not attached.leads_models:
        response = await get(asked)
        heard(attached, response, asked.tools, asked.handoffs)
        return response
    response = await _led(attached.run, asked, get)
    attached.heed_stop()
    attached.asking = False
    return response


async def _led(run: ForeignRun, asked: Asked, get: Callable[[Asked], Awaitable[ModelResponse]]) -> ModelResponse:
    names = names_of(asked.tools, asked.handoffs)
    known = spoken(asked.instructions, asked.input, names)
    messages = [message for message, _ in known]
    specs = specs_of(asked.tools, asked.handoffs)
    settings = {key: each for key, each in vars(asked.settings).items() if isinstance(each, int | float | str)}
    own: list[tuple[ModelResponse, Answer]] = []

    async def answered(call: ModelCall) -> Answer:
        final = asked
        if call.messages != messages:
            instructions, given = input_of(call.messages, known, asked.instructions)
            final = replace(final, instructions=instructions, input=given)
        if call.settings != settings:
            final = replace(final, settings=replace(asked.settings, **call.settings))
        if call.tools != specs:
            kept = {(spec.identifier, spec.name) for spec in call.tools}
            tools, handoffs = ([each for each in all_ if named(each) in kept] for all_ in (asked.tools, asked.handoffs))
            final = replace(final, tools=tools, handoffs=handoffs)
        response = await get(final)
        own.append((response, answer_of(response, asked.tools, asked.handoffs)))
        return own[-1][1]

    answer = await run.ask_model(messages, answered, tools=specs, settings=settings)
    if answer is None:
        return ModelResponse(output=[], usage=Usage(), response_id=None)
    if own and answer == own[-1][1]:
        return own[-1][0]
    usage = own[-1][0].usage if own else Usage()
    return ModelResponse(output=output_of(answer, names), usage=usage, response_id=None)


async def ask_stream(
    attached: Attached, asked: Asked, stream: Callable[[Asked], AsyncIterator[Any]]
) -> AsyncIterator[Any]:
    """A model is asked, and its answer shown while it is written; where a hook may change it, once it is judged."""
    shown: asyncio.Queue[Any] = asyncio.Queue()
    held = ModelCall in attached.run.run.intercepted
    ends: list[ResponseCompletedEvent] = []
    kept: list[Any] = []

    async def get(final: Asked) -> ModelResponse:
        done: list[Any] = []
        async for event in stream(final):
            if isinstance(event, ResponseOutputItemDoneEvent):
                done.append(event.item)
            if isinstance(event, ResponseCompletedEvent):
                ends.append(event)
            elif held:
                kept.append(event)
            else:
                shown.put_nowait(event)
        if not ends:
            return ModelResponse(output=done, usage=Usage(), response_id=None)
        response = ends[-1].response
        usage = Usage(requests=1)
        if response.usage is not None:
            usage = Usage(
                requests=1, input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens
            )
        return own(response.output or done, usage, response.id)

    given: list[ModelResponse] = []

    def own(output: list[Any], usage: Usage, response_id: str) -> ModelResponse:
        given.append(ModelResponse(output=output, usage=usage, response_id=response_id))
        return given[-1]

    asking = asyncio.ensure_future(ask(attached, asked, get))
    asking.add_done_callback(lambda _: shown.put_nowait(None))
    try:
        while (event := await shown.get()) is not None:
            yield event
        answer = asking.result()
        if given and answer is given[-1]:
            for event in (*kept, *ends):
                yield event
        elif not given and not ends:
            yield completed(answer.output)
        else:
            response = ends[-1].response.model_copy(update={"output": answer.output})
            yield ends[-1].model_copy(update={"response": response})
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.wait([asking])
