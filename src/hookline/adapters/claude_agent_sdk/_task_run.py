"""Run one prompt of Claude as an operation, up to its result message."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterable, Callable
from typing import Any

import msgspec
from claude_agent_sdk import AssistantMessage, ResultMessage, SystemMessage, UserMessage

from hookline.adapters._attaching import mark_paused
from hookline.adapters.claude_agent_sdk import _conversion as convert
from hookline.adapters.claude_agent_sdk._task import ClaudeTask
from hookline.calls import AgentCall, Message
from hookline.errors import HookUsageError

__all__ = ["Prompt", "run_task"]

Prompt = str | AsyncIterable[dict[str, Any]]
"""A prompt: a text, or a stream of messages."""


async def run_task(
    task: ClaudeTask, prompt: Prompt, send: Callable[[Prompt], AsyncIterable[Any]], deliver: Callable[[Any], None]
) -> None:
    """Run a prompt of Claude through the hooks of `AgentCall`.

    Args:
        task: The task.
        prompt: The prompt.
        send: Sends the prompt; yields the messages up to the result.
        deliver: Passes a message on to the caller.

    Raises:
        RunStopped: If a hook, a person or `interrupt` ended the task.
    """
    run, held = task.run, list[Any]()
    asked = [Message(role="user", content=prompt)] if isinstance(prompt, str) else []
    may_change = AgentCall in run.run.intercepted

    def hold(message: Any) -> None:
        # Hooks may change the last message, so it is not delivered before they have run.
        if may_change and isinstance(message, AssistantMessage | ResultMessage):
            held.append(message)
            return
        while held:
            deliver(held.pop(0))
        deliver(message)

    async def work(call: AgentCall) -> str:
        final, changed = prompt, list(call.input) != asked
        if changed and not isinstance(prompt, str):
            raise HookUsageError(
                "A hook changed the input of a task or added context, but a prompt that is a stream cannot be changed. "
                "Pass the prompt as a `str`."
            )
        if changed:
            final = "\n\n".join(each.content for each in call.input)
        for message in call.input:
            task.compacting.record_message(message)
        async for message in send(final):
            await _record(task, message)
            if not (run.is_stopped and isinstance(message, ResultMessage)):  # an error takes the place of the result
                hold(message)
        return run.run.last_content

    try:
        done = await run.lead_run(asked, work)
    finally:
        await task.close()
    run.raise_if_stopped()
    if done.continues:
        raise HookUsageError(
            "A hook returned Continue, but a task of Claude has only one round. Send another prompt instead."
        )
    for message in _replace_output(held, done.output) if done.ran and done.changed else held:
        deliver(message)
    for message in convert.to_result_messages(done.output) if not done.ran else ():
        deliver(message)


async def _record(task: ClaudeTask, message: Any) -> None:
    """Record a message of Claude in the operation."""
    if isinstance(message, AssistantMessage):
        await task.record_answer(message)
    elif isinstance(message, UserMessage):
        await task.record_results(message)
    elif isinstance(message, SystemMessage):
        await task.compacting.record_system_message(message)
    elif isinstance(message, ResultMessage):
        await task.compacting.settle()
        _finish(task, message)


def _finish(task: ClaudeTask, message: ResultMessage) -> None:
    """Set why the task ended, from its result message."""
    run, deferred = task.run, message.deferred_tool_use
    reason, failure = convert.completion_of(message)
    if message.total_cost_usd is not None:
        run.run.usage = msgspec.structs.replace(run.run.usage, cost_usd=message.total_cost_usd)
    if run.denied is not None:
        return
    if task.approvals.stopped:
        run.finish("interrupted", message.result)
    elif deferred is not None:
        mark_paused(message, run.operation_id)
        run.pause([convert.to_pending_tool(deferred.name, deferred.input, deferred.id, "")])
    else:
        run.finish(reason, message.result, failure)


def _replace_output(held: list[Any], output: str) -> list[Any]:
    """Return the last messages with the output that hooks left."""
    changed = convert.to_result_messages(output)
    results = [message for message in held if isinstance(message, ResultMessage)]
    return [*changed[:1], *(dataclasses.replace(message, result=output) for message in results)]
