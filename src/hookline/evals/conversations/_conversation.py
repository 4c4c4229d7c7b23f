"""Lead a conversation with an agent: each message of the user is an operation of one session."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hookline._checks import quote
from hookline.calls import Usage
from hookline.dispatcher import HookDispatcher
from hookline.errors import HooklineError, HookUsageError, message_of
from hookline.evals.conversations._user import DONE, SimulatedUser, user_messages
from hookline.evals.errors import SimulatedUserError
from hookline.evals.running import AuxiliaryRuns, Check, ConversationEnd, ConversationTurn
from hookline.hooks import AnyHook
from hookline.runtime import Agent, AgentSession, OperationResult, OperationStore

__all__ = ["Conversation", "StopConditions", "run_conversation"]

MAX_TURNS = 10
"""How many messages a simulated user writes at most, unless the task says so."""


@dataclass(frozen=True, kw_only=True)
class StopConditions:
    """When a conversation ends before the user is done. What comes first ends it.

    Attributes:
        max_turns: The largest number of messages of the user; `None` for 10 with a simulated user, and for all
            scripted turns.
        phrase: A text in an answer of the agent, in upper or lower case; empty for none.
        check: A check that passes.

    Raises:
        HookUsageError: If an attribute is invalid.
    """

    max_turns: int | None = None
    phrase: str = ""
    check: Check | None = None

    def __post_init__(self) -> None:
        turns = self.max_turns
        if turns is not None and (not isinstance(turns, int) or isinstance(turns, bool) or turns < 1):
            raise HookUsageError(f"`max_turns` is a whole number from 1; got {quote(turns)}.")
        if not isinstance(self.phrase, str):
            raise HookUsageError(f"`phrase` is a text; got {quote(self.phrase)}.")
        if self.check is not None and not callable(self.check):
            raise HookUsageError(f"`check` is a function of the finished task; got {quote(self.check)}.")


@dataclass
class Conversation:
    """A conversation, as far as it has come.

    Attributes:
        turns: The turns.
        results: The result of each of them.
        end: Why it ended.
        usage: Tokens and cost of the simulated user.
        failure: The error of the simulated user, if it ended the conversation.
    """

    turns: list[ConversationTurn] = field(default_factory=list)
    results: list[OperationResult] = field(default_factory=list)
    end: ConversationEnd = ""
    usage: Usage = field(default_factory=Usage)
    failure: Exception | None = None

    @classmethod
    def of_prompt(cls, prompt: str, result: OperationResult) -> Conversation:
        """Return the conversation that one prompt and its answer are."""
        turn = ConversationTurn(
            user=prompt,
            output=result.output,
            operation_id=result.operation_id,
            reason=result.reason,
            steps=result.steps,
        )
        return cls(turns=[turn], results=[result])

    def add(self, message: str, result: OperationResult) -> None:
        """Add a turn."""
        one = Conversation.of_prompt(message, result)
        self.turns += one.turns
        self.results += one.results

    @property
    def result(self) -> OperationResult:
        """The result of the last turn, with the sums of all turns and the id of the first."""
        last = self.results[-1]
        changes: dict[str, Any] = {
            "operation_id": self.results[0].operation_id,
            "steps": sum(each.steps for each in self.results),
            "tool_calls": sum(each.tool_calls for each in self.results),
            "usage": sum((each.usage for each in self.results), Usage()),
        }
        if self.failure is not None:
            changes |= {"reason": "error", "error": self.failure}
        return msgspec.structs.replace(last, **changes)


async def run_conversation(
    agent: Agent,
    prompt: str,
    *,
    turns: Sequence[str],
    user: SimulatedUser | None,
    stop: StopConditions,
    hooks: Iterable[AnyHook],
    dispatcher: HookDispatcher | None,
    store: OperationStore | None,
    auxiliary: AuxiliaryRuns,
    passes: Callable[[Check, Conversation], Awaitable[bool]],
) -> Conversation:
    """Lead a conversation until a stop condition is met, or the user has nothing more to say.

    Args:
        agent: The agent.
        prompt: The first message of the user; empty if a simulated user writes it.
        turns: The messages that follow.
        user: The simulated user that writes the messages that follow.
        stop: When it ends before that.
        hooks: Hooks of every turn.
        dispatcher: An open dispatcher to share with other runs.
        store: The store of the operations.
        auxiliary: Runs the model of the simulated user.
        passes: Returns whether a check passes on the conversation so far.

    Raises:
        SimulatedUserError: If the simulated user does not write a first message.
    """
    conversation = Conversation()
    script = iter(turns)
    most = stop.max_turns or (math.inf if user is None else MAX_TURNS)
    player = None if user is None else user.agent()
    async with AgentSession(agent, hooks=hooks, dispatcher=dispatcher, store=store) as session:
        message: str | None = prompt
        if player is not None and not prompt:
            message = await _next_message(player, conversation, auxiliary)
            if message is None:
                raise conversation.failure or SimulatedUserError("it had nothing to say at the beginning")
        while message is not None and not conversation.end:
            result = await session.run(message)
            conversation.add(message, result)
            conversation.end = await _end_of(conversation, stop, most, passes)
            if conversation.end:
                break
            if player is not None:
                message = await _next_message(player, conversation, auxiliary)
            else:
                message = next(script, None)
                conversation.end = "turns" if message is None else ""
    return conversation


async def _end_of(
    conversation: Conversation,
    stop: StopConditions,
    most: float,
    passes: Callable[[Check, Conversation], Awaitable[bool]],
) -> ConversationEnd:
    """Return why the conversation ends after its last turn; empty if it goes on."""
    last = conversation.results[-1]
    if last.reason != "done":
        return "reason"
    if stop.phrase and stop.phrase.casefold() in last.output.casefold():
        return "phrase"
    if stop.check is not None and await passes(stop.check, conversation):
        return "check"
    return "max_turns" if len(conversation.turns) >= most else ""


async def _next_message(player: Agent, conversation: Conversation, auxiliary: AuxiliaryRuns) -> str | None:
    """Ask the simulated user for the next message; note in the conversation if there is none."""
    parent = conversation.results[0].operation_id if conversation.results else None
    counted = auxiliary.separate()
    result = await counted.run(player, user_messages(conversation.turns), parent_operation_id=parent)
    conversation.usage = conversation.usage + counted.usage
    if result.reason != "done":
        told = "" if result.error is None else f": {type(result.error).__name__}: {message_of(result.error)}"
        _fail(conversation, f"asking its model ended with reason {result.reason!r}{told}".rstrip("."))
        return None
    message = result.output.replace(DONE, "").strip()
    if DONE in result.output:
        conversation.end = "user"
        if message:
            conversation.turns.append(ConversationTurn(user=message))
        return None
    if not message:
        _fail(conversation, "its model wrote an empty message")
    return message or None


def _fail(conversation: Conversation, problem: str) -> None:
    error: HooklineError = SimulatedUserError(problem)
    conversation.failure, conversation.end = error, "reason"
