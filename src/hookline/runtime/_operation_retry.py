"""Begin an operation anew: the state of a retry, from that of the operation that it retries."""

from __future__ import annotations

from collections.abc import Sequence

from hookline.calls import Message
from hookline.runtime._agent import Agent
from hookline.runtime._compaction import SUMMARY_PREFIX
from hookline.runtime._inputs import opening_messages
from hookline.runtime._state import OperationState

__all__ = ["find_prompt", "is_compacted", "make_retry"]


def make_retry(agent: Agent, state: OperationState, prompt: Sequence[Message], operation_id: str) -> OperationState:
    """Return the first state of an operation that retries another one.

    A store that is given this state has an operation that has not begun: `recover_agent` or a `Worker` runs it. It has
    the agent, prompt, user, tenant and tags of the other, its hooks that are data, and needs the same interceptors.

    Args:
        agent: The agent, with the instructions that it has now.
        state: The operation to retry.
        prompt: Its prompt, from `find_prompt`.
        operation_id: The id of the new operation.
    """
    given = prompt[1:] if agent.instructions and prompt[0].role == "system" else prompt
    return OperationState(
        operation_id=operation_id,
        agent_id=state.agent_id,
        user_id=state.user_id,
        tenant_id=state.tenant_id,
        messages=opening_messages(agent, given),
        hooks=state.hooks,
        hearers=state.hearers,
        interceptors=state.interceptors,
        retry_of=state.operation_id,
        agent_version=state.agent_version,
        tags=state.tags,
    )


def find_prompt(state: OperationState, preview: str) -> list[Message] | None:
    """Return the messages with which an operation began: its instructions and its input.

    Args:
        state: The state of the operation.
        preview: The beginning of its newest message of the user when it began.

    Returns:
        The messages; `None` if a compaction has removed some of them.
    """
    messages, steering = state.messages, state.steering
    said_from = len(messages) if steering is None or steering.said_from is None else steering.said_from
    if is_compacted(messages):
        before = [message for message in messages if message.role == "system"]
        if said_from > len(before) + 1:
            return None  # the input was a conversation, and only its last message is still there
        asked = [message for message in messages if message.role == "user" and message.content.startswith(preview)]
        return [*before, asked[-1]] if asked else None
    if steering is not None and steering.continues:
        # `said_from` is behind the last input with which a hook has continued it.
        first = next(
            (at for at, each in enumerate(messages) if each.role == "user" and each.content.startswith(preview)), None
        )
        return None if first is None else list(messages[: first + 1])
    return list(messages[:said_from]) or None


def is_compacted(messages: Sequence[Message]) -> bool:
    """Return whether a summary stands in place of the oldest messages of a conversation."""
    first = next((message for message in messages if message.role != "system"), None)
    return first is not None and first.role == "user" and first.content.startswith(SUMMARY_PREFIX)
