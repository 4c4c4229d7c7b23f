"""A call, a terminal, and hooks of each kind; and the few things that many of these tests wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from hookline.calls import (
    AgentCall,
    AgentResult,
    Call,
    CompactCall,
    CompactResult,
    MemoryCall,
    MemoryResult,
    Message,
    ModelCall,
    ModelResponse,
    RequestCall,
    RequestResult,
    StepCall,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.interceptors import Chain, Interceptor, Outcome
from hookline.signals import HookExecution, hook_executed

CALLS: list[tuple[Call, Any]] = [
    (AgentCall(input=[Message(role="user", content="hi")]), AgentResult(output="done")),
    (StepCall(step_index=0), StepResult(should_continue=False)),
    (ModelCall(messages=[]), ModelResponse(content="done")),
    (ToolCall(tool_name="search"), ToolResult(content="done")),
    (CompactCall(messages=[], token_count=9), CompactResult(summary="done")),
    (SubAgentCall(callee_id="helper", instruction="help"), AgentResult(output="done")),
    (RequestCall(method="GET", path="/"), RequestResult(status=200)),
    (MemoryCall(key="k", value=[1]), MemoryResult(stored=True)),
]
"""One call of each class, and a result for it."""

SECOND = 1_000_000_000
"""In nanoseconds, by which a busy machine may be late."""

replace = msgspec.structs.replace


def tool_call(**changes: Any) -> ToolCall:
    """A tool call that any hook may lead."""
    return ToolCall(
        **{"operation_id": "op", "tool_name": "search", "args": {"q": "x"}, "tool_call_id": "t1", **changes}
    )


def with_args(call: ToolCall, **args: Any) -> ToolCall:
    """The call with other arguments."""
    return replace(call, args={**call.args, **args})


def hook(kind: str, handler: Any, **options: Any) -> Interceptor:
    """The plain record of a hook, named after its kind."""
    return Interceptor(**{"id": kind, "call": ToolCall, "kind": kind, "handler": handler, **options})


def before(handler: Any, **options: Any) -> Interceptor:
    return hook("before", handler, **options)


def guard(handler: Any, **options: Any) -> Interceptor:
    return hook("guard", handler, **options)


def after(handler: Any, **options: Any) -> Interceptor:
    return hook("after", handler, **options)


def around(handler: Any, **options: Any) -> Interceptor:
    return hook("around", handler, **options)


class Tool:
    """What a chain surrounds: it keeps what it was called with."""

    def __init__(self, answer: Any = "result", *, error: BaseException | None = None, seconds: float = 0.0) -> None:
        self.answer = ToolResult(content=answer) if isinstance(answer, str) else answer
        self.error = error
        self.seconds = seconds
        self.calls: list[Any] = []

    async def __call__(self, call: Any) -> Any:
        self.calls.append(call)
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.answer


async def run(
    hooks: Iterable[Any], call: Any = None, terminal: Callable[[Any], Awaitable[Any]] | None = None, **options: Any
) -> Outcome:
    """Lead one call through a new chain, without patience for one that hangs."""
    return await lead(Chain(hooks, **options), call, terminal)


async def lead(chain: Chain, call: Any = None, terminal: Callable[[Any], Awaitable[Any]] | None = None) -> Outcome:
    """Lead one call through a chain, without patience for one that hangs."""
    with anyio.fail_after(5):
        return await chain.run(tool_call() if call is None else call, Tool() if terminal is None else terminal)


def statuses(outcome: Outcome) -> list[tuple[str, str]]:
    """Who ran, and how it ended."""
    return [(execution.hook_id, execution.status) for execution in outcome.executions]


async def turns(count: int = 10) -> None:
    """Let everybody else have a few turns."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], object]) -> None:
    """Give up turns until something is so."""
    with anyio.fail_after(5):
        while not condition():
            await anyio.lowlevel.checkpoint()


def keep_busy(seconds: float) -> None:
    """Block as a handler that cannot be interrupted does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@contextlib.contextmanager
def recorded(sender: Any = None) -> Iterator[list[HookExecution]]:
    """Every record that is sent meanwhile, by one chain or by all."""
    records: list[HookExecution] = []

    def keep(source: object, execution: HookExecution) -> None:
        records.append(execution)

    if sender is None:
        hook_executed.connect(keep, weak=False)
    else:
        hook_executed.connect(keep, sender=sender, weak=False)
    try:
        yield records
    finally:
        hook_executed.disconnect(keep)
