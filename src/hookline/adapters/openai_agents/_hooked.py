"""Agents of the OpenAI Agents SDK whose runs have hooks: `hooked` and `HookedAgent`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

from agents import Agent, RunResult, RunResultStreaming, RunState
from agents.run import RunOptions

from hookline.adapters._attaching import check_hooked
from hookline.adapters.openai_agents._api import HooklineRunner
from hookline.adapters.openai_agents._run_binding import DRIVES
from hookline.adapters.openai_agents._runs import Input
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

__all__ = ["HookedAgent", "hooked"]


def hooked(agent: Agent[Any], hooks: Iterable[AnyHook] = (), **options: Any) -> HookedAgent:
    """Wrap an agent so that each of its runs uses these hooks; the agent is not changed.

    Args:
        agent: The agent.
        hooks: The hooks of each run.
        options: Options of `HooklineRunner`: `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Returns:
        The agent with the methods of `Runner`: `run`, `run_sync` and `run_streamed`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If an option is unknown.
    """
    return HookedAgent(agent, HooklineRunner(check_hooked(hooks, DRIVES, options), **options))


class HookedAgent:
    """An agent of the OpenAI Agents SDK whose runs have hooks; created by `hooked`.

    Args:
        agent: The agent.
        runner: The runner.

    Attributes:
        agent: The agent.
    """

    def __init__(self, agent: Agent[Any], runner: HooklineRunner) -> None:
        self.agent, self._runner = agent, runner

    def __repr__(self) -> str:
        return f"HookedAgent({self.agent.name!r}, {self._runner!r})"

    async def run(self, input: Input, **options: Unpack[RunOptions[Any]]) -> RunResult:  # noqa: A002
        """Run the agent; see `Runner.run`.

        Args:
            input: The user's input, or a state.
            options: Options of `Runner.run`.

        Raises:
            OpenAIRunStopped: If a hook, a person or `interrupt` ended the run; it is a `RunStopped`.
        """
        return await self._runner.run(self.agent, input, **options)

    def run_sync(self, input: Input, **options: Unpack[RunOptions[Any]]) -> RunResult:  # noqa: A002
        """Run the agent from sync code; see `Runner.run_sync`.

        Args:
            input: The user's input, or a state.
            options: Options of `Runner.run_sync`.

        Raises:
            OpenAIRunStopped: If a hook, a person or `interrupt` ended the run; it is a `RunStopped`.
        """
        return self._runner.run_sync(self.agent, input, **options)

    def run_streamed(self, input: Input, **options: Unpack[RunOptions[Any]]) -> RunResultStreaming:  # noqa: A002
        """Run the agent and stream its events; see `HooklineRunner.run_streamed`.

        Args:
            input: The user's input, or a state.
            options: Options of `Runner.run_streamed`.
        """
        return self._runner.run_streamed(self.agent, input, **options)

    def stream(
        self,
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions[Any]],
    ) -> AbstractAsyncContextManager[RunResultStreaming]:
        """Run the agent and stream its events in a block that ends the run; see `HooklineRunner.stream`.

        Args:
            input: The user's input, or a state.
            options: Options of `Runner.run_streamed`.
        """
        return self._runner.stream(self.agent, input, **options)

    async def resume(
        self,
        result: RunResult | RunResultStreaming | RunState[Any],
        decisions: Iterable[Approve | Reject],
        **options: Unpack[RunOptions[Any]],
    ) -> RunResult:
        """Continue a run that waits for a person, as the same operation.

        Unlike in the SDK, a `Reject` without `and_continue` ends the run.

        Args:
            result: The result of the paused run, or its state.
            decisions: The decisions, each with the id of its tool call.
            options: Options of `Runner.run`.

        Raises:
            OpenAIRunStopped: If a `Reject` without `and_continue`, a hook or `interrupt` ends the run; it is a
                `RunStopped`.
            HookUsageError: If a decision is about a call that does not wait.
        """
        return await self._runner.resume(self.agent, result, decisions, **options)
