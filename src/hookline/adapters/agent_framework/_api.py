"""Hooks for runs of Microsoft Agent Framework: `await agent.run("go", middleware=[HooklineMiddleware([...])])`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

from hookline.adapters._attaching import decisions_by_call, needs_operation, operations_are_watched
from hookline.errors import MissingExtraError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import Approve, Reject

try:
    from agent_framework import AgentContext, AgentMiddleware, AgentMiddlewareLayer, AgentResponse, Message
except ImportError as error:
    raise MissingExtraError("agent-framework", "The adapter of Microsoft Agent Framework") from error

from hookline.adapters.agent_framework._conversion import REJECTED_KEY
from hookline.adapters.agent_framework._run_binding import DRIVES
from hookline.adapters.agent_framework._runs import belongs_to_operation, calling_run, run_operation

__all__ = ["DRIVES", "HooklineMiddleware", "answers"]


class HooklineMiddleware(AgentMiddleware):
    """Middleware that runs an agent with hooks; put it first in `middleware`, so that it is outermost.

    Pass it to one run, or to `Agent(middleware=[...])` for every run of the agent. One object serves concurrent runs.
    A run without hooks is not an operation, unless others could notice it.

    Args:
        hooks: The hooks.
        options: Options of `AdapterRun`: `operation_id`, `user_id`, `tenant_id`, `tags`, `store`,
            `best_effort`, `allow_missing_hooks`, …
    """

    def __init__(self, hooks: Iterable[AnyHook] = (), **options: Any) -> None:
        self._hooks, self._options = hook_batch(hooks), options
        self._needs_operation = needs_operation(self._hooks, options)
        _wrap_run()

    def __repr__(self) -> str:
        return f"HooklineMiddleware({list(self._hooks)!r})"

    async def process(self, context: AgentContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Run the agent as an operation, unless nothing could notice that; the framework calls this.

        Args:
            context: The framework's context of the run.
            call_next: Runs the agent.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
            UnsupportedHookError: If a hook would never be called.
        """
        if self._needs_operation or operations_are_watched() or belongs_to_operation(context):
            await run_operation(context, call_next, self._hooks, self._options)
        else:
            await call_next()


@functools.cache
def _wrap_run() -> None:
    """Wrap the `run` of agents, so that a run that a tool of a hooked run starts is a sub-agent's.

    It happens once per process. The framework has no middleware of all agents, and a policy that sub-agents inherit
    would not judge an agent that a tool simply runs. Outside of the tools of hooked runs it only calls the method.
    """
    own_run = AgentMiddlewareLayer.run

    @functools.wraps(own_run)
    def run(self: Any, messages: Any = None, *, middleware: Sequence[Any] | None = None, **given: Any) -> Any:
        if calling_run() is not None and not any(isinstance(each, HooklineMiddleware) for each in middleware or ()):
            middleware = [HooklineMiddleware(), *(middleware or ())]
        return own_run(self, messages, middleware=middleware, **given)

    cast(Any, AgentMiddlewareLayer).run = run


def answers(result: AgentResponse[Any], decisions: Iterable[Approve | Reject]) -> Message:
    """Convert a person's decisions into the message that resumes a paused run, in the same session.

    Args:
        result: The response of the paused run.
        decisions: The decisions, each with the id of its tool call.

    Raises:
        HookUsageError: If a decision is about a call that does not wait.
    """
    calls = [each.function_call.call_id or "" for each in result.user_input_requests if each.function_call is not None]
    by_call, contents = decisions_by_call(decisions, calls), []
    for request in result.user_input_requests:
        decision = by_call.get(request.function_call.call_id or "") if request.function_call is not None else None
        if decision is None:
            continue
        answer = request.to_function_approval_response(isinstance(decision, Approve))
        if isinstance(decision, Reject):
            why = {"reason": decision.reason, "and_continue": decision.and_continue}
            answer.additional_properties = {**(answer.additional_properties or {}), REJECTED_KEY: why}
        contents.append(answer)
    return Message("user", contents)
