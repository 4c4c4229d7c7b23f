"""Pass the compactions of a Strands agent's conversation through the hooks of its run."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import Lock
from typing import Any

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager

from hookline.adapters.strands._conversion import from_strands_message, text_of
from hookline.adapters.strands._run_binding import binding_of
from hookline.calls import Message
from hookline.errors import HookUsageError

__all__ = ["hook_compactions"]


_lock = Lock()


@contextmanager
def hook_compactions(agent: Any) -> Iterator[None]:
    """Pass an agent's compactions through hooks while it runs; its conversation manager is restored afterwards.

    Args:
        agent: An agent, or a graph or a swarm with its nodes.
    """
    managers = [
        each
        for each in _managers_of(agent)
        if hasattr(each, "reduce_context") and not isinstance(each, NullConversationManager)
    ]
    with _lock:
        for manager in managers:
            present = vars(manager).get("reduce_context")
            if not isinstance(present, ReduceContextHook):
                present = vars(manager)["reduce_context"] = ReduceContextHook(manager)
            present.runs += 1
    try:
        yield
    finally:
        with _lock:
            for manager in managers:
                _restore_method(vars(manager))


def _managers_of(agent: Any) -> Iterator[Any]:
    if isinstance(agent, Agent):
        yield getattr(agent, "conversation_manager", None)
        return
    for node in getattr(agent, "nodes", {}).values():  # an agent elsewhere (A2A) has neither
        yield from _managers_of(node.executor)


def _restore_method(attributes: dict[str, Any]) -> None:
    """Restore a conversation manager's own method once no run needs the replacement."""
    present = attributes.get("reduce_context")
    if not isinstance(present, ReduceContextHook):
        return
    present.runs -= 1
    if present.runs:
        return
    if present.own is None:
        del attributes["reduce_context"]
    else:
        attributes["reduce_context"] = present.own


class ReduceContextHook:
    """Replaces the `reduce_context` method of a conversation manager.

    Args:
        manager: The conversation manager.

    Attributes:
        own: The instance attribute that it replaces, if the manager has one.
        runs: How many open runs use it.
    """

    def __init__(self, manager: Any) -> None:
        self._reduce = manager.reduce_context
        self.own = vars(manager).get("reduce_context")
        self.runs = 0

    def __call__(self, agent: Any, e: Exception | None = None, **given: Any) -> None:
        """Compact a conversation.

        Args:
            agent: The agent whose conversation is compacted.
            e: The error that the model raised because the conversation was too long.
            given: Other arguments of the manager.
        """
        binding = binding_of(agent)
        if binding is None:
            self._reduce(agent, e=e, **given)
            return
        before, failed = deepcopy(agent.messages), list[Exception]()

        async def summarize(messages: list[Message]) -> str:
            try:
                self._reduce(agent, e=e, **given)
                if agent.messages == before:
                    raise RuntimeError("The conversation manager did not change the conversation.")
            except Exception as error:
                failed.append(error)
                raise
            return text_of([block for each in _new_messages(agent, before) for block in each["content"]])

        own = [ours for each in agent.messages for ours in from_strands_message(agent, each)]
        summary = _run_without_waiting(binding.run.compact(own, binding.projected_tokens, summarize))
        if summary is None:
            if e is not None:
                raise failed[0] if failed else e
        elif agent.messages == before:
            _insert_summary(agent, summary)
        else:
            new = _new_messages(agent, before)
            if new and text_of(new[0]["content"]) != summary:
                new[0]["content"] = [{"text": summary}]


def _new_messages(agent: Any, before: list[Any]) -> list[Any]:
    """Return the messages that a compaction added: the summary, if the manager wrote one."""
    return [
        each for each in agent.messages if each not in before and not any("toolResult" in b for b in each["content"])
    ]


def _run_without_waiting(work: Coroutine[Any, Any, str | None]) -> str | None:
    """Run a coroutine that must not wait: Strands compacts in a plain function, in the event loop's thread."""
    try:
        work.send(None)
    except StopIteration as stop:
        summary: str | None = stop.value
        return summary
    work.close()
    raise HookUsageError(
        "A hook of CompactCall awaited something, but Strands compacts in a plain function, which cannot wait. "
        "Make the hook return without awaiting."
    )


def _insert_summary(agent: Any, summary: str) -> None:
    """Insert a hook's summary before the last exchange; the user's latest message is kept."""
    messages, last = agent.messages, len(agent.messages) - 1
    if last > 0 and any("toolResult" in block for block in messages[last]["content"]):
        last -= 1
    users = [each for each in messages[:last] if each["role"] == "user" and any("text" in b for b in each["content"])]
    asked = users[-1]["content"] if users and messages[last]["role"] != "user" else []
    messages[:last] = [{"role": "user", "content": [{"text": summary}, *asked]}]
