"""Tasks of the Claude Agent SDK with hooks: `hooked` and `HookedClaude`."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage

from hookline.adapters._attaching import check_hooked, decisions_by_call, paused_operation
from hookline.adapters.claude_agent_sdk._api import query
from hookline.adapters.claude_agent_sdk._client import HookedClient
from hookline.adapters.claude_agent_sdk._options import capabilities_for
from hookline.adapters.claude_agent_sdk._task_run import Prompt
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

__all__ = ["HookedClaude", "answers", "hooked"]


def hooked(options: ClaudeAgentOptions, hooks: Iterable[AnyHook] = (), **run_options: Any) -> HookedClaude:
    """Attach hooks to every task that runs with these options; the options are not changed.

    Args:
        options: The options. Hooks and `can_use_tool` in them are still called.
        hooks: The hooks of each task.
        run_options: Options of the runs: `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`, `agent_id`, `conversation_id`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If an option is unknown.
    """
    also = ("agent_id", "conversation_id")
    return HookedClaude(options, check_hooked(hooks, capabilities_for(options), run_options, also=also), run_options)


class HookedClaude:
    """Runs tasks of the Claude Agent SDK with hooks; created by `hooked`.

    Args:
        options: The options of Claude.
        hooks: The hooks of each task.
        run_options: Options of the runs.
    """

    def __init__(self, options: ClaudeAgentOptions, hooks: Sequence[AnyHook], run_options: Mapping[str, Any]) -> None:
        self._options, self._hooks, self._run_options = options, hooks, dict(run_options)

    def __repr__(self) -> str:
        return f"HookedClaude(hooks={list(self._hooks)!r})"

    def query(self, prompt: Prompt, *, transport: Any = None) -> AsyncGenerator[Any, None]:
        """Run a prompt as one operation; yields what `claude_agent_sdk.query` yields.

        Args:
            prompt: As `claude_agent_sdk.query` takes it.
            transport: As `claude_agent_sdk.query` takes it.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the task.
        """
        return query(prompt=prompt, options=self._options, transport=transport, hooks=self._hooks, **self._run_options)

    def client(self, *, transport: Any = None) -> HookedClient:
        """Create a client for a conversation, whose every turn is an operation with these hooks.

        Args:
            transport: As `ClaudeSDKClient` takes it.
        """
        return HookedClient(self._options, transport, hooks=self._hooks, **self._run_options)

    async def resume(
        self,
        result: ResultMessage,
        decisions: Iterable[Approve | Reject],
        *,
        prompt: Prompt = "Continue.",
        transport: Any = None,
    ) -> AsyncGenerator[Any, None]:
        """Continue a task that waits for a person, as the same operation; yields what `query` yields.

        Args:
            result: The result of the paused task, whose `deferred_tool_use` is the call that waits.
            decisions: The decision about that call.
            prompt: The prompt with which Claude continues the session.
            transport: As `claude_agent_sdk.query` takes it.

        Raises:
            RunStopped: If a `Reject` without `and_continue` ends the task.
            HookUsageError: If a decision is about a call that does not wait.
        """
        run_options = dict(self._run_options)
        if run_options.get("operation_id") is None:
            run_options["operation_id"] = paused_operation(result)
        options = answers(result, decisions, self._options)
        async with aclosing(
            query(prompt=prompt, options=options, transport=transport, hooks=self._hooks, **run_options)
        ) as messages:
            async for message in messages:
                yield message


def answers(
    result: ResultMessage, decisions: Iterable[Approve | Reject], options: ClaudeAgentOptions | None = None
) -> ClaudeAgentOptions:
    """Convert a person's decisions into the options with which `query` resumes the paused session.

    Args:
        result: The result of the paused task, whose `deferred_tool_use` is the call that waits.
        decisions: The decision about that call.
        options: The options of the paused task; they are not changed. Their `"PreToolUse"` hooks are not asked again
            about that call.

    Raises:
        HookUsageError: If a decision is about a call that does not wait.
    """
    options, waiting = options or ClaudeAgentOptions(), result.deferred_tool_use
    decided = decisions_by_call(decisions, [waiting.id] if waiting is not None else [])

    async def decide(given: Any, call_id: str | None, context: Any) -> Any:
        decision = decided.get(call_id or given["tool_use_id"])
        return _to_pre_tool_output(decision) if decision is not None else {}

    def unless_decided(hook: Any) -> Any:
        async def call(given: Any, call_id: str | None, context: Any) -> Any:
            return {} if (call_id or given["tool_use_id"]) in decided else await hook(given, call_id, context)

        return call

    hooks = dict(options.hooks or {})
    own = [
        dataclasses.replace(each, hooks=[unless_decided(hook) for hook in each.hooks])
        for each in hooks.get("PreToolUse", ())
    ]
    hooks["PreToolUse"] = [HookMatcher(hooks=[decide]), *own]
    return dataclasses.replace(options, hooks=hooks, resume=result.session_id)


def _to_pre_tool_output(decision: Approve | Reject) -> dict[str, Any]:
    """Return what a `PreToolUse` hook answers for a person's decision."""
    if isinstance(decision, Approve):
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
    denial = {"permissionDecision": "deny", "permissionDecisionReason": decision.reason}
    stops = {} if decision.and_continue else {"continue_": False, "stopReason": decision.reason}
    return {**stops, "hookSpecificOutput": {"hookEventName": "PreToolUse", **denial}}
