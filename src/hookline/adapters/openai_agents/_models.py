"""Models of the OpenAI Agents SDK, asked through the hooks of the run that asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from agents import Agent, Model, ModelBehaviorError, ModelResponse, RunConfig, Usage
from agents.util._error_tracing import get_current_task_model_timeout_error, mark_model_timeout_task
from openai.types.responses import ResponseCompletedEvent, ResponseOutputItemDoneEvent

from hookline.adapters._held_streams import must_hold_stream
from hookline.adapters.openai_agents._attached import Attached, here
from hookline.adapters.openai_agents._items import (
    answer_of,
    completed,
    input_of,
    named,
    names_of,
    output_of,
    specs_of,
    spoken,
)
from hookline.adapters.openai_agents._seams import StandIn
from hookline.calls import ModelCall
from hookline.calls import ModelResponse as Answer
from hookline.runtime import AdapterRun

__all__ = ["model_name", "resolving"]

ASKED = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing")
"""What every model is asked with; the SDK gives it by position or by name."""

FAILURES = ("response.failed", "response.incomplete", "response.error", "error")
"""Events that end a stream without an answer."""


@dataclass(frozen=True)
class Asked:
    """What a model is asked."""

    instructions: str | None
    input: Any
    settings: Any
    tools: Any
    handoffs: Any


def model_name(agent: Agent[Any], config: RunConfig | dict[str, Any] | None) -> str:
    """The name of the model that an agent asks; one of the run is before its own."""
    given = config.get("model") if isinstance(config, dict) else getattr(config, "model", None)
    model = agent.model if given is None else given
    name = model if isinstance(model, str) else getattr(model, "model", "")
    return name if isinstance(name, str) else ""


def resolving(get_model: Callable[..., Model]) -> Callable[..., Model]:
    """Wrap the SDK's function that finds the model of an agent."""

    def get(agent: Agent[Any], run_config: RunConfig) -> Model:
        model, attached = get_model(agent, run_config), here()
        if attached is None:
            return model
        attached.asks = agent
        for known, found in attached.stand_ins:  # the SDK cleans up after each model once, which it knows by identity
            if known is model:
                return found  # type: ignore[no-any-return]
        found = _led_model(attached, model)
        attached.stand_ins.append((model, found))
        return found  # type: ignore[no-any-return]

    return get


def _led_model(attached: Attached, model: Model) -> Any:
    """What stands in for a model during a run: it asks the model, through the hooks."""

    async def get_response(*given: Any, **options: Any) -> ModelResponse:
        begin(attached)
        asked = _asked(attached, given, options)
        if not attached.leads_models:
            response: ModelResponse = await _ask(model.get_response, asked, given, options)
            heard(attached, response, asked.tools, asked.handoffs)
            return response
        response = await _led(attached.run, asked, lambda final: _ask(model.get_response, final, given, options))
        attached.heed_stop()
        attached.asking = False
        return response

    def stream_response(*given: Any, **options: Any) -> AsyncIterator[Any]:
        asked = _asked(attached, given, options)
        stream = _led_stream if attached.leads_models else _heard_stream
        return stream(attached, asked, lambda final: _ask(model.stream_response, final, given, options))

    return StandIn(model, get_response=get_response, stream_response=stream_response)


def _asked(attached: Attached, given: tuple[Any, ...], options: dict[str, Any]) -> Asked:
    """What the SDK asks, by position or by name, with the instructions that hooks have given."""
    values = dict(zip(ASKED, given, strict=False)) | options
    instructions = values["system_instructions"]
    if attached.reworded is not None and attached.reworded[0] is attached.asks:
        instructions = attached.reworded[1]
    return Asked(instructions, values["input"], values["model_settings"], values["tools"], values["handoffs"])


