"""Sub-agents of the OpenAI Agents SDK: agents called as tools, and agents that take over by a handoff."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from agents import Agent, MaxTurnsExceeded

from hookline.adapters.openai_agents._conversion import parse_arguments, tool_output_text
from hookline.adapters.openai_agents._models import model_name
from hookline.adapters.openai_agents._run_binding import DRIVES, OpenAIBinding, OpenAIRunStopped, current_binding
from hookline.runtime import AdapterRun

__all__ = ["call_agent", "end_handoffs", "hand_over", "record_early_end"]


class WaitsForPersonError(Exception):
    """A sub-agent waits for a person, so its call has not ended."""

    def __str__(self) -> str:
        return "The agent waits for a person and has not finished."


async def call_agent(
    outer: OpenAIBinding, name: str, callee: Agent[Any], invoke: Callable[..., Awaitable[Any]], ctx: Any, text: str
) -> Any:
    """Run an agent that is called as a tool, through the hooks of `SubAgentCall`."""
    parent, own = outer.run, list[Any]()
    model = model_name(callee, getattr(ctx, "run_config", None))
    given = parse_arguments(text)
    asked = given.get("input") if isinstance(given, dict) else None
    asked = asked if isinstance(asked, str) else text

    async def work(instruction: str, child: str) -> str:
        final = text
        if instruction != asked:
            final = json.dumps({**given, "input": instruction}) if isinstance(given, dict) else instruction
        async with AdapterRun((), DRIVES, agent_id=name, model=model, operation_id=child, parent=parent) as run:
            binding = OpenAIBinding(run, awaited=callee)
            token = current_binding.set(binding)
            try:
                try:
                    own.append(await invoke(ctx, final))
                finally:
                    current_binding.reset(token)
            except BaseException as error:
                record_early_end(run, error)
                await binding.wait_for_tasks()
                raise
            finally:
                binding.end()
        if binding.waiting:
            raise WaitsForPersonError
        return tool_output_text(own[0])

    try:
        with outer.track_task():
            done = await parent.call_agent(name, asked, work)
    except WaitsForPersonError:
        return own[0]
    return own[0] if own and not done.changed else done.output


async def hand_over(binding: OpenAIBinding, agent: Agent[Any], text: str) -> None:
    """Let another agent take over; its run is a sub-agent's and ends when the whole run does.

    Raises:
        OpenAIRunStopped: If a hook denies the handoff; the SDK cannot tell the model about that.
    """
    parent, opened = binding.run, binding.loop.create_future()
    final_output: asyncio.Future[str] = binding.loop.create_future()
    model = model_name(agent, binding.config)

    async def work(instruction: str, child: str) -> str:
        run = AdapterRun((), DRIVES, agent_id=agent.name, model=model, operation_id=child, parent=parent)
        binding.run = await run.open()
        opened.set_result(None)
        try:
            output = await final_output
        except BaseException as error:
            record_early_end(run, error)
            await run.close(None if isinstance(error, WaitsForPersonError) else error)
            raise
        run.finish("done", output)
        await run.close()
        return output

    task = asyncio.ensure_future(parent.call_agent(agent.name, text or "", work))
    try:
        await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        binding.run = parent
        raise
    if not opened.done():
        done = task.result()
        raise OpenAIRunStopped(done.output, done.denied.hook_id if done.denied is not None else None)
    binding.handoffs.append((parent, final_output, task))


async def end_handoffs(binding: OpenAIBinding, output: str, error: BaseException | None = None) -> None:
    """End the runs of the agents that took over, the last one first."""
    if not binding.handoffs:
        return
    failure = WaitsForPersonError() if binding.waiting else error
    with anyio.CancelScope(shield=True):
        while binding.handoffs:
            parent, final_output, task = binding.handoffs.pop()
            if failure is None:
                final_output.set_result(output)
            elif isinstance(failure, Exception):
                final_output.set_exception(failure)
            else:
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                output = task.result().output
            binding.run = parent
            if binding.waiting:
                parent.pause(binding.waiting)
            elif failure is None:
                parent.finish("done", output)


def record_early_end(run: AdapterRun, error: BaseException) -> None:
    """Record why a run ended, for errors that do not mean failure."""
    if isinstance(error, MaxTurnsExceeded):
        run.finish("max_steps")
    elif isinstance(error, OpenAIRunStopped):
        run.finish("interrupted")
