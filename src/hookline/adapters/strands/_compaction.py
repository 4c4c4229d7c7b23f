"""Compaction of a Strands agent's conversation, led through the hooks of the run that needs it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import Lock
from typing import Any

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager

from hookline.adapters.strands._seat import seat_of
from hookline.adapters.strands._words import heard, text_of
from hookline.calls import Message
from hookline.errors import HookUsageError

__all__ = ["lead_compactions"]


_changing = Lock()


@contextmanager
def lead_compactions(agent: Any) -> Iterator[None]:
    """Lead the compactions of an agent while it runs; then its conversation manager is as it was.

    Args:
        agent: An agent, or a graph or a swarm with its nodes.
    """
    managers = [
        each
        for each in _managers_of(agent)
        if hasattr(each, "reduce_context") and not isinstance(each, NullConversationManager)
    ]
    with _changing:
        for manager in managers:
            present = vars(manager).get("reduce_context")
            if not isinstance(present, Compacting):
                present = vars(manager)["reduce_context"] = Compacting(manager)
            present.runs += 1
    try:
        yield
    finally:
        with _changing:
            for manager in managers:
                _release(vars(manager))


def _managers_of(agent: Any) -> Iterator[Any]:
    if isinstance(agent, Agent):
        yield getattr(agent, "conversation_manager", None)
        return
    for node in getattr(agent, "nodes", {}).values():  # an agent elsewhere (A2A) has neither
        yield from _managers_of(node.executor)


def _release(attributes: dict[str, Any]) -> None:
    """Give a conversation manager its own method back, once no run needs ours."""
    present = attributes.get("reduce_context")
    if not isinstance(present, Compacting):
        return
    present.runs -= 1
    if present.runs:
        return
    if present.own is None:
        del attributes["reduce_context"]
    else:
        attributes["reduce_context"] = present.own


class Compacting:
    """Stands in for the `reduce_context` of a conversation manager.

    Args:
        manager: The conversation manager.

    Attributes:
        own: What the manager itself has in that place, if it is no method of its class.
        runs: How many runs need it.
    """

    def __init__(self, manager: Any) -> None:
        self._reduce = manager.reduce_context
        self.own = vars(manager).get("reduce_context")
        self.runs = 0

    def __call__(self, agent: Any, e: Exception | None = None, **given: Any) -> None:
        """Compact.

        Args:
            agent: Whose conversation.
            e: What the model raised because the conversation was too long for it.
            given: What else the manager takes.
        """
        seat = seat_of(agent)
        if seat is None:
            self._reduce(agent, e=e, **given)
            return
        before, failed = deepcopy(agent.messages), list[Exception]()

        async def summarize(messages: list[Message]) -> str:
            try:
                self._reduce(agent, e=e, **given)
                if agent.messages == before:
                    raise RuntimeError("The conversation manager left the conversation as it was.")
            except Exception as error:
                failed.append(error)
                raise
            return text_of([block for each in _new(agent, before) for block in each["content"]])

        own = [ours for each in agent.messages for ours in heard(agent, each)]
        summary = _now(seat.run.compact(own, seat.tokens, summarize))
        if summary is None:
            if e is not None:
                raise failed[0] if failed else e
        elif agent.messages == before:
            _replace(agent, summary)
        else:
            new = _new(agent, before)
            if new and text_of(new[0]["content"]) != summary:
                new[0]["content"] = [{"text": summary}]


def _new(agent: Any, before: list[Any]) -> list[Any]:
    """The messages that are there since the compaction: its summary, if it has written one."""
    return [
        each for each in agent.messages if each not in before and not any("toolResult" in b for b in each["content"])
    ]


def _now(work: Coroutine[Any, Any, str | None]) -> str | None:
    """Run it at once: Strands compacts in a plain function, in the thread of the event loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        summary: str | None = stop.value
        return summary
    work.close()
    raise HookUsageError(
        "A hook of CompactCall has waited, and Strands compacts in a plain function, which cannot wait. "
        "Let the hook decide without waiting."
    )


def _replace(agent: Any, summary: str) -> None:
    """Put the summary that a hook gave before the last exchange; the newest words of the user stay."""
    messages, last = agent.messages, len(agent.messages) - 1
    if last > 0 and any("toolResult" in block for block in messages[last]["content"]):
        last -= 1
    users = [each for each in messages[:last] if each["role"] == "user" and any("text" in b for b in each["content"])]
    asked = users[-1]["content"] if users and messages[last]["role"] != "user" else []
    messages[:last] = [{"role": "user", "content": [{"text": summary}, *asked]}]
