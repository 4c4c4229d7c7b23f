"""Check the arguments of a run: ids, the prompt, a person's decisions; and `RunOptions`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

import msgspec

from hookline._checks import quote
from hookline.calls import Message
from hookline.dispatcher import HookDispatcher
from hookline.errors import DecisionError, HookUsageError
from hookline.hooks import AnyHook
from hookline.runtime._agent import Agent
from hookline.runtime._models import OnToken, Release
from hookline.runtime._state import Approve, Decision, OperationState, OperationStore, Reject

__all__ = [
    "RunOptions",
    "check_decisions",
    "check_ids",
    "check_operation_id",
    "check_tags",
    "join_tags",
    "new_operation_id",
    "opening_messages",
    "system_message",
]


MOST_TAGS, LONGEST_TAG = 20, 100


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The options of a run that all public functions share, on their way to the run.

    Attributes:
        hooks: Its hooks, the agent's own first.
        store: Where the operation is kept.
        dispatcher: An open dispatcher to share with other runs; `None` for one of its own.
        drain_timeout: Seconds that queued observers may take at the end; the rest is cancelled.
        on_token: Takes the text of the model calls while it is written.
        release: When that text is given away.
    """

    hooks: Sequence[AnyHook]
    store: OperationStore
    dispatcher: HookDispatcher | None
    drain_timeout: float
    on_token: OnToken | None = None
    release: Release = "checked"


def new_operation_id() -> str:
    """Return an id that no other operation has."""
    return f"op_{os.urandom(16).hex()}"


def system_message(instructions: str) -> Message:
    """Return an agent's instructions as the message that a model reads."""
    return Message(role="system", content=instructions)


def opening_messages(agent: Agent, prompt: str | Sequence[Message]) -> list[Message]:
    """Return the messages with which a run begins: the agent's instructions, then the prompt.

    Raises:
        HookUsageError: If the prompt is neither text nor messages.
    """
    given: object = prompt
    if isinstance(given, str):
        messages = [Message(role="user", content=given)]
    elif isinstance(given, Sequence) and given and all(isinstance(message, Message) for message in given):
        messages = list(given)
    else:
        raise HookUsageError(f"A prompt must be a string or a non-empty list of Messages; got {quote(given)}.")
    if not agent.instructions:
        return messages
    system = system_message(agent.instructions)
    return messages if system in messages else [system, *messages]


def check_operation_id(operation_id: str | None) -> str:
    """Return the operation id of the caller, or a new one for `None`.

    Raises:
        HookUsageError: If it is not a string, or empty.
    """
    if operation_id is None:
        return new_operation_id()
    if not isinstance(operation_id, str) or not operation_id:
        raise HookUsageError(f"`operation_id` is a non-empty string or None; got {quote(operation_id)}.")
    return operation_id


def check_ids(**ids: object) -> None:
    """Refuse ids that are not strings.

    Raises:
        HookUsageError: For the first of them, by its name.
    """
    for name, value in ids.items():
        if not isinstance(value, str):
            raise HookUsageError(f"`{name}` is a string; got {quote(value)}.")


def check_tags(tags: object) -> tuple[str, ...]:
    """Return the tags of an operation, each once, in the order in which they are given.

    Raises:
        HookUsageError: If they are not a collection of strings, too many, or one of them is not valid.
    """
    if isinstance(tags, str | bytes) or not isinstance(tags, Collection):
        raise HookUsageError(f"`tags` is a collection of strings, such as {{'refund', 'vip'}}; got {quote(tags)}.")
    given = list(tags)
    for tag in given:
        if not isinstance(tag, str) or not 0 < len(tag) <= LONGEST_TAG or not tag.isprintable():
            raise HookUsageError(
                f"A tag is a string of 1 to {LONGEST_TAG} printable characters; `tags` has {quote(tag)}."
            )
    return join_tags((), given)


def join_tags(inherited: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of an operation, each once: those of the run that called it, then its own.

    Raises:
        HookUsageError: If they are too many.
    """
    tags = tuple(dict.fromkeys((*inherited, *own)))
    if len(tags) > MOST_TAGS:
        raise HookUsageError(
            f"An operation has at most {MOST_TAGS} tags, those of the run that calls it among them; got {len(tags)}."
        )
    return tags


def check_decisions(state: OperationState, decisions: Sequence[Approve | Reject]) -> list[Decision]:
    """Return a person's decisions, if each is about a call that waits for one.

    Raises:
        DecisionError: For the first that is not, or if there is none.
    """
    open_ids = [call.tool_call_id for call in state.pending if call.tool_call_id not in state.decisions]
    if isinstance(decisions, Approve | Reject) or not isinstance(decisions, Iterable):
        raise DecisionError(
            state.operation_id, f"`decisions` must be a list of Approve and Reject; got {quote(decisions)}", open_ids
        )
    checked: list[Decision] = []
    for decision in decisions:
        if not isinstance(decision, Approve | Reject):
            raise DecisionError(
                state.operation_id, f"a decision must be an Approve or a Reject; got {quote(decision)}", open_ids
            )
        if decision.tool_call_id not in open_ids:
            raise DecisionError(state.operation_id, f"no call {decision.tool_call_id!r} is pending", open_ids)
        if any(other.tool_call_id == decision.tool_call_id for other in checked):
            raise DecisionError(state.operation_id, f"two decisions about {decision.tool_call_id!r}", open_ids)
        checked.append(decision)
    if not checked:
        raise DecisionError(state.operation_id, "no decision was given", open_ids)
    return checked
