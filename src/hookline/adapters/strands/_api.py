"""Hooks for runs of Strands agents: `await hooked(agent, hooks=[...]).invoke_async("go")`.

Strands registers for the life of an agent and removes nothing. So an agent gets callbacks and middleware once; they
look for the present run in a context variable, and do nothing where there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import anyio

from hookline.dispatcher import HookDispatcher
from hookline.errors import MissingExtraError
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun, Approve, Reject

try:
    import strands  # noqa: F401
except ImportError as error:
    raise MissingExtraError("strands", "The adapter of Strands") from error

from hookline.adapters.strands._calls import attach
from hookline.adapters.strands._compaction import lead_compactions
from hookline.adapters.strands._seat import DRIVES, Seat, present, present_seat, waiting
from hookline.adapters.strands._words import agent_name, answered, answers_in, call_of, model_name, response_to

__all__ = ["DRIVES", "HookedAgent", "answers", "attach", "hooked"]


def hooked(agent: Any, *, hooks: Iterable[AnyHook], **options: Any) -> HookedAgent:
    """Run an agent, a graph or a swarm of Strands with hooks, which are those of that run alone.

    Args:
        agent: The agent. It keeps callbacks, which do nothing outside of such runs.
        hooks: The hooks of each run that is started through the result.
        options: What `AdapterRun` takes: `operation_id`, `user_id`, `tenant_id`, `store`, `best_effort`, …

    Returns:
        It is run as the agent is: by a call, by `invoke_async` or by `stream_async`.
    """
    return HookedAgent(agent, hooks, options)


class HookedAgent:
    """An agent of Strands with hooks; see `hooked`.

    Args:
        agent: The agent.
        hooks: The hooks of its runs.
        options: What `AdapterRun` takes.
    """

    def __init__(self, agent: Any, hooks: Iterable[AnyHook], options: Mapping[str, Any]) -> None:
        self._agent, self._hooks, self._options = agent, list(hooks), dict(options)

    def __call__(self, prompt: Any = None, **given: Any) -> Any:
        """Run it from code that is not async, in a thread with an event loop of its own, as Strands does.

        Args:
            prompt: As the agent takes it.
            given: What else the agent takes.
        """
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(copy_context().run, asyncio.run, self._alone(prompt, given)).result()

    async def _alone(self, prompt: Any, given: Mapping[str, Any]) -> Any:
        async with HookDispatcher() as dispatcher:  # that of a run around this one lives in another loop
            options = {"dispatcher": dispatcher, **self._options}
            result = await HookedAgent(self._agent, self._hooks, options).invoke_async(prompt, **given)
            memory = getattr(self._agent, "memory_manager", None)
            if memory is not None:
                await memory.flush()
            return result

    async def invoke_async(self, prompt: Any = None, **given: Any) -> Any:
        """Run it.

        Args:
            prompt: As the agent takes it; that of a run which goes on is made by `answers`.
            given: What else the agent takes.

        Returns:
            What the agent gives. Where a hook had the last word: an `AgentResult` that says it.

        Raises:
            HookDenied: If a hook denied the run.
        """
        return await self._run(prompt, given, None)

    async def stream_async(self, prompt: Any = None, **given: Any) -> AsyncGenerator[Any, None]:
        """Run it, and give its events as they come. Whoever breaks off interrupts the run.

        Args:
            prompt: As the agent takes it.
            given: What else the agent takes.

        Raises:
            HookDenied: If a hook denied the run.
        """
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def run() -> None:
            with send:
                await self._run(prompt, given, send.send)

        with receive:
            # A task of its own, because a generator may be closed in another task than the one that began it.
            task = asyncio.create_task(run())
            try:
                async for event in receive:
                    yield event
                await task
            finally:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self, prompt: Any, given: Mapping[str, Any], tell: Callable[[Any], Awaitable[None]] | None) -> Any:
        agent, outer, answers = self._agent, present_seat(), answers_in(prompt)
        options = {
            "agent_id": agent_name(agent),
            "model": model_name(agent),
            "parent": outer.run if outer is not None else None,
            **({"operation_id": waiting.get(agent)} if answers.given else {}),
            **self._options,
        }
        async with AdapterRun(self._hooks, DRIVES, **options) as run:
            seat = Seat(run, agent, outer, answers)
            attach(agent, models=seat.leads_models, resumes=bool(answers.given))
            present.set(seat)
            try:
                with lead_compactions(agent):
                    return await seat.play(prompt, given, tell)
            finally:
                present.set(outer)
                for relay in list(seat.nodes.values()):
                    await relay.end(asyncio.CancelledError())
        return answered(agent, None, "", "cancelled")


def answers(result: Any, decided: Sequence[Approve | Reject]) -> list[Any]:
    """What a person decided, as the prompt with which a run of Strands goes on.

    Args:
        result: What the run that waits gave.
        decided: The decisions, in any order.
    """
    by_call = {each.tool_call_id: each for each in decided}
    asked = [(each.id, by_call.get(call_of(each.id))) for each in result.interrupts or ()]
    return [
        {"interruptResponse": {"interruptId": interrupt, "response": response_to(each)}}
        for interrupt, each in asked
        if each is not None
    ]
