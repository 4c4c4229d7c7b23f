"""Random runs whose models, runs and sub-agents are judged, and what a policy decided in them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hookline import (
    Agent,
    AgentCall,
    Approve,
    Deny,
    Guide,
    Hooks,
    ModelCall,
    ModelResponse,
    Reject,
    Respond,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
)
from hookline.calls import AgentResult, CompactCall, CompactResult, Message, StepCall, StepResult, SubAgentCall, Usage
from hookline.registry import Backtest
from hookline.runtime import Compaction, OperationResult
from hookline.signals import HookExecution, hook_executed
from hookline.store import SqlStore

from .past_runs import pay, refund

MODULE = "tests.registry.past_conversations"

Decision = tuple[str, int | None, str, str]
"""Operation, step, what was decided, and the reason."""


def describe(call: Any, result: Any) -> str:
    """Say all that a hook sees of a call and its result and that the store keeps."""
    match call:
        case ModelCall():
            seen = [call.step_index, *(f"{_describe(each)}" for each in call.messages)]
        case AgentCall():
            seen = [call.instructions, *(_describe(each) for each in call.input)]
        case SubAgentCall():
            seen = [call.callee_id, call.instruction]
        case CompactCall():
            seen = [call.token_count]
        case StepCall():
            seen = [call.step_index]
        case _:
            seen = [call.tool_name, call.args]
    match result:
        case ModelResponse():
            calls = [(each.tool_name, each.args) for each in result.tool_calls]
            seen += [result.content, calls, result.reasoning, result.usage]
        case AgentResult():
            seen += [result.output, result.reason]
        case StepResult():
            seen += [result.content, result.should_continue]
        case CompactResult():
            seen += [result.summary]
        case _:
            pass
    return f"{call.agent_id} {call.user_id} {call.tenant_id} {call.parent_operation_id} {seen}"


def _describe(message: Message) -> str:
    calls = [(each.tool_name, each.args, each.tool_call_id) for each in message.tool_calls]
    return f"{message.role}:{message.content}:{calls}:{message.tool_call_id}"


def judging(*, seed: int, changes: bool = False, counts: bool = False) -> Callable[..., Any]:
    """Decide by everything that the call says; with `changes`, also answer calls; with `counts`, by what came before."""
    seen: list[str] = []

    def judge(call: Any, result: Any = None) -> Any:
        seen.append(call.operation_id)
        text = f"{len(seen) if counts else 0} {describe(call, result)}"
        number = random.Random(f"{seed} {text}").randrange(8)
        if number == 0:
            return Deny(text[-400:])
        if number == 1:
            raise ValueError(text[-400:])
        if changes and number == 2:
            return Respond(f"answered {len(seen)}")
        return None

    return judge


def together(*, id: str, seed: int) -> Hooks:  # noqa: A002
    """Judge tool calls by what the model was asked before them."""
    hooks = Hooks(id)
    asked: list[str] = []

    @hooks.before(ModelCall)
    def read(call: ModelCall) -> None:
        asked.append(describe(call, None))

    @hooks.guard(ToolCall)
    def judge(call: ToolCall) -> Deny | None:
        text = f"{asked[-1]} {describe(call, None)}"
        return Deny(text[-400:]) if random.Random(f"{seed} {text}").random() < 0.3 else None

    return hooks


def reading(*, field: str, quiet: bool = False) -> Callable[[Any], None]:
    """Use a field of each call."""

    def read(call: Any, result: Any = None) -> None:
        try:
            bool(getattr(call if result is None else result, field))
        except Exception:
            if not quiet:
                raise

    return read


def rewriting() -> Callable[[ModelCall], ModelCall]:
    """Change what a model is asked."""

    def rewrite(call: ModelCall) -> ModelCall:
        return msgspec.structs.replace(call, messages=[*call.messages, Message(role="user", content="more")])

    return rewrite


def guiding(chance: random.Random) -> Hooks:
    """Have models asked again at times."""
    hooks = Hooks("guiding", inherit=True)
    hooks.after(ModelCall)(lambda call, result: Guide(f"again {chance.random()}") if chance.random() < 0.2 else None)
    return hooks


def informing() -> Hooks:
    """Add context to runs."""
    hooks = Hooks("informing", inherit=True)
    hooks.before(AgentCall)(lambda call: call.add_context("It is Monday."))
    return hooks


async def shorten(messages: list[Message]) -> str:
    """Write a summary."""
    return f"{len(messages)} messages"


async def run_random_conversation(
    store: SqlStore,
    chance: random.Random,
    hooks: Sequence[Hooks],
    operation_id: str,
    *,
    steps: int,
    guided: bool = True,
    compacted: bool = True,
) -> int:
    """Run an agent with sub-agents, people, hooks that interfere, summaries and failing models; returns its calls."""
    asked = 0

    def answer(call: ModelCall) -> Any:
        nonlocal asked
        asked += 1
        if asked > steps:
            return "done" if chance.random() < 0.8 else RuntimeError("overloaded")
        names = chance.choices(("pay", "refund", "helper"), (5, 2, 2), k=chance.choice((1, 1, 2)))
        calls = [
            ToolRequest("helper", {"instruction": f"do {chance.randrange(99)}"}, toolset="agent")
            if name == "helper"
            else ToolRequest(name, {"amount": chance.randrange(60)})
            for name in names
        ]
        return ModelResponse(
            content=chance.choice(("", "hm", "let me see")),
            tool_calls=calls,
            reasoning=chance.choice(("", "because")),
            usage=Usage(input_tokens=chance.randrange(90), output_tokens=chance.randrange(9), cost_usd=chance.random()),
        )

    helper = Agent(
        id="helper",
        model=ScriptedModel(lambda call: chance.choice(("helped", "helped twice", RuntimeError("no help")))),
        instructions=chance.choice(("", "Help.")),
    )
    agent = Agent(
        id="clerk",
        model=ScriptedModel(answer),
        tools=[pay, refund],
        sub_agents=[helper],
        instructions=chance.choice(("", "Be kind.")),
        max_steps=chance.choice((5, 1000)),
        compaction=Compaction(max_tokens=60, summarize=shorten, keep_last=2)
        if compacted and chance.random() < 0.4
        else None,
    )
    more = [informing()] if chance.random() < 0.4 else []
    if guided and chance.random() < 0.5:
        more.append(guiding(chance))
    prompt: Any = "go"
    if chance.random() < 0.4:
        prompt = [Message(role="user", content="hi"), Message(role="assistant", content="hello"), *_one("go")]
    options: dict[str, Any] = {"store": store, "hooks": [*more, *hooks]}
    result: OperationResult = await exec_agent(
        agent, prompt, operation_id=operation_id, user_id="ann", tenant_id="acme", **options
    )
    while result.reason == "waiting_for_human":
        answers = [
            Approve(each.tool_call_id)
            if chance.random() < 0.7
            else Reject(each.tool_call_id, "no", and_continue=chance.random() < 0.9)
            for each in result.pending
        ]
        result = await resume_agent(agent, operation_id, answers, **options)
    return asked


def _one(content: str) -> list[Message]:
    return [Message(role="user", content=content)]


class LiveDecisions:
    """Notes what a hook decides about each call of a class, and how many it judges.

    Args:
        hook_id: The hook.
        call: The class of the calls.
    """

    def __init__(self, hook_id: str, call: str) -> None:
        self.found: Counter[Decision] = Counter()
        self._judged: list[str] = []
        self._hook_id, self._call = hook_id, call

    @property
    def calls(self) -> int:
        """How many calls it has judged; a run is one call, also if it was resumed."""
        return len(self._judged)

    def __call__(self, sender: object, execution: HookExecution) -> None:
        """Take the record of an execution."""
        if execution.hook_id != self._hook_id or execution.hook_type != self._call:
            return
        if self._call == "AgentCall" and execution.operation_id in self._judged:
            return  # a run that is resumed is judged again
        self._judged.append(execution.operation_id)
        decided = {"": "passed", "continued": "changed"}.get(execution.decision, execution.decision)
        if execution.error is not None and execution.reason.startswith("the hook failed"):
            decided = "failed"
        if decided != "passed":
            self.found[execution.operation_id, execution.step_index, decided, execution.reason] += 1

    def __enter__(self) -> LiveDecisions:
        hook_executed.connect(self)
        return self

    def __exit__(self, *error: object) -> None:
        hook_executed.disconnect(self)


def decisions_in(found: Backtest) -> Counter[Decision]:
    """Return the decisions of a backtest, but for calls that would have passed."""
    kinds = ("denied", "asked", "mocked", "changed", "failed")
    return Counter(
        (each.operation_id, each.step_index, each.kind, each.reason) for each in found.examples if each.kind in kinds
    )
