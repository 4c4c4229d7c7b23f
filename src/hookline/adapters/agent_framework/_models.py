"""Model calls of an agent of Microsoft Agent Framework, led through the hooks of its run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
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

from hookline.adapters._held_streams import must_hold_stream
from hookline.adapters._stepping import GeneratorBridge, emit
from hookline.adapters.agent_framework import _words as words
from hookline.adapters.agent_framework._seat import Next, Seat, ending
from hookline.calls import Message, ModelCall, ModelResponse

__all__ = ["Models"]


class Models(ChatMiddleware):
    """Leads the model calls of a run through its hooks.

    Args:
        seat: The run.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    async def process(self, context: ChatContext, call_next: Next) -> None:
        """One model call."""
        seat, run = self._seat, self._seat.run
        asked = seat.undecided(context.messages)
        if asked:
            context.result = _instead(asked, stream=context.stream)
            return
        seat.learn(context)
        await seat.tell_unknown(context.messages)
        if run.denied is not None:
            context.result = _instead([Content.from_text(run.denied.reason)], stream=context.stream)
            return
        seat.begin(context)
        ended = list[MiddlewareTermination]()
        call = partial(ending, context, call_next, ended)
        led = ModelCall in run.run.intercepted or ModelCall in run.run.enclosing
        if led and context.stream:
            context.result = await self._streamed(context, call)
        elif led:
            context.result = await self._ask(context, call, None)
        else:
            self._seat.run.begin_model_call()
            await call()
            if context.stream:
                context.stream_result_hooks.append(self._heard)
            else:
                self._heard(context.result)
        if ended:
            raise ended[0]

    def _heard(self, response: Any) -> None:
        self._seat.asking = False
        self._seat.run.asked_model(words.model_response(response, self._seat.servers))

    async def _streamed(
        self, context: ChatContext, call_next: Next
    ) -> ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        relay = GeneratorBridge(self._ask(context, call_next, emit))
        first: list[ChatResponseUpdate] = []
        async for update in relay:  # the framework keeps what was compacted until the first update
            first.append(update)
            break

        async def updates() -> AsyncGenerator[ChatResponseUpdate, None]:
            with closing(relay.work):
                for update in first:
                    yield update
                async for update in relay:
                    yield update

        return ResponseStream(updates(), finalizer=lambda _: relay.result)

    async def _ask(
        self, context: ChatContext, call_next: Next, emit: Callable[[Any], Awaitable[None]] | None
    ) -> ChatResponse[Any]:
        """One model call with hooks around it."""
        run, servers, heard = self._seat.run, self._seat.servers, list[ModelResponse]()
        options = dict(context.options or {})
        known = [(each, words.heard(each, servers)) for each in context.messages]
        system = [Message(role="system", content=options["instructions"])] if options.get("instructions") else []
        messages = [*system, *(ours for _, each in known for ours in each)]
        tools = words.specs(options.get("tools") or ())
        own: Any = None
        held: list[Any] = []
        late = must_hold_stream(run, ModelCall)

        async def ask(call: ModelCall) -> ModelResponse:
            nonlocal own
            if call.messages != messages or call.tools != tools:
                _change(context, call, system, known)
            await call_next()
            own = context.result
            if isinstance(own, ResponseStream):
                stream = own
                async for update in stream:
                    if emit is None or late:
                        held.append(update)
                    else:
                        await emit(update)
                own = await stream.get_final_response()
            heard.append(words.model_response(own, servers))
            return heard[0]

        response = await run.ask_model(messages, ask, tools=tools)
        self._seat.asking = False
        if heard and response == heard[0]:
            answer: ChatResponse[Any] = own
        else:
            reason = run.denied.reason if run.denied is not None else ""
            answer = words.chat_response(response or ModelResponse(content=reason))
            held = [ChatResponseUpdate(role="assistant", contents=each.contents) for each in answer.messages]
        if emit is not None:
            for update in held:
                await emit(update)
        return answer


def _instead(contents: list[Content], *, stream: bool) -> Any:
    """What stands for the answer of a model that is not asked."""

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
    context.messages = words.messages_again(rest, known)
