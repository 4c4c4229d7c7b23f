"""The runs of agents of Microsoft Agent Framework, as operations of hookline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import anyio
from agent_framework import (
    AgentContext,
    AgentMiddleware,
    AgentResponse,
    AgentResponseUpdate,
    MiddlewareTermination,
    ResponseStream,
)
from agent_framework import Message as Theirs

from hookline.adapters._held_streams import must_hold_stream
from hookline.adapters.agent_framework import _words as words
from hookline.adapters.agent_framework._compaction import Compacting
from hookline.adapters.agent_framework._models import Models
from hookline.adapters.agent_framework._seat import DRIVES, Next, Seat, called, ending
from hookline.adapters.agent_framework._tools import Tools
from hookline.calls import AgentCall, Message
from hookline.errors import HookDenied
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun

__all__ = ["play"]

Tell = Callable[[Any], Awaitable[None]]
OUTSIDE = "hookline_outside"
"""Where a run's context counts its operations: one for each `HookMiddleware` that it was given."""


async def play(context: AgentContext, call_next: Next, hooks: Iterable[AnyHook], options: Mapping[str, Any]) -> None:
    """A run of an agent.

    Args:
        context: The framework's context of the run.
        call_next: Runs it.
        hooks: Its hooks.
        options: What `AdapterRun` takes.
    """
    outside = context.metadata.get(OUTSIDE, 0)
    mark = f"{words.OPERATION}_{outside}" if outside else words.OPERATION
    decided, reworded, operation = words.decisions(context.messages, mark)
    agent: Any = context.agent
    given = {
        "agent_id": agent.name or agent.id,
        "model": words.model_name(agent),
        "conversation_id": context.session.session_id if context.session is not None else None,
        "operation_id": operation,
        **options,
    }
    run = AdapterRun(hooks, DRIVES, **given)
    seat = Seat(run, context, decided, reworded, mark)
    ended = list[MiddlewareTermination]()
    call = partial(ending, context, call_next, ended)
    if context.stream:
        context.result = _streamed(seat, call)
        return
    context.result = await _run(seat, call, None)
    if ended:
        raise ended[0]


def _streamed(seat: Seat, call_next: Next) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]]:
    final: list[AgentResponse[Any]] = []

    async def updates() -> AsyncGenerator[AgentResponseUpdate, None]:
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def run() -> None:
            with send:
                final.append(await _run(seat, call_next, send.send))

        with receive:
            # A task of its own, because a generator may be closed in another task than the one that began it.
            task = asyncio.create_task(run())
            try:
                async for update in receive:
                    yield update
                await task
            finally:
                task.cancel()
                await _over(task)

    return ResponseStream(updates(), finalizer=lambda _: final[0])


async def _over(task: asyncio.Task[None]) -> None:
    """Wait until a run that was cancelled has ended; the framework cancels a tool call twice, and would leave it."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _run(seat: Seat, call_next: Next, tell: Tell | None) -> AgentResponse[Any]:
    async with seat.run as run:
        with _installed(seat):
            stopped = seat.resume() if seat.decisions else ""
            if stopped:
                run.finish("interrupted")
                return AgentResponse(messages=[])
            if AgentCall not in run.run.intercepted:
                response = await _through(seat.context, call_next, tell)
                _conclude(seat, response)
                return response
            return await _led(seat, call_next, tell)
    return AgentResponse(messages=[])  # somebody has interrupted it


@contextmanager
def _installed(seat: Seat) -> Iterator[None]:
    """Stand in the way of the run's calls, outside of all others, while the run lasts.

    Middleware outside of ours may run the agent again with the same context, which must not lead to a run that is over.
    """
    context = seat.context
    agent: Any = context.agent
    outside = context.metadata.get(OUTSIDE, 0)
    client = getattr(agent, "client", None)
    strategies = (context.compaction_strategy, getattr(agent, "compaction_strategy", None))
    strategy = next((each for each in (*strategies, getattr(client, "compaction_strategy", None)) if each), None)
    others = context.client_kwargs.get("middleware")
    with ExitStack() as stack:
        stack.enter_context(_lent(context.metadata, OUTSIDE, outside + 1))
        ours = [Models(seat), Tools(seat, follow), *(others or [])]
        stack.enter_context(_lent(context.client_kwargs, "middleware", ours))
        if strategy is not None:
            compacting = Compacting(seat.run, strategy)
            stack.enter_context(_lent(vars(context), "compaction_strategy", compacting))
        yield


@contextmanager
def _lent(mapping: MutableMapping[str, Any], key: str, value: Any) -> Iterator[None]:
    """Put a value into a mapping, and what was there back at the end, unless somebody else has changed it since."""
    before = mapping.get(key, mapping)
    mapping[key] = value
    try:
        yield
    finally:
        if mapping.get(key) is value:
            if before is mapping:
                del mapping[key]
            else:
                mapping[key] = before


async def _through(context: AgentContext, call_next: Next, tell: Tell | None) -> AgentResponse[Any]:
    """The agent's own run."""
    given, context.result = context.result, None  # what a stream is to give stands there by now
    with suppress(MiddlewareTermination):
        await call_next()
    result: Any
    result, context.result = context.result, given
    if isinstance(result, ResponseStream):
        try:
            async for update in result:
                if tell is not None:
                    await tell(update)
        except BaseException:
            with suppress(Exception):
                await result.close()  # else its model call would end after the run
            raise
        result = await result.get_final_response()
    return result if result is not None else AgentResponse(messages=[])


