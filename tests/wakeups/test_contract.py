"""What every kind of wake-ups keeps: who waits for a topic is woken, here and in other processes, and nobody else is hurt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.errors import HookUsageError
from hookline.wakeups import FileWakeups, PollingWakeups, PostgresWakeups, Wakeups
from tests.tables import for_each

from .media import File, Medium, Polling, Postgres

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["polling", "postgresql", "file"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Medium:
    if request.param == "postgresql":
        return Postgres(request.getfixturevalue("new_database_url")("postgresql"))
    return File(tmp_path) if request.param == "file" else Polling()


@asynccontextmanager
async def opened(medium: Medium) -> AsyncIterator[Wakeups]:
    wakeups = medium.make()
    try:
        yield wakeups
    finally:
        await wakeups.aclose()


async def heard(event: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await event.wait()
    event.clear()


async def test_a_listener_of_this_process_is_called_before_wake_returns(medium: Medium) -> None:
    calls: list[str] = []
    async with opened(medium) as wakeups:
        async with wakeups.woken("work", lambda: calls.append("work")):
            wakeups.wake("work")
            assert calls[:1] == ["work"]
        calls.clear()
        wakeups.wake("work")
    assert calls == []


async def test_listeners_of_other_topics_are_left_alone_in_this_process(medium: Medium) -> None:
    calls: list[str] = []
    async with (
        opened(medium) as wakeups,
        wakeups.woken("work", lambda: calls.append("work")),
        wakeups.woken("other", lambda: calls.append("other")),
        wakeups.woken("work", lambda: calls.append("work too")),
    ):
        calls.clear()
        wakeups.wake("work")
        assert calls == ["work", "work too"]


async def test_a_listener_of_another_process_is_woken_each_time(medium: Medium) -> None:
    woken = asyncio.Event()
    async with opened(medium) as one, opened(medium) as other, other.woken("work", woken.set):
        for _ in range(5):
            medium.commit()
            one.wake("work")
            await heard(woken)


async def test_a_process_that_only_wakes_needs_no_listener_of_its_own(medium: Medium) -> None:
    woken = asyncio.Event()
    async with opened(medium) as other, other.woken("work", woken.set):
        for _ in range(3):
            async with opened(medium) as one:
                medium.commit()
                one.wake("work")  # and it is sent before the end
            await heard(woken)


async def test_a_listener_that_fails_keeps_nobody_from_being_called(medium: Medium, caplog: Any) -> None:
    def fail() -> None:
        raise ValueError("my own fault")

    here, there = asyncio.Event(), asyncio.Event()
    async with opened(medium) as one, opened(medium) as other, AsyncExitStack() as stack:
        for wakeups, event in ((one, here), (other, there)):
            await stack.enter_async_context(wakeups.woken("work", fail))
            await stack.enter_async_context(wakeups.woken("work", event.set))
        medium.commit()
        one.wake("work")
        await heard(here)
        await heard(there)
    assert "my own fault" in caplog.text


async def test_closing_calls_the_listeners_once_more_and_wakes_nobody_later(medium: Medium) -> None:
    calls: list[str] = []
    async with opened(medium) as wakeups, wakeups.woken("work", lambda: calls.append("work")):
        await wakeups.aclose()
        assert calls[-1:] == ["work"]
        await wakeups.aclose()
        wakeups.wake("work")  # of a commit that was under way; it must not raise


async def test_closing_while_others_wake_ends(medium: Medium) -> None:
    async with asyncio.timeout(20), opened(medium) as one, opened(medium) as other, other.woken("work", lambda: None):

        async def wake_on() -> None:
            for _ in range(200):
                one.wake("work")
                await asyncio.sleep(0)

        waking = asyncio.create_task(wake_on())
        await asyncio.sleep(0)
        await one.aclose()
        await waking


@for_each("topic", ["", "Work", "a b", "a'b", "a,b", "*", "x" * 64, "ä", ".work", 7, None])
async def test_what_is_no_topic_is_refused(medium: Medium, topic: Any) -> None:
    async with opened(medium) as wakeups:
        with pytest.raises(HookUsageError, match="topic"):
            wakeups.wake(topic)
        with pytest.raises(HookUsageError, match="topic"):
            async with wakeups.woken(topic, lambda: None):
                pass


async def test_what_is_no_function_is_refused(medium: Medium) -> None:
    async with opened(medium) as wakeups:
        with pytest.raises(HookUsageError, match="function"):
            async with wakeups.woken("work", 7):  # type: ignore[arg-type]
                pass


@for_each(
    "make, complaint",
    [
        (lambda: PollingWakeups(0), "seconds"),
        (lambda: PollingWakeups(float("inf")), "seconds"),
        (lambda: PollingWakeups(True), "seconds"),
        (lambda: FileWakeups("x", net=(30, 10)), "shorter"),
        (lambda: FileWakeups("x", net=10), "net"),  # type: ignore[arg-type]
        (lambda: FileWakeups("x", net=(0, 1)), "net"),
        (lambda: PostgresWakeups("sqlite:///x"), "URL"),
        (lambda: PostgresWakeups(7), "URL"),  # type: ignore[arg-type]
        (lambda: PostgresWakeups("postgresql://h/d", poll_seconds=-1), "poll_seconds"),
    ],
)
async def test_wrong_arguments_are_refused(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(HookUsageError, match=complaint):
        make()


STEPS = st.lists(st.tuples(st.sampled_from(["enter", "leave", "wake"]), st.sampled_from(["a", "b", "c"])), max_size=30)


@given(STEPS)
@settings(max_examples=60)
def test_exactly_those_who_listen_to_a_topic_are_called(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        wakeups, calls = PollingWakeups(3600), list[tuple[str, int]]()
        inside: dict[str, list[tuple[int, AsyncExitStack]]] = {"a": [], "b": [], "c": []}
        for nth, (step, topic) in enumerate(steps):
            if step == "enter":
                stack = AsyncExitStack()
                await stack.enter_async_context(
                    wakeups.woken(topic, lambda topic=topic, nth=nth: calls.append((topic, nth)))  # type: ignore[misc]
                )
                inside[topic].append((nth, stack))
            elif step == "leave" and inside[topic]:
                await inside[topic].pop(0)[1].aclose()
            elif step == "wake":
                calls.clear()
                wakeups.wake(topic)
                assert calls == [(topic, nth) for nth, _ in inside[topic]]
        for _, stack in [each for several in inside.values() for each in several]:
            await stack.aclose()

    asyncio.run(run())
