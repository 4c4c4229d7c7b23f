"""From one to a million live operations: time, memory, and what is left when they are gone.

Memory is what `tracemalloc` counts, with the operation ids made before it starts: the dispatcher's own share.
"""

from __future__ import annotations

import gc
import random
import statistics
import tracemalloc
import weakref

from benchmarks.harness import Row, block, interleave, statement
from hookline import AfterStep, BeforeStep, Hook, HookDispatcher, Hooks, OnComplete

MILLION = 1_000_000
GOALS = {"dispatch, hot operation": 1.1, "dispatch, random operation": None, "register + unregister": None}
SIZES = (1, 1_000, 100_000, MILLION)
CLOSED = 100_000
FILLS = (100_000, 120_000, 170_000, 180_000)
"""Numbers of operations at which hash tables are full to different degrees: one alone would be an accident."""


async def bench(rounds: int) -> list[Row]:
    return [*await live_operations(rounds), *await residue()]


async def live_operations(rounds: int) -> list[Row]:
    ids = [f"op_{index:032x}" for index in range(MILLION)]
    bundle = Hooks("shared")
    for event in (BeforeStep, AfterStep, OnComplete):
        bundle.on(event)(ignore)
    dispatchers: dict[int, HookDispatcher] = {}
    for size in SIZES:
        dispatcher = dispatchers[size] = HookDispatcher()
        await dispatcher.__aenter__()
        for operation_id in ids[:size]:
            dispatcher.register(operation_id, [bundle])
    cases = {}
    for size, dispatcher in dispatchers.items():
        hot = BeforeStep(operation_id=ids[0], step_index=0)
        anywhere = [BeforeStep(operation_id=random.choice(ids[:size]), step_index=0) for _ in range(10_000)]
        names = {"dispatch": dispatcher.dispatch, "register": dispatcher.register, "hooks": [bundle]}
        cases[f"dispatch, hot operation [live={size:,}]"] = statement("dispatch(event)", event=hot, **names)
        cases[f"dispatch, random operation [live={size:,}]"] = statement(
            "dispatch(next(events))", events=forever(anywhere), **names
        )
        cases[f"register + unregister [live={size:,}]"] = block(
            "register('new', hooks)\nawait unregister('new')", unregister=dispatcher.unregister, **names
        )
    samples = await interleave(cases, rounds)
    rows = []
    for what, goal in GOALS.items():
        limit = f"{what} [live=1,000]"
        for size in SIZES:
            name = f"{what} [live={size:,}]"
            rows.append(samples.row(name, limit, at_most=goal if size == MILLION else None))
    for dispatcher in dispatchers.values():
        await dispatcher.__aexit__(None, None, None)
    per_operation = [await bytes_per_operation(ids[:size], bundle) for size in FILLS]
    case = f"bytes per live operation [hooks=3, shared], mean of {len(FILLS)} sizes"
    rows.append(Row(case=case, value=round(statistics.mean(per_operation), 1), unit="B", at_most=75))
    return rows


async def bytes_per_operation(ids: list[str], bundle: Hooks) -> float:
    hooks = [bundle]
    async with HookDispatcher() as dispatcher:
        gc.collect()
        tracemalloc.start()
        for operation_id in ids:
            dispatcher.register(operation_id, hooks)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return taken / len(ids)


async def residue() -> list[Row]:
    """All of them live at once, each with a closure of its own, each dispatched to, all closed again."""
    ids = [f"op_{index:032x}" for index in range(CLOSED)]
    alive = 0

    def died(_: object) -> None:
        nonlocal alive
        alive -= 1

    async with HookDispatcher() as dispatcher:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        closures = []
        for operation_id in ids:
            handler = closure_over(operation_id)
            closures.append(weakref.ref(handler, died))
            alive += 1
            dispatcher.register(operation_id, [Hook(id="own", type=BeforeStep, handler=handler)])
            dispatcher.dispatch(BeforeStep(operation_id=operation_id, step_index=0))
        del handler
        for operation_id in ids:
            await dispatcher.unregister(operation_id)
        gc.collect()
        survivors = sum(reference() is not None for reference in closures)
        assert survivors == alive
        del closures
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        entries = len(dispatcher.operations) + sum(dispatcher.has_hooks(operation_id) for operation_id in ids)
    axis = f"[closed={CLOSED:,}]"
    return [
        Row(case=f"entries left {axis}", value=entries, unit="", at_most=0),
        Row(case=f"closures still alive {axis}", value=survivors, unit="", at_most=0),
        Row(case=f"memory left {axis}", value=round(left / 1e6, 2), unit="MB", at_most=2),
    ]


def closure_over(operation_id: str):
    captured = [operation_id]

    def handler(event: object) -> None:
        captured.append(captured[0])

    return handler


def forever(events):
    while True:
        yield from events


def ignore(event: object) -> None:
    pass
