"""Pass the model calls of the OpenAI Agents SDK through the hooks of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from agents import Agent, Model, ModelBehaviorError, ModelResponse, RunConfig, Usage
from agents.util._error_tracing import get_current_task_model_timeout_error, mark_model_timeout_task
from openai.types.responses import ResponseCompletedEvent, ResponseOutputItemDoneEvent

from hookline.adapters._streams import must_hold_stream, read_parts
from hookline.adapters.openai_agents._conversion import (
    completed_event,
    from_items,
    from_model_response,
    is_frame,
    items_text,
    text_reader,
    to_items,
    to_output_items,
    to_tool_specs,
    tool_identities,
    tool_identity,
    with_text,
)
from hookline.adapters.openai_agents._patches import Substitute
from hookline.adapters.openai_agents._run_binding import OpenAIBinding, present_binding
from hookline.calls import ModelCall
from hookline.calls import ModelResponse as Answer
from hookline.runtime import AdapterRun, PartsStream

__all__ = ["model_name", "wrap_get_model"]

INPUT_NAMES = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing")
"""The arguments of every model call, which the SDK passes by position or by name."""

FAILURE_EVENTS = ("response.failed", "response.incomplete", "response.error", "error")
"""The types of events that end a stream without an answer."""


@dataclass(frozen=True)
class ModelInput:
    """The input of a model call."""

    instructions: str | None
    input: Any
    settings: Any
    tools: Any
    handoffs: Any


def model_name(agent: Agent[Any], config: RunConfig | dict[str, Any] | None) -> str:
    """Return the name of an agent's model; a model of the run comes before the agent's own."""
    given = config.get("model") if isinstance(config, dict) else getattr(config, "model", None)
    model = agent.model if given is None else given
    name = model if isinstance(model, str) else getattr(model, "model", "")
    return name if isinstance(name, str) else ""


def wrap_get_model(get_model: Callable[..., Model]) -> Callable[..., Model]:
    """Wrap the SDK's function that returns the model of an agent."""

    def get(agent: Agent[Any], run_config: RunConfig) -> Model:
        model, binding = get_model(agent, run_config), present_binding()
        if binding is None:
            return model
        binding.asking_agent = agent
        # The same model has the same substitute: the SDK tells models apart by identity, to close each of them once.
        for known, found in binding.substitutes:
            if known is model:
                return found  # type: ignore[no-any-return]
        found = _substitute_model(binding, model)
        binding.substitutes.append((model, found))
        return found  # type: ignore[no-any-return]

    return get


def _substitute_model(binding: OpenAIBinding, model: Model) -> Any:
    """Return a substitute for a model that makes its calls through the hooks of the run."""

    async def get_response(*given: Any, **options: Any) -> ModelResponse:
        hooked = begin_model_call(binding)
        if not hooked and binding.instruction_override is None and "tools" in options and "handoffs" in options:
            response: ModelResponse = await model.get_response(*given, **options)
            record_answer(binding, response, options["tools"], options["handoffs"])
            return response
        model_input = _model_input(binding, given, options)
        if not hooked:
            response = await _call_model(model.get_response, model_input, given, options)
            record_answer(binding, response, model_input.tools, model_input.handoffs)
            return response
        response = await _ask_through_hooks(
            binding.run, model_input, lambda final, _: _call_model(model.get_response, final, given, options)
        )
        binding.raise_if_stopped()
        binding.model_pending = False
        return response

    def stream_response(*given: Any, **options: Any) -> AsyncIterator[Any]:
        model_input = _model_input(binding, given, options)
        stream = _hooked_stream if binding.run.leads(ModelCall) else _observed_stream
        return stream(binding, model_input, lambda final: _call_model(model.stream_response, final, given, options))

    return Substitute(model, get_response=get_response, stream_response=stream_response)


