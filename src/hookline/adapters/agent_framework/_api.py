"""Hooks for runs of Microsoft Agent Framework: `await agent.run("go", middleware=[HookMiddleware([...])])`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from hookline.errors import MissingExtraError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import Approve, Reject

try:
    from agent_framework import AgentContext, AgentMiddleware, AgentResponse, Message
except ImportError as error:
    raise MissingExtraError("agent-framework", "The adapter of Microsoft Agent Framework") from error

from hookline.adapters.agent_framework._runs import play
from hookline.adapters.agent_framework._seat import DRIVES
from hookline.adapters.agent_framework._words import REJECTED

__all__ = ["DRIVES", "HookMiddleware", "answers"]


class HookMiddleware(AgentMiddleware):
    """Gives each run that it is passed to these hooks; put it first, so that it stands outside of other middleware.

    Passed to `Agent(middleware=[...])` it gives them to every run of the agent. One object serves many runs at once.

    Args:
        hooks: The hooks.
        options: What `AdapterRun` takes: `operation_id`, `user_id`, `tenant_id`, `store`, `best_effort`,
            `allow_missing_hooks`, …
    """

    def __init__(self, hooks: Iterable[AnyHook], **options: Any) -> None:
        self._hooks, self._options = hook_batch(hooks), options

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """A run; the framework calls this.

        Args:
            context: The run.
            call_next: Runs it.

        Raises:
            HookDenied: If a hook denied the run.
            UnsupportedHookError: If a hook would never be called.
        """
        await play(context, call_next, self._hooks, self._options)


def answers(response: AgentResponse[Any], decided: Sequence[Approve | Reject]) -> Message:
    """What a person decided, as the message with which a run goes on, in the same session.

    Args:
        response: What the run that waits gave.
        decided: The decisions, in any order.
    """
    by_call = {each.tool_call_id: each for each in decided}
    contents = []
    for request in response.user_input_requests:
        decision = by_call.get(request.function_call.call_id or "") if request.function_call is not None else None
        if decision is None:
            continue
        answer = request.to_function_approval_response(isinstance(decision, Approve))
        if isinstance(decision, Reject):
            why = {"reason": decision.reason, "and_continue": decision.and_continue}
            answer.additional_properties = {**(answer.additional_properties or {}), REJECTED: why}
        contents.append(answer)
    return Message("user", contents)
