"""A process counts how the questions of its remote hooks ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hookline import Hooks, ToolCall
from hookline.bus import MemoryBus, decision_figures, remote, serve
from tests.registry.scenes import pay

pytestmark = pytest.mark.anyio

SECRET = "s" * 24


def passing() -> Hooks:
    hooks = Hooks("guard")
    hooks.guard(ToolCall)(lambda call: None)
    return hooks


async def answer_nothing(question: bytes) -> bytes:
    await asyncio.sleep(0)
    return b"{}"


async def hang(question: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


async def answer_it(bus: MemoryBus) -> None:
    async with serve(bus, passing()):
        await pay([remote("guard", bus=bus, deadline=60.0)])


async def ask_nobody(bus: MemoryBus) -> None:
    await pay([remote("guard", bus=bus)])


async def answer_without_a_signature(bus: MemoryBus) -> None:
    async with bus.answer("guard", answer_nothing):
        await pay([remote("guard", bus=bus, deadline=60.0, secret=SECRET)])


async def answer_nonsense(bus: MemoryBus) -> None:
    async with bus.answer("guard", answer_nothing):
        await pay([remote("guard", bus=bus, deadline=60.0)])


async def answer_never(bus: MemoryBus) -> None:
    async with bus.answer("guard", hang):
        await pay([remote("guard", bus=bus, deadline=0.05)])


@pytest.mark.parametrize(
    ("scene", "outcome"),
    [
        (answer_it, "answered"),
        (ask_nobody, "nobody"),
        (answer_without_a_signature, "unsigned"),
        (answer_nonsense, "failed"),
        (answer_never, "late"),
    ],
)
async def test_each_question_is_counted_by_how_it_ended(
    scene: Callable[[MemoryBus], Awaitable[None]], outcome: Any
) -> None:
    bus = MemoryBus()

    await scene(bus)

    figures = decision_figures(bus)["guard"]
    assert (figures.asked, figures.count(outcome), figures.pending) == (1, 1, 0)
    assert figures.durations[outcome].sum > 0


async def test_questions_under_way_are_counted_and_one_of_a_cancelled_run_is_no_failure() -> None:
    bus, asked = MemoryBus(), asyncio.Event()

    async def note(question: bytes) -> bytes:
        asked.set()
        return await hang(question)

    async with bus.answer("guard", note):
        running = asyncio.create_task(pay([remote("guard", bus=bus, deadline=60.0)]))
        await asked.wait()
        under_way = decision_figures(bus)["guard"].pending
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    figures = decision_figures(bus)["guard"]
    assert (under_way, figures.pending, figures.count("cancelled"), figures.count("failed")) == (1, 0, 1, 0)


async def test_a_bus_that_was_never_asked_has_no_figures() -> None:
    assert decision_figures(MemoryBus()) == {}