def _ask(method: Callable[..., Any], final: Asked, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Ask as the SDK does: what it gives by position goes by position, and the rest by name."""
    values = {
        **options,
        "system_instructions": final.instructions,
        "input": final.input,
        "model_settings": final.settings,
        "tools": final.tools,
        "handoffs": final.handoffs,
    }
    if not given:
        return method(**values)
    own = {**dict(zip(ASKED, given, strict=False)), **values}
    by_position = [own.pop(name) for name in ASKED[: len(given)]]
    return method(*by_position, *given[len(ASKED) :], **own)


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


async def _led(run: AdapterRun, asked: Asked, get: Callable[[Asked], Awaitable[ModelResponse]]) -> ModelResponse:
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
            kept = {(spec.toolset, spec.name) for spec in call.tools}
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


async def _heard_stream(
    attached: Attached, asked: Asked, stream: Callable[[Asked], AsyncIterator[Any]]
) -> AsyncIterator[Any]:
    """Ask a model, and give its events as they come; only observers look."""
    begin(attached)
    events, done = stream(asked), list[Any]()
    try:
        async for event in events:
            if isinstance(event, ResponseOutputItemDoneEvent):
                done.append(event.item)
            elif isinstance(event, ResponseCompletedEvent):
                heard(attached, _response_of(event, done), asked.tools, asked.handoffs)
            yield event
    finally:
        await _close(events)


async def _led_stream(
    attached: Attached, asked: Asked, stream: Callable[[Asked], AsyncIterator[Any]]
) -> AsyncIterator[Any]:
    """Ask a model through the hooks, and give its events as they come; where a hook may change it, once it is judged.

    A stream that fails stays one: the event that says so is given, or none, and the SDK raises what it does of that.
    """
    begin(attached)
    shown: asyncio.Queue[Any] = asyncio.Queue()
    held = must_hold_stream(attached.run, ModelCall)
    ends: list[ResponseCompletedEvent] = []
    kept: list[Any] = []
    given: list[ModelResponse] = []
    failures: list[tuple[ModelBehaviorError, Any]] = []

    async def get(final: Asked) -> ModelResponse:
        kept.clear()  # an `around` may ask twice
        ends.clear()
        done, failed, events = list[Any](), None, stream(final)
        try:
            async for event in events:
                if isinstance(event, ResponseOutputItemDoneEvent):
                    done.append(event.item)
                if isinstance(event, ResponseCompletedEvent):
                    ends.append(event)
                    given.append(_response_of(event, done))
                elif getattr(event, "type", None) in FAILURES:
                    failed = event
                    break
                elif held:
                    kept.append(event)
                else:
                    shown.put_nowait(event)
        finally:
            await _close(events)
        if failed is not None or not ends:
            how = "without an answer" if failed is None else f"by {failed.type}"
            failures.append((ModelBehaviorError(f"The stream of the model ended {how}."), failed))
            raise failures[-1][0]
        return given[-1]

    async def answered() -> ModelResponse:
        response = await _led(attached.run, asked, get)
        attached.heed_stop()
        attached.asking = False
        return response

    asking = asyncio.ensure_future(answered())
    asking.add_done_callback(lambda _: shown.put_nowait(None))
    try:
        while (event := await shown.get()) is not None:
            yield event
        try:
            answer = asking.result()
        except ModelBehaviorError as error:
            if not failures or error is not failures[-1][0]:
                raise
            if failures[-1][1] is not None:
                yield _unjudged(failures[-1][1]) if held else failures[-1][1]
            return
        if given and answer is given[-1]:
            for event in (*kept, *ends[-1:]):
                yield event
        elif not ends:
            yield completed(answer.output)
        else:
            response = ends[-1].response.model_copy(update={"output": answer.output})
            yield ends[-1].model_copy(update={"response": response})
    finally:
        if not asking.done():
            timeout = get_current_task_model_timeout_error()
            if timeout is not None:  # noted on the task that waits, for the SDK's span in the one that asks
                mark_model_timeout_task(asking, timeout)
            asking.cancel()
            await asyncio.wait([asking])
        if not asking.cancelled():
            asking.exception()  # looked at, where the consumer has left before it was raised


def _response_of(event: ResponseCompletedEvent, done: list[Any]) -> ModelResponse:
    """What a stream came to; some providers say nothing at its end of the items that they have streamed."""
    response, usage = event.response, Usage(requests=1)
    if response.usage is not None:
        usage.input_tokens, usage.output_tokens = response.usage.input_tokens, response.usage.output_tokens
    return ModelResponse(output=response.output or done, usage=usage, response_id=response.id)


def _unjudged(event: Any) -> Any:
    """An event that ends a stream, without the half answer that no hook has judged."""
    response = getattr(event, "response", None)
    if response is None:
        return event
    return event.model_copy(update={"response": response.model_copy(update={"output": []})})


async def _close(events: AsyncIterator[Any]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
