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

    from hookline.adapters.claude_agent_sdk._calls import Task
    from hookline.adapters.claude_agent_sdk._client import HookedClient
    from hookline.adapters.claude_agent_sdk._options import DRIVES, driven_by, given_to, hooked_options
    from hookline.adapters.claude_agent_sdk._tasks import Detached, Mail
    from hookline.adapters.claude_agent_sdk._turns import operate
except ImportError as error:
    raise MissingExtraError("claude-agent-sdk", "The adapter of the Claude Agent SDK") from error

__all__ = ["DRIVES", "HookedClient", "query"]


async def query(
    *,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions | None = None,
    transport: Any = None,
    hooks: Iterable[AnyHook],
    **attach: Any,
) -> AsyncGenerator[Any, None]:
    """Have Claude work on a task as an operation with these hooks; yields what `claude_agent_sdk.query` does.

    Args:
        prompt: As `claude_agent_sdk.query` takes it.
        options: Likewise. Hooks and `can_use_tool` that they hold are called as ever.
        transport: Likewise.
        hooks: The hooks of this task.
        attach: What else a run takes: `agent_id`, `operation_id`, `user_id`, `tenant_id`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook cannot work.
        HookDenied: If a hook denied the task.
    """
    options = options or ClaudeAgentOptions()
    run = AdapterRun(hooks, driven_by(options), **{**given_to(options), **attach})
    hooked, own = hooked_options(options, lambda: task)
    task = Task(run, options, own)
    mail, failures = Mail(), list[BaseException]()

    def speak(final: str | AsyncIterable[dict[str, Any]]) -> AsyncIterable[Any]:
        messages: AsyncIterable[Any] = claude_agent_sdk.query(prompt=final, options=hooked, transport=transport)
        return messages

    async def work_on() -> None:
        # In a task of its own: its scope must not be left open where the caller goes on between two messages, and what
        # Claude says must be seen before it calls its tools, whenever the caller reads it.
        try:
            async with run:
                await operate(task, prompt, speak, mail.put)
        except BaseException as error:
            failures.append(error)
            if not isinstance(error, Exception):
                raise
        finally:
            mail.close()

    working = Detached(work_on())
    try:
        async for message in mail:
            yield message
    except BaseException:
        working.cancel()
        with anyio.CancelScope(shield=True):
            await working.wait()
        raise
    await working.wait()
    if failures and isinstance(failures[0], Exception):
        raise failures[0]
