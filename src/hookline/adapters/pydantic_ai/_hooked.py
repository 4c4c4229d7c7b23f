"""Agents of Pydantic AI whose runs have hooks: `hooked` and `HookedAgent`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.output import OutputDataT
from pydantic_ai.run import AgentRun, AgentRunResult
from pydantic_ai.tools import AgentDepsT

from hookline.adapters._attaching import check_hooked
from hookline.adapters.pydantic_ai._api import DRIVES, Hookline
from hookline.adapters.pydantic_ai._approvals import answers, paused_operation
from hookline.adapters.pydantic_ai._run import PydanticAIBinding
from hookline.errors import RunStopped
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

__all__ = ["HookedAgent", "hooked"]


def hooked(
    agent: AbstractAgent[AgentDepsT, OutputDataT], hooks: Iterable[AnyHook] = (), **options: Any
) -> HookedAgent[AgentDepsT, OutputDataT]:
    """Wrap an agent so that each of its runs uses these hooks; the agent is not changed.

    Args:
        agent: The agent.
        hooks: The hooks of each run.
        options: Options of `Hookline`: `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Returns:
        The wrapped agent, with all methods of the agent.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If an option is unknown.
    """
    return HookedAgent(agent, check_hooked(hooks, DRIVES, options), options)


class RunCapability(Hookline):
    """The hooks of one run, which also know how the run ended."""

    _binding: PydanticAIBinding | None = None

    def _begin_run(self, binding: PydanticAIBinding) -> None:
        """Keep the binding of the run."""
        self._binding = binding

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` ended the run."""
        return self._binding is not None and self._binding.interrupted


class HookedAgent(WrapperAgent[AgentDepsT, OutputDataT]):
    """An agent of Pydantic AI whose runs have hooks; created by `hooked`. Run it like the agent.

    Args:
        agent: The agent.
        hooks: The hooks of its runs.
        options: Options of `Hookline`.
    """

    def __init__(
        self, agent: AbstractAgent[AgentDepsT, OutputDataT], hooks: Sequence[AnyHook], options: Mapping[str, Any]
    ) -> None:
        super().__init__(agent)
        self._capability = RunCapability(hooks, **options)

    def __repr__(self) -> str:
        return f"HookedAgent({self.name!r}, hooks={list(self._capability.hooks)!r})"

    @asynccontextmanager
    async def iter(
        self, user_prompt: Any = None, *, capabilities: Sequence[Any] | None = None, **given: Any
    ) -> AsyncIterator[AgentRun[AgentDepsT, Any]]:
        """Run the agent node by node; see the agent's `iter`. All other run methods use this one.

        Args:
            user_prompt: As the agent takes it.
            capabilities: Additional capabilities for this run.
            given: The agent's other arguments.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
        """
        capability = replace(self._capability)  # of this run alone, so that it knows whether the run was interrupted
        try:
            async with super().iter(user_prompt, capabilities=[capability, *(capabilities or ())], **given) as run:
                yield run
        except RunCancelled as error:
            if not capability.interrupted:
                raise  # the application cancelled the run in the framework's own way
            raise RunStopped("The run was interrupted.") from error

    async def resume(
        self, result: AgentRunResult[Any], decisions: Iterable[Approve | Reject], **given: Any
    ) -> AgentRunResult[Any]:
        """Continue a run that waits for a person, as the same operation.

        Args:
            result: The result of the paused run.
            decisions: One decision for each waiting call.
            given: Other arguments of `run`, such as `deps`.

        Raises:
            RunStopped: If a `Reject` without `and_continue` ends the run.
            HookUsageError: If a decision is about a call that does not wait.
        """
        messages = result.all_messages()
        operation_id = self._capability.operation_id or paused_operation(messages)
        agent = HookedAgent(self.wrapped, (), {})
        agent._capability = replace(self._capability, operation_id=operation_id)
        following: AgentRunResult[Any] = await agent.run(
            message_history=messages, deferred_tool_results=answers(result, decisions), **given
        )
        return following
