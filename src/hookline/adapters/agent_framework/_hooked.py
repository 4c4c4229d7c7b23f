"""Agents of Microsoft Agent Framework whose runs have hooks: `hooked` and `HookedAgent`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from agent_framework import AgentResponse

from hookline.adapters._attaching import check_hooked
from hookline.adapters.agent_framework._api import HooklineMiddleware, answers
from hookline.adapters.agent_framework._run_binding import DRIVES
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

__all__ = ["HookedAgent", "hooked"]


def hooked(agent: Any, hooks: Iterable[AnyHook] = (), **options: Any) -> HookedAgent:
    """Wrap an agent so that each of its runs uses these hooks; the agent is not changed.

    Args:
        agent: The agent.
        hooks: The hooks of each run.
        options: Options of the runs: `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Returns:
        The wrapped agent, with all methods of the agent.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If an option is unknown, or if the agent takes no middleware, such as a workflow.
    """
    parameters = inspect.signature(agent.run).parameters
    if "middleware" not in parameters and all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
        raise HookUsageError(
            f"Hooks cannot be attached to {agent!r}: its `run` takes no middleware, so no hook would ever be called. "
            "Attach them to the agents within it."
        )
    also = ("agent_id", "conversation_id", "model", "provider", "parent")
    return HookedAgent(agent, HooklineMiddleware(check_hooked(hooks, DRIVES, options, also=also), **options))


class HookedAgent:
    """An agent of Microsoft Agent Framework whose runs have hooks; created by `hooked`.

    All methods except `run` and `resume` are those of the agent.

    Args:
        agent: The agent.
        middleware: The middleware that runs the hooks.
    """

    def __init__(self, agent: Any, middleware: HooklineMiddleware) -> None:
        self._agent, self._middleware = agent, middleware

    def __repr__(self) -> str:
        return f"HookedAgent({self._agent.name!r}, {self._middleware!r})"

    def run(self, messages: Any = None, *, middleware: Sequence[Any] | None = None, **given: Any) -> Any:
        """Run the agent, or stream it with `stream=True`; see the agent's `run`.

        Args:
            messages: As the agent takes them.
            middleware: Additional middleware for this run.
            given: The agent's other arguments.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
        """
        return self._agent.run(messages, middleware=[self._middleware, *(middleware or ())], **given)

    async def resume(
        self, result: AgentResponse[Any], decisions: Iterable[Approve | Reject], **given: Any
    ) -> AgentResponse[Any]:
        """Continue a run that waits for a person, as the same operation.

        Args:
            result: The response of the paused run.
            decisions: The decisions, each with the id of its tool call.
            given: Other arguments of `run`, such as the `session` of the paused run.

        Raises:
            RunStopped: If a `Reject` without `and_continue` ends the run.
            HookUsageError: If a decision is about a call that does not wait.
        """
        response: AgentResponse[Any] = await self.run(answers(result, decisions), **given)
        return response

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._agent, name)
