"""`dispatch_before_tool_call` against awaiting the same handlers in a bare loop."""

from __future__ import annotations

import asyncio
import math

from benchmarks.harness import Row, block, interleave, statement
from hookline import BeforeToolCall, HookDispatcher, Hooks

FIELDS = {
    "toolset": "local",
    "tool_name": "search",
    "args": {"query": "hooks"},
    "call_index": 1,
    "step_index": 0,
    "tool_call_id": "call_1",
}
TASK = "create_task + await"
ASK = "await dispatcher.dispatch_before_tool_call(event)"
LOOP = "await bare_loop(handlers, event)"
GOALS = {0: 1.8, 1: 2.5, 5: 1.8}


async def bench(rounds: int) -> list[Row]:
    async with HookDispatcher() as dispatcher:
        return [
            *await asked(dispatcher, rounds),
            *await asked_on_suspension(dispatcher, rounds),
        ]


async def asked(dispatcher: HookDispatcher, rounds: int) -> list[Row]:
    cases = {TASK: statement("await create_task(nothing())", create_task=asyncio.create_task, nothing=nothing)}
    for count in GOALS:
        handlers = [make_async() for _ in range(count)]
        plain = [make_plain() for _ in range(count)]
        for name, timeout, given in (
            ("timeout=inf", math.inf, handlers),
            ("default timeout", None, handlers),
            ("plain handlers", None, plain),
        ):
            event = hooked(dispatcher, f"{name}, {count}", given, timeout)
            cases[f"special dispatch [hooks={count}, {name}]"] = statement(ASK, dispatcher=dispatcher, event=event)
        fresh = {"dispatcher": dispatcher, "make": BeforeToolCall}
        fresh["fields"] = {**FIELDS, "operation_id": f"timeout=inf, {count}"}
        cases[f"bare awaited loop [hooks={count}]"] = statement(
            LOOP, bare_loop=bare_loop, handlers=handlers, event=event
        )
        if count:
            cases[f"special dispatch [hooks={count}, fresh event]"] = block(
                "event = make(**fields)\nawait dispatcher.dispatch_before_tool_call(event)", **fresh
            )
            cases[f"bare awaited loop [hooks={count}, fresh event]"] = block(
                f"event = make(**fields)\n{LOOP}", bare_loop=bare_loop, handlers=handlers, **fresh
            )
    samples = await interleave(cases, rounds)
    rows = [samples.row(TASK)]
    for count, goal in GOALS.items():
        bare = f"bare awaited loop [hooks={count}]"
        case = f"special dispatch [hooks={count}"
        rows += [
            samples.row(bare),
            samples.row(f"{case}, timeout=inf]", bare, at_most=goal),
            samples.row(f"{case}, default timeout]", bare),
            samples.row(f"{case}, plain handlers]", bare),
        ]
        if count:
            own = f"its own cost [hooks={count}, default timeout]"
            samples.derive(own, lambda ours, limit: ours - limit, f"{case}, default timeout]", bare)
            rows.append(samples.row(own, TASK, at_most=0.4))
            rows.append(samples.row(f"{case}, fresh event]", f"bare awaited loop [hooks={count}, fresh event]"))
    return rows


async def asked_on_suspension(dispatcher: HookDispatcher, rounds: int) -> list[Row]:
    """Handlers that suspend once, so that a default timeout needs its timer."""
    cases, rows = {}, []
    for count in (1, 5):
        handlers = [make_async(asyncio.sleep) for _ in range(count)]
        endless = hooked(dispatcher, f"suspends endless {count}", handlers, math.inf)
        default = hooked(dispatcher, f"suspends {count}", handlers, None)
        cases |= {
            f"bare awaited loop [hooks={count}, suspends]": statement(
                LOOP, bare_loop=bare_loop, handlers=handlers, event=default
            ),
            f"special dispatch [hooks={count}, suspends, timeout=inf]": statement(
                ASK, dispatcher=dispatcher, event=endless
            ),
            f"special dispatch [hooks={count}, suspends, default timeout]": statement(
                ASK, dispatcher=dispatcher, event=default
            ),
        }
    samples = await interleave(cases, rounds)
    for count in (1, 5):
        bare = f"bare awaited loop [hooks={count}, suspends]"
        rows += [
            samples.row(bare),
            samples.row(f"special dispatch [hooks={count}, suspends, timeout=inf]", bare),
            samples.row(f"special dispatch [hooks={count}, suspends, default timeout]", bare),
        ]
    return rows


def hooked(dispatcher: HookDispatcher, operation_id: str, handlers, timeout: float | None) -> BeforeToolCall:
    """An event for an operation of its own, which has these hooks."""
    bundle = Hooks("bundle")
    for handler in handlers:
        bundle.on(BeforeToolCall, timeout=timeout)(handler)
    dispatcher.register(operation_id, [bundle])
    return BeforeToolCall(operation_id=operation_id, **FIELDS)


async def bare_loop(handlers: list, event: object) -> None:
    for handler in handlers:
        await handler(event)


async def nothing() -> None:
    pass


def make_async(sleep=None):
    async def handler(event: object) -> None:
        pass

    async def suspending(event: object) -> None:
        await sleep(0)

    return suspending if sleep else handler


def make_plain():
    def handler(event: object) -> None:
        pass

    return handler
