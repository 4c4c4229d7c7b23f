"""One task of Claude, from its prompt to its result, as an operation."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterable, Callable
from typing import Any

import msgspec
from claude_agent_sdk import AssistantMessage, ResultMessage, SystemMessage, UserMessage

from hookline.adapters.claude_agent_sdk import _words as words
from hookline.adapters.claude_agent_sdk._calls import Task
from hookline.calls import AgentCall, Message
from hookline.errors import HookDenied, HookUsageError

__all__ = ["Prompt", "operate"]

Prompt = str | AsyncIterable[dict[str, Any]]
"""What Claude is asked."""


async def operate(
    task: Task, prompt: Prompt, speak: Callable[[Prompt], AsyncIterable[Any]], give: Callable[[Any], None]
) -> None:
    """Have Claude work on a task.

    Args:
        task: The task.
        prompt: What Claude is asked.
        speak: Asks it; gives the messages up to the result.
        give: Takes each message for the caller.

    Raises:
        HookDenied: If a hook denied the task.
    """
    run, held = task.run, list[Any]()
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
        for message in call.input:
            task.compacting.heard(message)
        async for said in speak(final):
            await _hear(task, said)
            hold(said)
        return run.run.last_content

    try:
        done = await run.lead_run(asked, work)
    finally:
        await task.close()
    if done.denied is not None:
        raise HookDenied(done.denied.hook_id, done.denied.reason)
    if done.continues:
        raise HookUsageError("A hook asks for one more round, which a task of Claude cannot give. Ask it again.")
    for message in _changed(held, done.output) if done.ran and done.changed else held:
        give(message)
    for message in words.said(done.output) if not done.ran else ():
        give(message)


async def _hear(task: Task, message: Any) -> None:
    """Take a message into the operation."""
    if isinstance(message, AssistantMessage):
        await task.saw_answer(message)
    elif isinstance(message, UserMessage):
        await task.saw_results(message)
    elif isinstance(message, SystemMessage):
        await task.compacting.saw(message)
    elif isinstance(message, ResultMessage):
        await task.compacting.settle()
        _finish(task, message)


def _finish(task: Task, message: ResultMessage) -> None:
    """Say what a task came to."""
    run, deferred = task.run, message.deferred_tool_use
    reason, failure = words.ending(message)
    if message.total_cost_usd is not None:
        run.run.usage = msgspec.structs.replace(run.run.usage, cost_usd=message.total_cost_usd)
    if run.denied is not None:
        return
    if task.people.stopped:
        run.finish("interrupted", message.result)
    elif deferred is not None:
        run.pause([words.pending(deferred.name, deferred.input, deferred.id, "")])
    else:
        run.finish(reason, message.result, failure)


def _changed(held: list[Any], output: str) -> list[Any]:
    """The last messages, with what hooks have made of the answer."""
    changed = words.said(output)
    results = [message for message in held if isinstance(message, ResultMessage)]
    return [*changed[:1], *(dataclasses.replace(message, result=output) for message in results)]
