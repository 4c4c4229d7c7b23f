"""Hooks in the Claude Agent SDK, per task: `query(prompt=..., options=..., hooks=[...])`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import Any

import anyio
import msgspec

from hookline.calls import AgentCall, Message, SubAgentCall, ToolCall
from hookline.errors import HookDenied, HookUsageError, MissingExtraError
from hookline.events import HookType
from hookline.hooks import AnyHook
from hookline.runtime import KINDS, Drives, ForeignRun

try:
    import claude_agent_sdk
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, HookMatcher, ResultMessage, UserMessage
    from claude_agent_sdk._internal._task_compat import spawn_detached

    from hookline.adapters import _claude_words as words
    from hookline.adapters._claude_calls import Task
except ImportError as error:
    raise MissingExtraError("claude-agent-sdk", "The adapter of the Claude Agent SDK") from error

__all__ = ["DRIVES", "query"]

DRIVES = Drives(
    framework="Claude Agent SDK",
    events=frozenset(
        {
            HookType.BEFORE_STEP,
            HookType.AFTER_STEP,
            HookType.ON_COMPLETE,
            HookType.ON_ERROR,
            HookType.BEFORE_TOOL_CALL,
            HookType.AFTER_TOOL_CALL,
            HookType.ON_TOOL_CALL_ERROR,
            HookType.BEFORE_CALL_AGENT,
            HookType.AFTER_CALL_AGENT,
            HookType.ON_CALL_AGENT_ERROR,
        }
    ),
    calls={AgentCall: KINDS, ToolCall: KINDS, SubAgentCall: KINDS},
)
"""What of hookline the Claude Agent SDK can drive; Claude asks its model, and compacts, in a process of its own."""


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
        options: Likewise. Hooks that they hold are called as ever.
        transport: Likewise.
        hooks: The hooks of this task.
        attach: What else a run takes: `agent_id`, `operation_id`, `user_id`, `tenant_id`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook cannot work.
        HookDenied: If a hook denied the task.
    """
    options = options or ClaudeAgentOptions()
    given = {"agent_id": "claude", "model": options.model or "", "provider": "anthropic", **attach}
    run = ForeignRun(hooks, DRIVES, **given)
    send, receive = anyio.create_memory_object_stream[Any](math.inf)
    failures: list[BaseException] = []

    async def work_on() -> None:
        # In a task of its own: its scope must not be left open where the caller goes on between two messages, and what
        # Claude says must be seen before it calls its tools, whenever the caller reads it.
        try:
            async with run:
                await _operate(run, prompt, options, transport, send.send_nowait)
        except BaseException as error:
            failures.append(error)
            if not isinstance(error, Exception):
                raise
        finally:
            send.close()

    working = spawn_detached(work_on())
    try:
        async with receive:
            async for message in receive:
                yield message
    except BaseException:
        working.cancel()
        with anyio.CancelScope(shield=True):
            await working.wait()
        raise
    await working.wait()
    if failures and isinstance(failures[0], Exception):
        raise failures[0]


async def _operate(
    run: ForeignRun,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions,
    transport: Any,
    give: Callable[[Any], None],
) -> None:
    task, held = Task(run, DRIVES), list[Any]()
    asked = [Message(role="user", content=prompt)] if isinstance(prompt, str) else []
    judged = AgentCall in run.run.intercepted

    def hold(message: Any) -> None:
        # Hooks judge what Claude says at last, so nobody is given that before they have.
        if judged and isinstance(message, AssistantMessage | ResultMessage):
            held.append(message)
            return
        while held:
            give(held.pop(0))
        give(message)

    async def work(call: AgentCall) -> str:
        final, changed = prompt, list(call.input) != asked
        if changed and not isinstance(prompt, str):
            raise HookUsageError("A hook has changed the input of a task whose prompt is a stream; make it a `str`.")
        if changed:
            final = "\n\n".join(each.content for each in call.input)
        return await _play(run, task, final, _hooked(options, task), transport, hold)

    try:
        done = await run.lead_run(asked, work)
    finally:
        await task.close()
    if done.denied is not None:
        raise HookDenied(done.denied.hook_id, done.denied.reason)
    if done.continues:
        raise HookUsageError("A hook asks for one more round, which a `query` of Claude cannot give. Call it again.")
    for message in _changed(held, done.output) if done.ran and done.changed else held:
        give(message)
    for message in words.said(done.output) if not done.ran else ():
        give(message)


async def _play(
    run: ForeignRun,
    task: Task,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions,
    transport: Any,
    give: Callable[[Any], None],
) -> str:
    async for message in claude_agent_sdk.query(prompt=prompt, options=options, transport=transport):
        if isinstance(message, AssistantMessage):
            task.saw_answer(message)
        elif isinstance(message, UserMessage):
            await task.saw_results(message)
        elif isinstance(message, ResultMessage):
            reason, failure = words.ending(message)
            if message.total_cost_usd is not None:
                run.run.usage = msgspec.structs.replace(run.run.usage, cost_usd=message.total_cost_usd)
            if run.denied is None:
                run.finish(reason, message.result, failure)
        give(message)
    return run.run.last_content


def _changed(held: list[Any], output: str) -> list[Any]:
    """The last messages, with what hooks have made of the answer."""
    changed = words.said(output)
    results = [message for message in held if isinstance(message, ResultMessage)]
    return [*changed[:1], *(dataclasses.replace(message, result=output) for message in results)]


def _hooked(options: ClaudeAgentOptions, task: Task) -> ClaudeAgentOptions:
    """The options, with callbacks that say to a task what Claude does."""
    hooks: dict[Any, list[HookMatcher]] = {name: list(matchers) for name, matchers in (options.hooks or {}).items()}
    callbacks: tuple[tuple[str, Any], ...] = (
        ("PreToolUse", task.before_tool),
        ("PostToolUse", task.after_tool),
        ("PostToolUseFailure", task.after_failure),
        ("SubagentStart", task.sub_agent_starts),
    )
    for name, callback in callbacks:
        guards = name == "PreToolUse"  # one that fails must not let the call through
        hooks.setdefault(name, []).append(HookMatcher(hooks=[callback], on_failure="block" if guards else None))
    servers: Any = options.mcp_servers
    if isinstance(servers, dict):
        servers = {
            name: {**config, "instance": task.server(name, config["instance"])}
            if config.get("type") == "sdk"
            else config
            for name, config in servers.items()
        }
    return dataclasses.replace(options, hooks=hooks, mcp_servers=servers)
