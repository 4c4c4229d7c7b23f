"""Laws of a bus, on random programs: nothing is lost, the order holds, repeats have a known id, deadlines end waiting."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.bus import CommittedEvents, MemoryBus, NobodyServesError
from hookline.evals.bus_contract import HeardCommits, SeenValues, commit_of, echo, hang

Step = tuple[Literal["tell", "again", "kill", "join"], int]

STEPS = st.lists(
    st.tuples(st.sampled_from(["tell", "tell", "tell", "again", "kill", "join"]), st.integers(0, 2)), max_size=40
)


class Hearers:
    """Processes that hear under one name, of which some are killed and some fail.

    Args:
        bus: A bus of the test.
        failing: How often a commit fails before it is heard.
    """

    def __init__(self, bus: MemoryBus, failing: dict[str, int]) -> None:
        self.ledger = HeardCommits()
        self._bus, self._failing = bus, failing
        self._stack = AsyncExitStack()
        self._living: list[MemoryBus] = []

    async def hear(self, commit: CommittedEvents) -> None:
        if self._failing.get(commit.id, 0) > 0:
            self._failing[commit.id] -= 1
            raise ValueError("not now")
        await self.ledger.note(commit)

    async def join(self) -> None:
        peer = self._bus.peer()
        self._living.append(peer)
        await self._stack.enter_async_context(peer.hear("observer", self.hear))

    def kill(self) -> None:
        if self._living:
            self._living.pop(0).kill()

    async def leave(self) -> None:
        await self._stack.aclose()


@given(steps=STEPS, failing=st.sets(st.integers(1, 12), max_size=3))
def test_commits_are_heard_in_order_and_none_is_lost(steps: list[Step], failing: set[int]) -> None:
    async def play() -> None:
        bus, told = MemoryBus(), [0, 0, 0]
        hearers = Hearers(bus, {f"op{number % 3}:{number}": 1 for number in failing})
        for what, which in steps:
            if what == "tell":
                told[which] += 1
                await bus.tell(commit_of(f"op{which}", told[which]))
            elif what == "again" and told[which]:
                await bus.tell(commit_of(f"op{which}", told[which]))
            elif what == "kill":
                hearers.kill()
            elif what == "join":
                await hearers.join()
            await asyncio.sleep(0)
        await hearers.join()
        expected = [[f"op{which}:{nth}" for nth in range(1, count + 1)] for which, count in enumerate(told)]
        async with asyncio.timeout(30):
            await hearers.ledger.wait_for([each for ids in expected for each in ids])
        await hearers.leave()

        for which, ids in enumerate(expected):
            assert hearers.ledger.of(f"op{which}") == ids
        assert hearers.ledger.overlaps == []
        if not any(what == "kill" for what, _ in steps):
            assert len(hearers.ledger.heard) == len(set(hearers.ledger.heard))

    asyncio.run(play())


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "delete", "watch", "leave"]), st.sampled_from("abc"), st.binary(max_size=2)),
        max_size=40,
    )
)
def test_each_watcher_has_seen_the_present_values(steps: list[tuple[str, str, bytes]]) -> None:
    async def play() -> None:
        bus, values = MemoryBus(), dict[str, bytes]()
        watching: list[tuple[AsyncExitStack, SeenValues]] = []
        for what, letter, value in steps:
            key = f"keys.{letter}"
            if what == "put":
                await bus.put(key, value)
                values[key] = value
            elif what == "delete":
                await bus.delete(key)
                values.pop(key, None)
            elif what == "watch":
                watching.append((AsyncExitStack(), SeenValues()))
                await watching[-1][0].enter_async_context(bus.peer().watch("keys", watching[-1][1].note))
            elif watching:
                await watching.pop(0)[0].aclose()
            for _, seen in watching:
                assert {key: value for key, value in dict(seen.changes).items() if value is not None} == values
            assert await bus.get(key) == values.get(key)
        for stack, _ in watching:
            await stack.aclose()

    asyncio.run(play())


@given(
    deadline=st.floats(0.001, 0.01),
    members=st.lists(st.sampled_from(["answers", "hangs", "dies"]), max_size=3),
)
def test_a_question_ends_with_an_answer_at_its_deadline_or_at_once(deadline: float, members: list[str]) -> None:
    async def play() -> str:
        bus = MemoryBus()
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for member in members:
                peer = bus.peer()
                await stack.enter_async_context(peer.answer("guard", echo if member == "answers" else hang))
                if member == "dies":
                    loop.call_later(deadline / 4, peer.kill)
            began = loop.time()
            async with asyncio.timeout(30):
                try:
                    assert await bus.ask("guard", b"?", deadline=deadline) == b"answer to ?"
                except NobodyServesError:
                    return "nobody"
                except TimeoutError:
                    assert loop.time() - began >= deadline * 0.99
                    return "late"
        return "answered"

    outcome = asyncio.run(play())

    if not set(members) & {"answers", "hangs"}:
        assert outcome in ("nobody", "late")  # the one that dies may be asked until the deadline
    if set(members) == {"answers"}:
        assert outcome in ("answered", "late")  # on a slow machine
    if not members:
        assert outcome == "nobody"


@pytest.mark.parametrize("numbers", [[1, 1, 2, 2], [1, 2, 1, 2]])
def test_a_commit_that_is_told_again_is_no_other_one(numbers: list[int]) -> None:
    async def play() -> list[str]:
        bus, ledger = MemoryBus(), HeardCommits()
        for number in numbers:
            await bus.tell(commit_of("op", number))
        async with bus.hear("observer", ledger.note):
            await ledger.wait_for(["op:1", "op:2"])
        return ledger.heard

    assert asyncio.run(play()) == ["op:1", "op:2"]
