"""Async handlers on a lane: their whole cost, and what a slow one does to the agent and to its neighbours."""

from __future__ import annotations

import asyncio
import statistics
from time import perf_counter, perf_counter_ns

from benchmarks.harness import Row, block, interleave
from hookline import AfterStep, BeforeStep, HookDispatcher, Hooks

IN_LINE = """
for event in events: await handler(event)
await sleep(0)
"""
ON_A_LANE = """
due = tally.seen + len(events)
for event in events: dispatch(event)
while tally.seen < due: await sleep(0)
"""
TASK_PER_EVENT = """
due = tally.seen + len(events)
for event in events: create_task(handler(event))
while tally.seen < due: await sleep(0)
"""
NOTHING_HOOKED = """
for event in events: dispatch(event)
await sleep(0)
"""


class Tally:
    """Counts deliveries, so that every case is timed until the last one."""

    seen = 0


async def bench(rounds: int) -> list[Row]:
    return [*await bursts(rounds), *await slow_handler(rounds)]


async def bursts(rounds: int) -> list[Row]:
    rows = []
    tally = Tally()

    async def quick(event: object) -> None:
        tally.seen += 1

    async def suspends(event: object) -> None:
        await asyncio.sleep(0)
        tally.seen += 1

    async with HookDispatcher() as dispatcher:
        for name, handler in (("", quick), (", suspends once", suspends)):
            operation_id = f"op{name}"
            bundle = Hooks("bundle")
            bundle.on(BeforeStep)(handler)
            dispatcher.register(operation_id, [bundle])
            for burst in (1, 6):
                events = [BeforeStep(operation_id=operation_id, step_index=index) for index in range(burst)]
                unheard = [unheard_event(operation_id) for _ in range(burst)]
                names = {
                    "dispatch": dispatcher.dispatch,
                    "create_task": asyncio.create_task,
                    "sleep": asyncio.sleep,
                    "tally": tally,
                    "handler": handler,
                }
                axis = f"[burst={burst}{name}]"
                in_line, lane, task = f"in line {axis}", f"on a lane {axis}", f"task per event {axis}"
                nobody = f"on a lane [hooks=0, burst={burst}]"
                samples = await interleave(
                    {
                        in_line: block(IN_LINE, events=events, **names),
                        lane: block(ON_A_LANE, events=events, **names),
                        task: block(TASK_PER_EVENT, events=events, **names),
                        nobody: block(NOTHING_HOOKED, events=unheard, **names),
                    },
                    rounds,
                )
                goal = burst == 6 and not name
                rows += [] if name else [samples.row(nobody, in_line)]
                rows += [
                    samples.row(in_line),
                    samples.row(lane, in_line, at_most={1: 2.6, 6: 3.1}[burst] if not name else None),
                    samples.row(task, lane, at_least=1.6 if goal else None),
                ]
    return rows


def unheard_event(operation_id: str) -> BeforeStep:
    """An event of an operation that has no hooks."""
    return BeforeStep(operation_id=f"{operation_id} without hooks", step_index=0)


STEPS, STEP_SECONDS = 20, 0.005


async def slow_handler(rounds: int) -> list[Row]:
    """One handler sleeps a second; an agent makes 20 steps of 5 ms next to it."""
    delays: list[float] = []
    disorder = lost = 0

    async def ideal(times: int) -> float:
        started = perf_counter_ns()
        for _ in range(STEPS):
            await asyncio.sleep(STEP_SECONDS)
        return perf_counter_ns() - started

    async def observed(times: int) -> float:
        nonlocal disorder, lost
        order: list[int] = []
        slow, quick = Hooks("slow"), Hooks("quick")

        @slow.on(BeforeStep)
        async def sleeps_once(event: BeforeStep) -> None:
            if not event.step_index:
                await asyncio.sleep(1.0)

        @slow.on(AfterStep)
        async def in_order(event: AfterStep) -> None:
            order.append(event.step_index)

        @quick.on(BeforeStep)
        async def arrives(event: BeforeStep) -> None:
            delays.append((perf_counter() - sent) * 1e3)

        async with HookDispatcher() as dispatcher:
            dispatcher.register("op", [slow, quick])
            started = perf_counter_ns()
            for index in range(STEPS):
                sent = perf_counter()
                dispatcher.dispatch(BeforeStep(operation_id="op", step_index=index))
                await asyncio.sleep(STEP_SECONDS)
                dispatcher.dispatch(after_step(index))
            taken = perf_counter_ns() - started
            report = await dispatcher.unregister("op")
        disorder += order != sorted(order) or len(order) != STEPS
        lost += 3 * STEPS - report.delivered
        return taken

    limit, case = "agent loop without hooks", "agent loop [a handler sleeps 1 s]"
    samples = await interleave({limit: ideal, case: observed}, rounds, times=1)
    return [
        samples.row(limit),
        samples.row(case, limit, at_most=1.05),
        Row(case="delay of another bundle's handler, median", value=statistics.median(delays), unit="ms", at_most=5.0),
        Row(case="runs with events out of order", value=disorder, unit="runs", at_most=0),
        Row(case="events lost within the drain", value=lost, unit="events", at_most=0),
    ]


def after_step(index: int) -> AfterStep:
    return AfterStep(
        operation_id="op",
        step_index=index,
        step_type="call_llm",
        content="",
        reasoning="",
        tools_calling=[],
        tools_result=[],
        should_continue=True,
        execution_time_ms=0.0,
        elapsed_ms=0.0,
        step_cost_usd=0.0,
        total_cost_usd=0.0,
        total_input_tokens=0,
        total_output_tokens=0,
        total_steps=index + 1,
        total_tool_calls=0,
    )
