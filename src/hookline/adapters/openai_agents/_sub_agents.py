"""Sub-agents in runs of the OpenAI Agents SDK: those that are called as tools, and those that take over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from agents import Agent, MaxTurnsExceeded

from hookline.adapters.openai_agents._attached import DRIVES, Attached, RunStopped
from hookline.adapters.openai_agents._items import parsed, told
from hookline.adapters.openai_agents._models import model_name
from hookline.runtime import AdapterRun

__all__ = ["call_agent", "end_early", "hand_over", "settle"]


class Waits(Exception):
    """A sub-agent waits for a person, so that it is not over."""

    def __str__(self) -> str:
        return "The agent waits for a person; its work is not done."


async def call_agent(
    outer: Attached, name: str, callee: Agent[Any], invoke: Callable[..., Awaitable[Any]], ctx: Any, text: str
) -> Any:
    """An agent is called as a tool."""
    parent, own = outer.run, list[Any]()
    model = model_name(callee, getattr(ctx, "run_config", None))
    given = parsed(text)
    asked = given.get("input") if isinstance(given, dict) else None
    asked = asked if isinstance(asked, str) else text

    async def work(instruction: str, child: str) -> str:
        final = text
        if instruction != asked:
            final = json.dumps({**given, "input": instruction}) if isinstance(given, dict) else instruction
        async with AdapterRun((), DRIVES, agent_id=name, model=model, operation_id=child, parent=parent) as run:
            attached = Attached(run, awaited=callee)
            try:
                with attached.standing():
                    own.append(await invoke(ctx, final))
            except BaseException as error:
                end_early(run, error)
                await attached.rest()
                raise
            finally:
                attached.over = True
        if attached.waits:
            raise Waits
        return told(own[0])

    try:
        with outer.busy():
            done = await parent.call_agent(name, asked, work)
    except Waits:
        return own[0]
    return own[0] if own and not done.changed else done.output


async def hand_over(attached: Attached, agent: Agent[Any], text: str) -> None:
    """Another agent takes over; it is a sub-agent whose work ends when the whole run ends.

    Raises:
        RunStopped: If a hook stands in the way; the SDK has no words to tell a model so.
    """
    parent, taken = attached.run, attached.loop.create_future()
    over: asyncio.Future[str] = attached.loop.create_future()
    model = model_name(agent, attached.config)

    async def work(instruction: str, child: str) -> str:
        run = AdapterRun((), DRIVES, agent_id=agent.name, model=model, operation_id=child, parent=parent)
        attached.run = await run.open()
        taken.set_result(None)
        try:
            output = await over
        except BaseException as error:
            end_early(run, error)
            await run.close(None if isinstance(error, Waits) else error)
            raise
        run.finish("done", output)
        await run.close()
        return output

    task = asyncio.ensure_future(parent.call_agent(agent.name, text or "", work))
    try:
        await asyncio.wait([task, taken], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        attached.run = parent
        raise
    if not taken.done():
        done = task.result()
        raise RunStopped(done.output, done.denied.hook_id if done.denied is not None else None)
    attached.handed.append((parent, over, task))


async def settle(attached: Attached, output: str, error: BaseException | None = None) -> None:
    """End the runs of those that have taken over, the last of them first."""
    if not attached.handed:
        return
    failure = Waits() if attached.waits else error
    with anyio.CancelScope(shield=True):
        while attached.handed:
            parent, over, task = attached.handed.pop()
            if failure is None:
                over.set_result(output)
            elif isinstance(failure, Exception):
                over.set_exception(failure)
            else:
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                output = task.result().output
            attached.run = parent
            if attached.waits:
                parent.pause(attached.waits)
            elif failure is None:
                parent.finish("done", output)


def end_early(run: AdapterRun, error: BaseException) -> None:
    """Say why a run ends, where what is raised is no failure."""
    if isinstance(error, MaxTurnsExceeded):
        run.finish("max_steps")
    elif isinstance(error, RunStopped):
        run.finish("interrupted")
