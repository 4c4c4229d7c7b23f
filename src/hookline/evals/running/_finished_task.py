"""A finished task as checks see it, and runs of the models that judge it or play its user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookline.calls import Message, ToolRequest, Usage
from hookline.dispatcher import HookDispatcher
from hookline.evals.running._results import ConversationEnd, ConversationTurn
from hookline.evals.trajectories import RecordedOperation
from hookline.events import AfterStep
from hookline.hooks import AnyHook
from hookline.runtime import Agent, OperationResult, OperationStore, exec_agent, inherited_hooks

__all__ = ["AuxiliaryRuns", "FinishedTask"]


class AuxiliaryRuns:
    """Runs agents beside the one that is evaluated: judges and simulated users.

    Each is an operation of its own, with the hooks of the evaluated run that sub-agents inherit (`inherit=True`): a
    tape of model calls, tracing, a recording of events. Its tokens and cost are not those of the evaluated agent.

    Args:
        hooks: The hooks of the evaluated run; those that are inherited are used.
        dispatcher: An open dispatcher to share with other runs.
        store: The store of the operations.

    Attributes:
        count: The number of runs.
        usage: Tokens and cost of all their model calls.
    """

    def __init__(
        self,
        hooks: Iterable[AnyHook] = (),
        *,
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
    ) -> None:
        self._hooks = inherited_hooks(hooks)
        self._dispatcher = dispatcher
        self._store = store
        self.count = 0
        self.usage = Usage()

    def separate(self) -> AuxiliaryRuns:
        """Return one with the same hooks that counts from zero."""
        return AuxiliaryRuns(self._hooks, dispatcher=self._dispatcher, store=self._store)

    async def run(
        self, agent: Agent, prompt: str | Sequence[Message], *, parent_operation_id: str | None = None
    ) -> OperationResult:
        """Run an agent, and count its tokens and cost.

        Args:
            agent: The agent.
            prompt: The user's message, or a conversation to continue.
            parent_operation_id: The operation of the evaluated agent.
        """
        result = await exec_agent(
            agent,
            prompt,
            hooks=self._hooks,
            dispatcher=self._dispatcher,
            store=self._store,
            parent_operation_id=parent_operation_id,
        )
        self.count += 1
        self.usage = self.usage + result.usage
        return result


@dataclass(frozen=True, kw_only=True)
class FinishedTask:
    """A finished task, as checks see it.

    Attributes:
        id: The task.
        prompt: The user's prompt; the first one of a conversation.
        result: The result of the run. That of a conversation is the result of the last turn, with the steps, tool
            calls, tokens and cost of all turns, and the id of the first.
        recorded: The recorded events of the run; of a conversation, those of all turns.
        tools_forbidden: Whether no real tool could run, so that what they would have changed did not change.
        turns: The turns of a conversation; empty for a task with one prompt.
        conversation_end: Why the conversation ended; empty for a task with one prompt.
        expected_output: The answer that the task expects, if it names one.
        tags: The tags of the task.
        metadata: Further data of the task.
        auxiliary: Runs the agents that checks ask.
    """

    id: str
    prompt: str
    result: OperationResult
    recorded: RecordedOperation
    tools_forbidden: bool = False
    turns: Sequence[ConversationTurn] = ()
    conversation_end: ConversationEnd = ""
    expected_output: str | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    auxiliary: AuxiliaryRuns = field(default_factory=AuxiliaryRuns, repr=False)

    @property
    def output(self) -> str:
        """The final answer."""
        return self.result.output

    @property
    def outputs(self) -> list[str]:
        """The answer of each turn; of a task with one prompt, the only answer."""
        return [turn.output for turn in self.turns if turn.operation_id] or [self.output]

    @property
    def calls(self) -> list[ToolRequest]:
        """The tool calls, in the order in which the model asked for them."""
        return [
            ToolRequest(
                toolset=event.toolset,
                tool_name=event.tool_name,
                args=dict(event.args),
                tool_call_id=event.tool_call_id,
            )
            for event in self.recorded.calls
        ]

    @property
    def tool_results(self) -> list[str]:
        """The tool results that the model read, in their order."""
        return [message.content for message in self.result.messages if message.role == "tool"]

    @property
    def conversation(self) -> list[Message]:
        """The messages of the user, the agent and its tools, without the agent's instructions."""
        only = ConversationTurn(user=self.prompt, output=self.output, operation_id=self.result.operation_id)
        steps = self.recorded.select(AfterStep)
        messages: list[Message] = []
        for turn in self.turns or [only]:
            messages.append(Message(role="user", content=turn.user))
            said = [_step_messages(step) for step in steps if step.operation_id == turn.operation_id]
            messages += [message for step in said for message in step]
            # The answer of a run that was stopped, or that a hook replaced, is in no step.
            if turn.output and (messages[-1].role, messages[-1].content) != ("assistant", turn.output):
                messages.append(Message(role="assistant", content=turn.output))
        return messages

    async def ask(self, agent: Agent, prompt: str | Sequence[Message]) -> OperationResult:
        """Run another agent for a check, for example a model that judges.

        The run has the hooks of this task that sub-agents inherit. Its tokens and cost become those of the check.

        Args:
            agent: The agent.
            prompt: The user's message, or a conversation to continue.
        """
        return await self.auxiliary.run(agent, prompt, parent_operation_id=self.result.operation_id)

    def for_check(self) -> FinishedTask:
        """Return the same task for one check, whose model calls are counted apart."""
        return replace(self, auxiliary=self.auxiliary.separate())


def _step_messages(step: AfterStep) -> list[Message]:
    calls, results = step.tools_calling, step.tools_result
    if not calls and not step.content:
        return []
    return [
        Message(role="assistant", content=step.content, tool_calls=list(calls)),
        *(Message(role="tool", content=result.content, tool_call_id=result.tool_call_id) for result in results),
    ]