async def _led(seat: Seat, call_next: Next, tell: Tell | None) -> AgentResponse[Any]:
    """The agent's own run, led through the hooks of `AgentCall`."""
    run, context, held = seat.run, seat.context, list[Any]()
    own = AgentResponse[Any](messages=[])

    async def hold(update: Any) -> None:
        held.append(update)

    async def work(call: AgentCall) -> str:
        nonlocal own
        give = hold if tell is not None and must_hold_stream(run, AgentCall) else tell
        if call.input != messages:
            context.messages = words.messages_again(call.input, known)
            changed.append(context.messages)
        own = await _through(context, call_next, give)
        return _conclude(seat, own)

    instructions = str(_option(context, "instructions") or "")
    given, changed = context.messages, list[Any]()
    try:
        for _ in range(1 + run.run.agent.max_continues):
            known = [(each, words.heard(each, {})) for each in context.messages]
            messages: list[Message] = [ours for _, each in known for ours in each]
            done = await run.lead_run(messages, work, instructions=instructions)
            if done.denied is not None:
                raise HookDenied(done.denied.hook_id, done.denied.reason)
            if not done.continues:
                break
            earlier = [] if context.session is not None else [*context.messages, *own.messages]
            context.messages = [*earlier, Theirs("user", ["\n\n".join(done.continues)])]
            changed.append(context.messages)
    finally:
        if any(context.messages is each for each in changed):
            context.messages = given  # middleware outside of ours may run the agent again, with what it was given
    if done.changed:
        own = words.said_instead(own, done.output, _option(context, "response_format"))
        held = [AgentResponseUpdate(role="assistant", contents=own.messages[-1].contents)]
    if tell is not None:
        for update in held:
            await tell(update)
    return own


def _option(context: AgentContext, name: str) -> Any:
    """An option of the run, else of its agent."""
    own = (context.options or {}).get(name)
    return own if own is not None else (getattr(context.agent, "default_options", None) or {}).get(name)


def _conclude(seat: Seat, response: AgentResponse[Any]) -> str:
    """Note how the agent ended.

    Returns:
        What it said last.
    """
    run = seat.run
    asked = [each for each in response.user_input_requests if each.type == "function_approval_request"]
    if asked:
        for each in asked:
            each.additional_properties[seat.mark] = run.operation_id
        waiting = words.pending(response, seat.servers)
        run.pause([each for each in waiting if each.tool_call_id not in run.step.asked])
        run.end_step(should_continue=False)
    said = response.messages[-1].text if response.messages else ""
    run.run.last_content = said or run.run.last_content  # other middleware may have answered
    return said


class Following(AgentMiddleware):
    """What a sub-agent keeps: it makes the run that a hooked run calls an operation under that run."""

    async def process(self, context: AgentContext, call_next: Next) -> None:
        """A run of the sub-agent."""
        mine = called.get()
        if mine is None or mine.agent is not context.agent:
            await call_next()
            return
        called.set(None)
        await play(context, call_next, (), {"operation_id": mine.operation_id, "parent": mine.parent})


_following = Following()


def follow(agent: Any) -> None:
    """Have a sub-agent's runs follow those that call it; once is enough."""
    if _following not in (agent.middleware or ()):
        agent.middleware = [_following, *(agent.middleware or ())]
