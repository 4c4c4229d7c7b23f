"""Hooks for runs of Strands agents: `await hooked(agent, hooks=[...]).invoke_async("go")`.

Strands registers callbacks and middleware for the life of an agent and never removes them. So an agent gets them once;
they look up the present run in a context variable and do nothing outside of a hooked run.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from functools import partial
from typing import Any, cast

from hookline.dispatcher import HookDispatcher
from hookline.errors import MissingExtraError, RunStopped
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun, Approve, Reject

try:
    from strands import Agent
except ImportError as error:
    raise MissingExtraError("strands", "The adapter of Strands") from error

from hookline.adapters._attaching import check_hooked, decisions_by_call
from hookline.adapters._streams import stream_values
from hookline.adapters.strands._calls import attach
from hookline.adapters.strands._compaction import hook_compactions
from hookline.adapters.strands._conversion import (
    agent_name,
    interrupt_response,
    interrupted_call_id,
    model_name,
    read_responses,
)
from hookline.adapters.strands._run_binding import (
    DRIVES,
    StrandsBinding,
    current_binding,
    open_binding,
    running_tool,
    waiting_operations,
)

__all__ = ["DRIVES", "HookedAgent", "answers", "attach", "hooked"]


def hooked(agent: Any, hooks: Iterable[AnyHook] = (), **options: Any) -> HookedAgent:
    """Wrap an agent, graph or swarm of Strands so that each of its runs uses these hooks.

    Args:
        agent: The agent. It keeps the adapter's callbacks, which do nothing outside of such runs.
        hooks: The hooks of each run.
        options: Options of the runs: `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Returns:
        The wrapped agent. Run it like the agent: call it, or use `invoke_async` or `stream_async`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If an option is unknown.
    """
    also = ("agent_id", "conversation_id", "model", "provider", "parent")
    _wrap_stream_async()
    return HookedAgent(agent, check_hooked(hooks, DRIVES, options, also=also), options)


@functools.cache
def _wrap_stream_async() -> None:
    """Wrap `Agent.stream_async`, which every run method uses, so that a run that a tool starts is a sub-agent's.

    It happens once per process. Strands has no hooks of all agents, and a policy that sub-agents inherit would not
    judge an agent that a tool simply runs. Outside of the tools of hooked runs it only calls the method.
    """
    own_stream_async = Agent.stream_async

    @functools.wraps(own_stream_async)
    def stream_async(self: Agent, prompt: Any = None, **given: Any) -> Any:
        loop, caller = running_tool.get(), open_binding()
        if loop is None or caller is None:
            return own_stream_async(self, prompt, **given)
        if loop is asyncio.get_running_loop():
            return HookedAgent(self, (), {}).stream_async(prompt, **given)
        return _stream_in_other_loop(self, prompt, given)

    cast(Any, Agent).stream_async = stream_async


async def _stream_in_other_loop(agent: Any, prompt: Any, given: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
    """Run a sub-agent that a sync tool calls; the dispatcher of its caller belongs to another event loop."""
    async with HookDispatcher() as dispatcher:
        stream = HookedAgent(agent, (), {"dispatcher": dispatcher}).stream_async(prompt, **given)
        async with aclosing(stream):
            async for event in stream:
                yield event


class HookedAgent:
    """A Strands agent, graph or swarm whose runs have hooks; created by `hooked`.

    Args:
        agent: The agent.
        hooks: The hooks of its runs.
        options: Options of `AdapterRun`.
    """

    def __init__(self, agent: Any, hooks: Iterable[AnyHook], options: Mapping[str, Any]) -> None:
        self._agent, self._hooks, self._options = agent, list(hooks), dict(options)

    def __repr__(self) -> str:
        return f"HookedAgent({agent_name(self._agent)!r}, hooks={self._hooks!r})"

    def __call__(self, prompt: Any = None, **given: Any) -> Any:
        """Run the agent from sync code, in a thread with an event loop of its own, as Strands does.

        Args:
            prompt: As the agent takes it.
            given: The agent's other arguments.
        """
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(copy_context().run, asyncio.run, self._run_in_new_loop(prompt, given)).result()

    async def _run_in_new_loop(self, prompt: Any, given: Mapping[str, Any]) -> Any:
        async with HookDispatcher() as dispatcher:  # the dispatcher of an outer run belongs to another event loop
            options = {"dispatcher": dispatcher, **self._options}
            result = await HookedAgent(self._agent, self._hooks, options).invoke_async(prompt, **given)
            memory = getattr(self._agent, "memory_manager", None)
            if memory is not None:
                await memory.flush()
            return result

    async def invoke_async(self, prompt: Any = None, **given: Any) -> Any:
        """Run the agent with hooks; parameters and result are those of the agent.

        Args:
            prompt: As the agent takes it; to resume a paused run, the result of `answers`.
            given: The agent's other arguments.

        Returns:
            The agent's result; an `AgentResult` with the hook's output if a hook set it.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
        """
        return await self._run(prompt, given, None)

    def stream_async(self, prompt: Any = None, **given: Any) -> AsyncGenerator[Any, None]:
        """Run the agent with hooks and yield its events; closing the generator interrupts the run.

        Args:
            prompt: As the agent takes it.
            given: The agent's other arguments.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
        """
        return stream_values(partial(self._run, prompt, given))

    async def resume(self, result: Any, decisions: Iterable[Approve | Reject], **given: Any) -> Any:
        """Continue a run that waits for a person, as the same operation.

        Args:
            result: The result of the paused run.
            decisions: The decisions, each with the id of its tool call.
            given: The agent's other arguments.

        Raises:
            RunStopped: If a `Reject` without `and_continue` ends the run.
            HookUsageError: If a decision is about a call that does not wait.
        """
        return await self.invoke_async(answers(result, decisions), **given)

    async def _run(self, prompt: Any, given: Mapping[str, Any], emit: Callable[[Any], Awaitable[None]] | None) -> Any:
        agent, outer, responses = self._agent, open_binding(), read_responses(prompt)
        options = {
            "agent_id": agent_name(agent),
            "model": model_name(agent),
            "parent": outer.run if outer is not None else None,
            **({"operation_id": waiting_operations.get(agent)} if responses.given else {}),
            **self._options,
        }
        async with AdapterRun(self._hooks, DRIVES, **options) as run:
            binding = StrandsBinding(run, agent, outer, responses)
            attach(agent, models=binding.hooks_model_calls, resumes=bool(responses.given))
            current_binding.set(binding)
            token = running_tool.set(None)  # the tool of the caller, if there is one; the agent now runs itself
            try:
                with hook_compactions(agent):
                    return await binding.run_agent(prompt, given, emit)
            finally:
                running_tool.reset(token)
                current_binding.set(outer)
                for bridge in list(binding.node_bridges.values()):
                    await bridge.end(asyncio.CancelledError())
        raise RunStopped("The run was interrupted.")


def answers(result: Any, decisions: Iterable[Approve | Reject]) -> list[Any]:
    """Convert a person's decisions into the prompt that resumes a paused run.

    Args:
        result: The result of the paused run.
        decisions: The decisions, each with the id of its tool call.

    Raises:
        HookUsageError: If a decision is about a call that does not wait.
    """
    interrupts = [(each.id, interrupted_call_id(each.id)) for each in result.interrupts or ()]
    by_call = decisions_by_call(decisions, [call_id for _, call_id in interrupts])
    asked = [(interrupt, by_call.get(call_id)) for interrupt, call_id in interrupts]
    return [
        {"interruptResponse": {"interruptId": interrupt, "response": interrupt_response(each)}}
        for interrupt, each in asked
        if each is not None
    ]
