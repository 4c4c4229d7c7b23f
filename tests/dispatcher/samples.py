"""Events to dispatch, and the few things that many of these tests wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import blinker

from hookline import AfterToolCall, BeforeStep, BeforeToolCall, HookExecution, OnToolCallError
from hookline.signals import hook_executed


def step(operation_id: str = "op", index: int = 0, **common: Any) -> BeforeStep:
    """The smallest event."""
    return BeforeStep(operation_id=operation_id, step_index=index, **common)


def asked(operation_id: str = "op", **changes: Any) -> BeforeToolCall:
    """A tool call that may be mocked."""
    return BeforeToolCall(**{**_tool(operation_id), **changes})


def answered(operation_id: str = "op", **changes: Any) -> AfterToolCall:
    """A tool call that gave a result."""
    return AfterToolCall(**{**_tool(operation_id), "content": "42", "success": True, **changes})


def failed(operation_id: str = "op", **changes: Any) -> OnToolCallError:
    """A tool call that raised."""
    return OnToolCallError(**{**_tool(operation_id), "error": "no", "error_type": "ValueError", **changes})


def _tool(operation_id: str) -> dict[str, Any]:
    return {
        "operation_id": operation_id,
        "toolset": "local",
        "tool_name": "search",
        "args": {"q": "x"},
        "call_index": 1,
        "step_index": 0,
        "tool_call_id": "t1",
    }


async def turns(count: int = 10) -> None:
    """Let everybody else have a few turns."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], object]) -> None:
    """Give up turns until something is so."""
    with anyio.fail_after(5):
        for _ in range(50):
            if condition():
                return
            await anyio.lowlevel.checkpoint()
        while not condition():  # somebody's time must pass, for which turns only keep a processor busy
            await anyio.sleep(0.001)


async def for_ever() -> None:
    """Hang until cancelled."""
    await anyio.sleep_forever()


def keep_busy(seconds: float) -> None:
    """Block as a handler that cannot be interrupted does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@contextlib.contextmanager
def connected(signal: blinker.Signal, receiver: Callable[..., Any], **options: Any) -> Iterator[None]:
    """A receiver that is gone afterwards, whatever happens."""
    signal.connect(receiver, weak=False, **options)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@contextlib.contextmanager
def recorded(sender: object = None) -> Iterator[list[HookExecution]]:
    """Every record sent meanwhile, by one dispatcher or by all."""
    records: list[HookExecution] = []

    def keep(source: object, execution: HookExecution) -> None:
        if sender is None or source is sender:
            records.append(execution)

    with connected(hook_executed, keep):
        yield records


@contextlib.asynccontextmanager
async def soon() -> AsyncIterator[None]:
    """What is inside ends long before anybody loses patience, or the test fails."""
    with anyio.fail_after(4):
        yield
