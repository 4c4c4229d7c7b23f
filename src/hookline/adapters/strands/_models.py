"""Model calls of a Strands agent, and the middleware that leads calls through hooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import closing
from typing import Any

from strands.hooks import AfterModelCallEvent
from strands.middleware import ModelStopReason, TypedEvent

from hookline.adapters._held_streams import must_hold_stream
from hookline.adapters._stepping import GeneratorBridge, emit
from hookline.adapters.strands import _words as words
from hookline.adapters.strands._seat import Seat, seat_of
from hookline.calls import Message, ModelCall, ModelResponse

__all__ = ["after_model", "model_stage", "relayed"]

Next = Callable[[Any], AsyncGenerator[Any, None]]
Started = Callable[[Seat, Any, Next], Coroutine[Any, Any, TypedEvent]]


async def relayed(start: Started, context: Any, call_next: Next) -> AsyncGenerator[Any, None]:
    """Middleware that leads a call through the hooks of the present run.

    Args:
        start: Leads it; what it emits and what it returns are the events of the call.
        context: The call.
        call_next: Makes it.
    """
    seat = seat_of(context.agent)
    if seat is None:
        async for event in call_next(context):
            yield event
        return
    relay = GeneratorBridge(start(seat, context, call_next))
    with closing(relay.work):
        async for event in relay:
            yield event
    yield relay.result


async def model_stage(context: Any, call_next: Next) -> AsyncGenerator[Any, None]:
    """Middleware of model calls, for runs whose hooks stand around them.

    Args:
        context: The call.
        call_next: Makes it.
    """
    seat = seat_of(context.agent)
    led = seat is not None and seat.leads_models
    async for event in relayed(_ask, context, call_next) if led else call_next(context):
        yield event


def after_model(event: AfterModelCallEvent) -> None:
    """A model has answered or failed, and only observers look; a call that was cancelled has no metadata."""
    seat = seat_of(event.agent)
    if seat is None or seat.leads_models:
        return
    if event.exception is not None:
        seat.error = event.exception
    answer = event.stop_response
    if answer is not None and "metadata" in answer.message:
        seat.asking = False
        usage = answer.message["metadata"]["usage"]
        seat.run.asked_model(words.response_of(event.agent, answer.message, answer.stop_reason, usage))


async def _ask(seat: Seat, context: Any, call_next: Next) -> ModelStopReason:
    """A model call with hooks around it."""
    run, agent, own = seat.run, context.agent, list[ModelStopReason]()
    known = [(each, words.heard(agent, each)) for each in context.messages]
    system = [Message(role="system", content=_system(context))] if context.system_prompt else []
    messages = [*system, *(ours for _, each in known for ours in each)]
    tools = words.specs(agent, context.tool_specs)

    async def ask(call: ModelCall) -> ModelResponse:
        given = context
        if call.messages != messages or call.tools != tools:
            given = _changed(context, call, system, known)
        try:
            async for event in call_next(given):
                if isinstance(event, ModelStopReason):
                    own.append(event)
                elif late:
                    held.append(event)
                else:
                    await emit(event)
        except Exception as error:
            seat.error = error
            raise
        last = own[-1]
        heard.append(words.response_of(agent, last.message, last.stop_reason, last.usage))
        return heard[0]

    heard, held, late = list[ModelResponse](), list[TypedEvent](), must_hold_stream(run, ModelCall)
    response = await run.ask_model(messages, ask, tools=tools)
    seat.asking = False
    kept = bool(own) and response == heard[0]
    final = response or ModelResponse(content=run.denied.reason if run.denied is not None else "")
    for event in held if kept else [TypedEvent({"data": final.content})]:
        await emit(event)
    return own[-1] if kept else words.stop_reason(final, own[-1] if own and response is not None else None)


def _system(context: Any) -> str:
    prompt = context.system_prompt
    return prompt if isinstance(prompt, str) else words.text_of(prompt)


def _changed(context: Any, call: ModelCall, system: Sequence[Message], known: Sequence[Any]) -> Any:
    own = [each for each in call.messages if each.role == "system"]
    rest = [each for each in call.messages if each.role != "system"]
    offered = {spec.name for spec in call.tools}
    changes: dict[str, Any] = {
        "messages": words.messages_again(rest, known),
        "tool_specs": [spec for spec in context.tool_specs if spec["name"] in offered],
    }
    if own != system:
        changes["system_prompt"] = "\n\n".join(each.content for each in own) or None
    return context.replace(**changes)
