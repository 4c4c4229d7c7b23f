"""Middleware that passes Strands' model calls through the hooks of the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, closing
from copy import copy
from typing import Any

from strands.hooks import AfterModelCallEvent
from strands.middleware import ModelStopReason, TypedEvent

from hookline.adapters._conversion import split_input
from hookline.adapters._streams import must_hold_stream, read_parts
from hookline.adapters.strands import _conversion as convert
from hookline.adapters.strands._run_binding import StrandsBinding, binding_of
from hookline.calls import Message, ModelCall, ModelResponse
from hookline.errors import HookDenied
from hookline.execution import GeneratorBridge, emit
from hookline.runtime import HeldEvents

__all__ = ["after_model", "hook_middleware", "model_middleware"]

Next = Callable[[Any], AsyncGenerator[Any, None]]
HookedCall = Callable[[StrandsBinding, Any, Next], Coroutine[Any, Any, TypedEvent]]


async def hook_middleware(start: HookedCall, context: Any, call_next: Next) -> AsyncGenerator[Any, None]:
    """Pass a call through the hooks of the present run.

    Args:
        start: Runs the hooks; the values that it emits, and its result, are the events of the call.
        context: The call.
        call_next: Makes the call.
    """
    binding = binding_of(context.agent)
    if binding is None:
        async for event in call_next(context):
            yield event
        return
    bridge = GeneratorBridge(start(binding, context, call_next))
    with closing(bridge.work):
        async for event in bridge:
            yield event
    yield bridge.result


async def model_middleware(context: Any, call_next: Next) -> AsyncGenerator[Any, None]:
    """Pass a model call through the hooks of the present run, if any wrap model calls.

    Args:
        context: The call.
        call_next: Makes the call.
    """
    binding = binding_of(context.agent)
    hooked = binding is not None and binding.hooks_model_calls
    async for event in hook_middleware(_ask_model, context, call_next) if hooked else call_next(context):
        yield event


def after_model(event: AfterModelCallEvent) -> None:
    """Record a model's answer or failure for a run whose model calls only observers watch.

    The answer to a cancelled call has no metadata.
    """
    binding = binding_of(event.agent)
    if binding is None or binding.hooks_model_calls:
        return
    if event.exception is not None:
        binding.error = event.exception
    answer = event.stop_response
    if answer is not None and "metadata" in answer.message:
        binding.model_pending = False
        usage = answer.message["metadata"]["usage"]
        binding.run.asked_model(convert.to_model_response(event.agent, answer.message, answer.stop_reason, usage))


async def _ask_model(binding: StrandsBinding, context: Any, call_next: Next) -> ModelStopReason:
    """Make a model call with hooks around it."""
    run, agent, own = binding.run, context.agent, list[ModelStopReason]()
    known = [(each, convert.from_strands_message(agent, each)) for each in context.messages]
    system = [Message(role="system", content=_system(context))] if context.system_prompt else []
    messages = [*system, *(ours for _, each in known for ours in each)]
    tools = convert.to_tool_specs(agent, context.tool_specs)

    parts: HeldEvents[list[TypedEvent]] | None = None

    async def ask(call: ModelCall) -> ModelResponse:
        nonlocal parts
        changed, raw = context, list[TypedEvent]()
        parts = HeldEvents(
            call,
            has_reader=hold,
            text_of=_text_of,
            with_text=_with_text,
            is_frame=_is_frame,
        )
        if call.messages != messages or call.tools != tools:
            changed = _changed_context(context, call, system, known)
        note_piece = run.begin_stream()

        async def pieces(events: AsyncGenerator[Any, None]) -> AsyncGenerator[list[TypedEvent], None]:
            """Yield the events of the call: a piece of text as it came together with the event that is made of it."""
            async for event in events:
                if "event" in event:  # a piece of the stream as it came; what is made of it follows
                    note_piece()
                if isinstance(event, ModelStopReason):
                    own.append(event)
                elif hold and _has_text(event):
                    raw.append(event)
                else:
                    yield [*raw, event]
                    raw.clear()
            if raw:
                yield raw

        try:
            async with aclosing(call_next(changed)) as events:
                given = pieces(events)
                async with aclosing(read_parts(parts, given) if hold else given) as released:
                    async for each in released:
                        await _emit_all(each)
        except HookDenied:
            raise
        except Exception as error:
            binding.error = error
            raise
        last = own[-1]
        responses.append(convert.to_model_response(agent, last.message, last.stop_reason, last.usage))
        return responses[-1]

    responses, hold = list[ModelResponse](), must_hold_stream(run, ModelCall)
    response = await run.ask_model(messages, ask, tools=tools)
    binding.model_pending = False
    unchanged = bool(own) and response == responses[-1]
    final = response or ModelResponse(content=run.denied.reason if run.denied is not None else "")
    if unchanged:
        for events in parts.rest() if parts is not None else ():
            await _emit_all(events)
    else:
        released = len(parts.released) if parts is not None and response is not None else 0
        await emit(TypedEvent({"data": final.content[released:]}))
    return (
        own[-1] if unchanged else convert.to_model_stop_reason(final, own[-1] if own and response is not None else None)
    )


async def _emit_all(events: list[TypedEvent]) -> None:
    for event in events:
        await emit(event)


def _has_text(event: TypedEvent) -> bool:
    """Return whether an event is a piece of text as it came from the model; what is made of it follows."""
    return "text" in event.get("event", {}).get("contentBlockDelta", {}).get("delta", {})


def _text_of(events: list[TypedEvent]) -> str | None:
    """Return the text of a piece of the stream and the event that was made of it; `None` if they are not only text."""
    text = events[-1].get("data")
    return text if isinstance(text, str) and len(events) == 2 else None


def _with_text(events: list[TypedEvent], text: str) -> list[TypedEvent]:
    raw, made = events
    changed = copy(made)
    changed.update({"data": text, "delta": {"text": text}})
    block = {**raw["event"]["contentBlockDelta"], "delta": {"text": text}}
    return [type(raw)({**raw["event"], "contentBlockDelta": block}), changed]


def _is_frame(events: list[TypedEvent]) -> bool:
    """Return whether an event has no content of the model."""
    piece = events[-1].get("event") if len(events) == 1 else None
    if not isinstance(piece, dict):
        return not events[-1].keys() - {"init_event_loop", "start", "start_event_loop"}
    started = piece.get("contentBlockStart")
    return "messageStart" in piece or (started is not None and not started.get("start"))


def _system(context: Any) -> str:
    prompt = context.system_prompt
    return prompt if isinstance(prompt, str) else convert.text_of(prompt)


def _changed_context(context: Any, call: ModelCall, system: Sequence[Message], known: Sequence[Any]) -> Any:
    own = [each for each in call.messages if each.role == "system"]
    rest, added = split_input([each for each in call.messages if each.role != "system"])
    offered = {spec.name for spec in call.tools}
    messages = convert.to_strands_messages(rest, known)
    if added:
        messages = convert.add_text(messages, added)
    changes: dict[str, Any] = {
        "messages": messages,
        "tool_specs": [spec for spec in context.tool_specs if spec["name"] in offered],
    }
    if own != system:
        changes["system_prompt"] = "\n\n".join(each.content for each in own) or None
    return context.replace(**changes)
