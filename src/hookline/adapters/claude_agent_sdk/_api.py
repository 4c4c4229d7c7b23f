"""Hooks in the Claude Agent SDK: `query(prompt=..., hooks=[...])` and `HookedClient(options, hooks=[...])`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any

import anyio

from hookline.errors import MissingExtraError
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun

try:
    import claude_agent_sdk
    from claude_agent_sdk import ClaudeAgentOptions

    from hookline.adapters.claude_agent_sdk._background import BackgroundTask, MessageQueue
    from hookline.adapters.claude_agent_sdk._client import HookedClient
    from hookline.adapters.claude_agent_sdk._options import DRIVES, add_callbacks, capabilities_for, default_run_options
    from hookline.adapters.claude_agent_sdk._task import ClaudeTask
    from hookline.adapters.claude_agent_sdk._task_run import run_task
except ImportError as error:
    raise MissingExtraError("claude-agent-sdk", "The adapter of the Claude Agent SDK") from error

__all__ = ["DRIVES", "HookedClient", "query"]


async def query(
    *,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions | None = None,
    transport: Any = None,
    hooks: Iterable[AnyHook] = (),
    **attach: Any,
) -> AsyncGenerator[Any, None]:
    """Run a prompt with Claude as one operation with these hooks; yields what `claude_agent_sdk.query` yields.

    Args:
        prompt: As `claude_agent_sdk.query` takes it.
        options: As `claude_agent_sdk.query` takes them. Hooks and `can_use_tool` in them are still called.
        transport: As `claude_agent_sdk.query` takes it.
        hooks: The hooks of this task.
        attach: Other options of the run: `agent_id`, `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`,
            `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        RunStopped: If a hook, a person or `interrupt` ended the task.
    """
    options = options or ClaudeAgentOptions()
    run = AdapterRun(hooks, capabilities_for(options), **{**default_run_options(options), **attach})
    hooked, own_servers = add_callbacks(options, lambda: task)
    task = ClaudeTask(run, options, own_servers)
    queue, failures = MessageQueue(), list[BaseException]()

    def send(final: str | AsyncIterable[dict[str, Any]]) -> AsyncIterable[Any]:
        messages: AsyncIterable[Any] = claude_agent_sdk.query(prompt=final, options=hooked, transport=transport)
        return messages

    async def work_on() -> None:
        # In a task of its own: a cancel scope must not stay open in the caller's code between two messages, and an
        # answer of Claude must be recorded before its tool calls begin, however late the caller reads it.
        try:
            async with run:
                await run_task(task, prompt, send, queue.put)
            run.raise_if_stopped()
        except BaseException as error:
            failures.append(error)
            if not isinstance(error, Exception):
                raise
        finally:
            queue.close()

    working = BackgroundTask(work_on())
    try:
        async for message in queue:
            yield message
    except BaseException:
        working.cancel()
        with anyio.CancelScope(shield=True):
            await working.wait()
        raise
    await working.wait()
    if failures and isinstance(failures[0], Exception):
        raise failures[0]