def _model_input(binding: OpenAIBinding, given: tuple[Any, ...], options: dict[str, Any]) -> ModelInput:
    """Return the input of a model call, with the instructions that hooks set."""
    values = dict(zip(INPUT_NAMES, given, strict=False)) | options
    instructions = values["system_instructions"]
    if binding.instruction_override is not None and binding.instruction_override[0] is binding.asking_agent:
        instructions = binding.instruction_override[1]
    return ModelInput(instructions, values["input"], values["model_settings"], values["tools"], values["handoffs"])


def _call_model(method: Callable[..., Any], final: ModelInput, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call a model with each argument by position or by name, as the SDK passed it."""
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
    own = {**dict(zip(INPUT_NAMES, given, strict=False)), **values}
    by_position = [own.pop(name) for name in INPUT_NAMES[: len(given)]]
    return method(*by_position, *given[len(INPUT_NAMES) :], **own)


def begin_model_call(binding: OpenAIBinding) -> bool:
    """Begin a model call; a retry belongs to the same step.

    Returns:
        Whether the call must go through the hooks; for observers alone, the answer suffices.
    """
    run = binding.run
    binding.raise_if_stopped()
    if not binding.model_pending:
        run.begin_step()
        binding.model_pending = True
    hooked = run.leads(ModelCall)
    if not hooked:
        run.begin_model_call()
    return hooked


def record_answer(binding: OpenAIBinding, response: ModelResponse, tools: Any, handoffs: Any) -> None:
    """Record a model's answer for observers."""
    binding.run.asked_model(from_model_response(response, tools, handoffs))
    binding.model_pending = False


async def _ask_through_hooks(
    run: AdapterRun, model_input: ModelInput, get: Callable[[ModelInput, ModelCall], Awaitable[ModelResponse]]
) -> ModelResponse:
    names = tool_identities(model_input.tools, model_input.handoffs)
    known = from_items(model_input.instructions, model_input.input, names)
    messages = [message for message, _ in known]
    specs = to_tool_specs(model_input.tools, model_input.handoffs)
    settings = {key: each for key, each in vars(model_input.settings).items() if isinstance(each, int | float | str)}
    own: list[tuple[ModelResponse, Answer]] = []

    async def ask(call: ModelCall) -> Answer:
        final = model_input
        if call.messages != messages:
            instructions, given = to_items(call.messages, known, model_input.instructions)
            final = replace(final, instructions=instructions, input=given)
        if call.settings != settings:
            final = replace(final, settings=replace(model_input.settings, **call.settings))
        if call.tools != specs:
            kept = {(spec.toolset, spec.name) for spec in call.tools}
            tools, handoffs = (
                [each for each in all_ if tool_identity(each) in kept]
                for all_ in (model_input.tools, model_input.handoffs)
            )
            final = replace(final, tools=tools, handoffs=handoffs)
        response = await get(final, call)
        own.append((response, from_model_response(response, model_input.tools, model_input.handoffs)))
        return own[-1][1]

    answer = await run.ask_model(messages, ask, tools=specs, settings=settings)
    if answer is None:
        return ModelResponse(output=[], usage=Usage(), response_id=None)
    if own and answer == own[-1][1]:
        return own[-1][0]
    usage = own[-1][0].usage if own else Usage()
    return ModelResponse(output=to_output_items(answer, names), usage=usage, response_id=None)


async def _observed_stream(
    binding: OpenAIBinding, model_input: ModelInput, stream: Callable[[ModelInput], AsyncIterator[Any]]
) -> AsyncIterator[Any]:
    """Stream a model's answer that only observers watch."""
    begin_model_call(binding)
    events, done = stream(model_input), list[Any]()
    try:
        async for event in events:
            if isinstance(event, ResponseOutputItemDoneEvent):
                done.append(event.item)
            elif isinstance(event, ResponseCompletedEvent):
                record_answer(binding, _to_model_response(event, done), model_input.tools, model_input.handoffs)
            yield event
    finally:
        await _close(events)


async def _hooked_stream(
    binding: OpenAIBinding, model_input: ModelInput, stream: Callable[[ModelInput], AsyncIterator[Any]]
) -> AsyncIterator[Any]:
    """Stream a model's answer through the hooks; events are held back if a hook may change the answer.

    A stream that fails ends with its failure event, or with no event, and the SDK raises its own error for that.
    """
    begin_model_call(binding)
    events_to_yield: asyncio.Queue[Any] = asyncio.Queue()
    hold = must_hold_stream(binding.run, ModelCall)
    ends: list[ResponseCompletedEvent] = []
    streams: list[PartsStream[Any]] = []
    given: list[ModelResponse] = []
    failures: list[tuple[ModelBehaviorError, Any]] = []

    async def get(final: ModelInput, call: ModelCall) -> ModelResponse:
        ends.clear()  # an `around` may ask twice
        parts = PartsStream[Any](call, has_reader=hold, text_of=text_reader(), with_text=with_text, is_frame=is_frame)
        streams[:] = [parts]
        done, note_piece = list[Any](), binding.run.begin_stream()
        events = stream(final)

        async def pieces() -> AsyncGenerator[Any, None]:
            failed = None
            async for event in events:
                note_piece()
                if isinstance(event, ResponseOutputItemDoneEvent):
                    done.append(event.item)
                if isinstance(event, ResponseCompletedEvent):
                    ends.append(event)
                    given.append(_to_model_response(event, done))
                elif getattr(event, "type", None) in FAILURE_EVENTS:
                    failed = event
                    break
                else:
                    yield event
            if failed is not None or not ends:
                how = "without an answer" if failed is None else f"by {failed.type}"
                failures.append((ModelBehaviorError(f"The stream of the model ended {how}."), failed))
                raise failures[-1][0]

        try:
            async with aclosing(read_parts(parts, pieces()) if hold else pieces()) as released:
                async for event in released:
                    events_to_yield.put_nowait(event)
        finally:
            await _close(events)
        return given[-1]

    async def ask() -> ModelResponse:
        response = await _ask_through_hooks(binding.run, model_input, get)
        binding.raise_if_stopped()
        binding.model_pending = False
        return response

    asking = asyncio.ensure_future(ask())
    asking.add_done_callback(lambda _: events_to_yield.put_nowait(None))
    try:
        while (event := await events_to_yield.get()) is not None:
            yield event
        try:
            answer = asking.result()
        except ModelBehaviorError as error:
            if not failures or error is not failures[-1][0]:
                raise
            if failures[-1][1] is not None:
                yield _without_output(failures[-1][1]) if hold else failures[-1][1]
            return
        parts = streams[-1] if streams else None
        if given and answer is given[-1]:
            for event in (*(parts.rest() if parts is not None else ()), *ends[-1:]):
                yield event
        elif not ends:
            yield completed_event(answer.output)
        else:
            assert parts is not None
            for event in parts.rest_of(items_text(answer.output)):
                yield event
            response = ends[-1].response.model_copy(update={"output": answer.output})
            yield ends[-1].model_copy(update={"response": response})
    finally:
        if not asking.done():
            timeout = get_current_task_model_timeout_error()
            if timeout is not None:  # the SDK sets it on the waiting task; its span is in the task that calls
                mark_model_timeout_task(asking, timeout)
            asking.cancel()
            await asyncio.wait([asking])
        if not asking.cancelled():
            asking.exception()  # mark as retrieved if the consumer left before


def _to_model_response(event: ResponseCompletedEvent, done: list[Any]) -> ModelResponse:
    """Return the response of a stream; some providers do not repeat the streamed items at its end."""
    response, usage = event.response, Usage(requests=1)
    if response.usage is not None:
        usage.input_tokens, usage.output_tokens = response.usage.input_tokens, response.usage.output_tokens
    return ModelResponse(output=response.output or done, usage=usage, response_id=response.id)


def _without_output(event: Any) -> Any:
    """Return a failure event without the partial answer, which hooks have not seen."""
    response = getattr(event, "response", None)
    if response is None:
        return event
    return event.model_copy(update={"response": response.model_copy(update={"output": []})})


async def _close(events: AsyncIterator[Any]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
