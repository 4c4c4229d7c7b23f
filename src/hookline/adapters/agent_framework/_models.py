"""Middleware that passes model calls of Microsoft Agent Framework through hooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, closing
from functools import partial
from typing import Any

from agent_framework import (
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    MiddlewareTermination,
    ResponseStream,
)
from agent_framework import Message as Theirs
from msgspec.structs import replace

from hookline.adapters._streams import must_hold_stream, read_parts
from hookline.adapters.agent_framework import _conversion as convert
from hookline.adapters.agent_framework._run_binding import AgentFrameworkBinding, Next, call_until_terminated
from hookline.calls import Message, ModelCall, ModelResponse
from hookline.errors import HookDenied
from hookline.execution import GeneratorBridge, emit
from hookline.runtime import HeldEvents

__all__ = ["ModelCallMiddleware"]


class ModelCallMiddleware(ChatMiddleware):
    """Passes the model calls of a run through its hooks.

    Args:
        binding: The binding of the run.
    """

    def __init__(self, binding: AgentFrameworkBinding) -> None:
        self._binding = binding

    async def process(self, context: ChatContext, call_next: Next) -> None:
        """Pass one model call through the hooks, or only record it if hooks do not wrap model calls."""
        binding, run = self._binding, self._binding.run
        questions = binding.open_questions(context.messages) if binding.decisions else []
        if questions:
            context.result = _replacement_response(questions, stream=context.stream)
            return
        binding.record_toolsets(context)
        if run.run.step is not None and not binding.model_pending:
            await binding.report_unknown_tools(context.messages)
        denied = run.run.denied
        if denied is not None:
            context.result = _replacement_response([Content.from_text(denied.reason)], stream=context.stream)
            return
        binding.begin_step(context)
        terminations: list[MiddlewareTermination] = []
        call = partial(call_until_terminated, context, call_next, terminations)
        hooked = run.leads(ModelCall)
        if hooked and context.stream:
            context.result = await self._stream_through_hooks(context, call)
        elif hooked:
            context.result = await self._ask_model(context, call, None)
        else:
            self._binding.run.begin_model_call()
            await call()
            if context.stream:
                context.stream_result_hooks.append(self._record_answer)
            else:
                self._record_answer(context.result)
        if terminations:
            raise terminations[0]

    def _record_answer(self, response: Any) -> None:
        self._binding.model_pending = False
        self._binding.run.asked_model(convert.to_model_response(response, self._binding.toolsets))

    async def _stream_through_hooks(
        self, context: ChatContext, call_next: Next
    ) -> ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        bridge = GeneratorBridge(self._ask_model(context, call_next, emit))
        first: list[ChatResponseUpdate] = []
        async for update in bridge:  # the framework keeps a compacted conversation only until the first update
            first.append(update)
            break

        async def updates() -> AsyncGenerator[ChatResponseUpdate, None]:
            with closing(bridge.work):
                for update in first:
                    yield update
                async for update in bridge:
                    yield update

        return ResponseStream(updates(), finalizer=lambda _: bridge.result)

    async def _ask_model(
        self, context: ChatContext, call_next: Next, emit: Callable[[Any], Awaitable[None]] | None
    ) -> ChatResponse[Any]:
        """Make one model call with hooks around it."""
        run, servers, responses = self._binding.run, self._binding.toolsets, list[ModelResponse]()
        options = dict(context.options or {})
        known = [(each, convert.from_agent_framework_message(each, servers)) for each in context.messages]
        system = [Message(role="system", content=options["instructions"])] if options.get("instructions") else []
        messages = [*system, *(ours for _, each in known for ours in each)]
        tools = convert.to_tool_specs(options.get("tools") or ())
        own: Any = None
        parts: HeldEvents[Any] | None = None
        hold = must_hold_stream(run, ModelCall)

        async def ask(call: ModelCall) -> ModelResponse:
            nonlocal own, parts
            received: list[ChatResponseUpdate] = []
            parts = HeldEvents(
                call,
                has_reader=emit is not None,
                text_of=convert.update_text_reader(),
                with_text=convert.with_update_text,
                is_frame=convert.is_frame,
                strips=True,
                read_so_far=lambda: convert.to_model_response(ChatResponse.from_updates(received), servers),
            )
            if call.messages != messages or call.tools != tools:
                _change(context, call, system, known)
            note_piece = run.begin_stream() if context.stream else None
            await call_next()
            own = context.result
            if isinstance(own, ResponseStream):
                stream = own
                updates = _noted(stream, received, note_piece)
                try:
                    async with aclosing(read_parts(parts, updates) if emit is None or hold else updates) as given:
                        async for update in given:
                            if emit is not None:
                                await emit(update)
                except HookDenied:
                    await stream.close()
                    raise
                own = await stream.get_final_response()
            responses.append(convert.to_model_response(own, servers))
            return responses[-1]

        response = await run.ask_model(messages, ask, tools=tools)
        self._binding.model_pending = False
        if responses and response == responses[-1]:
            answer: ChatResponse[Any] = own
            held = parts.rest() if parts is not None else []
        else:
            reason = run.denied.reason if run.denied is not None else ""
            answer = convert.to_chat_response(response or ModelResponse(content=reason))
            shown = answer
            if response is not None and parts is not None and parts.released:
                unread = response.content[len(parts.released) :]
                shown = convert.to_chat_response(replace(response, content=unread))
            held = [ChatResponseUpdate(role="assistant", contents=each.contents) for each in shown.messages]
        if emit is not None:
            for update in held:
                await emit(update)
        return answer


async def _noted(
    stream: ResponseStream[ChatResponseUpdate, Any],
    received: list[ChatResponseUpdate],
    note_piece: Callable[[], None] | None,
) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Yield the updates of a stream, keep each, and note when it arrives."""
    async for update in stream:
        received.append(update)
        if note_piece is not None:
            note_piece()
        yield update


def _replacement_response(contents: list[Content], *, stream: bool) -> Any:
    """Return the response of a model call that is not made."""

    async def updates() -> AsyncGenerator[ChatResponseUpdate, None]:
        yield ChatResponseUpdate(role="assistant", contents=contents)

    if stream:
        return ResponseStream(updates(), finalizer=ChatResponse.from_updates)
    return ChatResponse(messages=[Theirs("assistant", contents)])


def _change(context: ChatContext, call: ModelCall, system: list[Message], known: list[Any]) -> None:
    own = [each for each in call.messages if each.role == "system"]
    kept = [ours for _, each in known for ours in each if ours.role == "system"]
    rest = call.messages[len(system) :] if call.messages[: len(system)] == system else call.messages
    options = dict(context.options or {})
    if system and own[: len(system)] != system:
        options["instructions"] = "\n\n".join(each.content for each in own if each not in kept)
        rest = [each for each in call.messages if each.role != "system" or each in kept]
    offered = {spec.name for spec in call.tools}
    if options.get("tools"):
        options["tools"] = [tool for tool in options["tools"] if getattr(tool, "name", None) in {*offered, None}]
    context.options = options
    context.messages = convert.to_agent_framework_messages(rest, known)
