"""Random runs of agents with a policy, and what the policy decided in them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio

from hookline import (
    AfterToolCall,
    Agent,
    Approve,
    Ask,
    Deny,
    Hooks,
    Reject,
    Respond,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.calls import RequestCall
from hookline.registry import Backtest
from hookline.runtime import OperationResult
from hookline.signals import HookExecution, hook_executed
from hookline.store import SqlStore

Verdicts = dict[tuple[str, str], tuple[str, str]]
"""What was decided, with the reason, by operation and tool call."""

DECIDED = {"continued": "changed", "": "passed"}
MODULE = "tests.registry.past_runs"


def policy(*, seed: int) -> Callable[..., Any]:
    """Decide by the arguments, by what came before, and by all else that a call says."""
    seen: list[str] = []

    def judge(call: ToolCall, result: ToolResult | None = None) -> Any:
        if call.tool_call_id not in seen:  # a call that a person has approved is judged again
            seen.append(call.tool_call_id)
        amount = call.args.get("amount", 0)
        where = f"{len(seen)} {call.call_index} {call.step_index} {call.agent_id} {call.user_id} {amount}"
        number = (amount * 31 + len(seen) * 7 + call.call_index + seed) % 11
        if result is not None:
            where += f" {result.content} {result.success} {result.error_type}"
            return {
                0: Deny(where),
                1: ToolResult(content=where),
            }.get(number)
        if number == 4:
            raise ValueError(where)
        return {0: Deny(where), 1: Ask(where)}.get(number)

    return judge


def steering(*, seed: int) -> Callable[..., Any]:
    """Decide as `policy` does, and also change and answer calls."""
    judge = policy(seed=seed)

    async def decide(call: ToolCall) -> Any:
        number = (call.args.get("amount", 0) + seed) % 5
        if number == 0:
            return call.with_args(amount=1)
        return Respond("instead") if number == 1 else judge(call)

    return decide


@tool
async def pay(amount: int) -> str:
    """Pay."""
    if amount % 9 == 0:
        raise RuntimeError(f"no {amount}")
    return f"paid {amount}"


@tool(needs_approval=lambda amount: amount % 8 == 0)
async def refund(amount: int) -> ToolResult:
    """Refund."""
    return ToolResult(content=f"refunded {amount}", success=amount % 6 != 0)


async def run_random_agent(
    store: SqlStore, chance: random.Random, hooks: Hooks, operation_id: str, *, calls: int, **options: Any
) -> int:
    """Run an agent that makes random calls, with a person who decides at random; returns how many calls it made."""
    turns: list[Any] = []
    made = 0
    while made < calls:
        count = min(chance.choice((1, 1, 2, 3)), calls - made)
        names = chance.choices(("pay", "refund", "unknown"), (5, 5, 1), k=count)
        turns.append([ToolRequest(name, {"amount": chance.randrange(60)}) for name in names])
        made += count
    turns.append("done")
    agent = Agent(id="clerk", model=ScriptedModel(turns), tools=[pay, refund], max_steps=1000)
    options = {"store": store, "hooks": [hooks]} | options
    result: OperationResult = await exec_agent(agent, "go", operation_id=operation_id, user_id="ann", **options)
    options.pop("tenant_id", None)
    while result.reason == "waiting_for_human":
        answers = [
            chance.choice(
                (
                    Approve(each.tool_call_id),
                    Approve(each.tool_call_id),
                    Reject(each.tool_call_id, "no", and_continue=True),
                )
            )
            for each in result.pending
        ]
        result = await resume_agent(agent, operation_id, answers, **options)
    return made


class LiveVerdicts:
    """Notes what a hook decides about each call when it first judges it.

    Args:
        hook_id: The hook.
    """

    def __init__(self, hook_id: str) -> None:
        self.found: Verdicts = {}
        self._hook_id = hook_id

    def __call__(self, sender: object, execution: HookExecution) -> None:
        """Take the record of an execution."""
        if execution.hook_id != self._hook_id:
            return
        decided = DECIDED.get(execution.decision, execution.decision)
        if execution.error is not None and execution.reason.startswith("the hook failed"):
            decided = "failed"
        self.found.setdefault((execution.operation_id, execution.tool_call_id or ""), (decided, execution.reason))

    def __enter__(self) -> LiveVerdicts:
        hook_executed.connect(self)
        return self

    def __exit__(self, *error: object) -> None:
        hook_executed.disconnect(self)


def verdicts_in(found: Backtest) -> Verdicts:
    """Return the decisions of a backtest, but for calls that would have passed."""
    kinds = ("denied", "asked", "mocked", "changed", "failed")
    return {
        (each.operation_id, each.tool_call_id): (each.kind, each.reason)
        for each in found.examples
        if each.kind in kinds
    }


CALLS_SEEN: list[ToolCall] = []


def seeing() -> Callable[[ToolCall], None]:
    """Note every call, and add context to it."""

    def note(call: ToolCall) -> None:
        CALLS_SEEN.append(call)
        call.add_context("seen")

    return note


def crashing() -> Callable[[ToolCall], None]:
    """Fail at each call."""

    def crash(call: ToolCall) -> None:
        raise KeyError("a field of another version")

    return crash


def hanging() -> Callable[[ToolCall], Any]:
    """Never come to an end."""

    async def hang(call: ToolCall) -> None:
        await anyio.sleep_forever()

    return hang


def first_of_its_kind() -> Callable[[ToolCall], Deny | None]:
    """Deny all calls of an operation but the first."""
    seen: list[str] = []

    def judge(call: ToolCall) -> Deny | None:
        seen.append(call.operation_id)
        assert set(seen) == {call.operation_id}
        return Deny("again") if len(seen) > 1 else None

    return judge


def wrapping() -> Callable[..., Any]:
    """Pass every call on."""

    async def wrap(call: ToolCall, call_next: Callable[[ToolCall], Any]) -> Any:
        return await call_next(call)

    return wrap


def with_observer(*, id: str) -> Hooks:  # noqa: A002
    """Guard calls, and observe their results."""
    hooks = Hooks(id)
    hooks.guard(ToolCall)(seeing())

    @hooks.on(AfterToolCall)
    def note(event: AfterToolCall) -> None:
        raise AssertionError("an observer has run")

    return hooks


def with_request_hook(*, id: str) -> Hooks:  # noqa: A002
    """Guard calls of tools and requests."""
    hooks = Hooks(id)
    hooks.guard(ToolCall)(seeing())
    hooks.guard(RequestCall)(lambda call: None)
    return hooks
