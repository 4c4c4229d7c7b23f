"""The contract that every bus keeps: what it carries arrives, in order, once or with a known id, and in time.

The tests of a bus provide a `BusStage`, which makes the buses of several processes, and check every `BusClause` of the
`BUS_CONTRACT` with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec

from hookline.bus import Bus, BusAnswerError, CommittedEvents, NobodyServesError
from hookline.errors import HooklineError, define_error

__all__ = ["BUS_CONTRACT", "BusClause", "BusContractError", "BusStage", "check_bus_contract"]

HANGING = 3600.0
"""Seconds of a deadline that no test reaches."""


@define_error("{what}\n  expected: {expected}\n  got:      {got}")
class BusContractError(HooklineError, AssertionError):
    """A bus broke a clause of the contract.

    Attributes:
        what: What was compared.
        expected: The value that the contract requires.
        got: The actual value.
    """

    what: str
    expected: str
    got: str


class BusStage(Protocol):
    """Makes the buses of several processes that can reach each other; each clause needs a new stage.

    Attributes:
        patience: Seconds after which something that should have happened counts as missing. Give it more than the bus
            needs to notice that a process was killed.
    """

    patience: float

    async def join(self) -> Bus:
        """Return the open bus of a further process."""
        ...

    async def kill(self, bus: Bus) -> None:
        """End the process of a bus without a farewell, or cut its connection for ever."""
        ...


class BusClause(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the contract.

    Attributes:
        name: The name of the clause.
        play: Plays the clause on a stage, and raises a `BusContractError` if the bus breaks it.
    """

    name: str
    play: Callable[[BusStage], Awaitable[None]]

    def __str__(self) -> str:
        return self.name

    async def check(self, stage: BusStage) -> None:
        """Check a bus against the clause.

        Args:
            stage: Makes buses; a new one for each clause.

        Raises:
            BusContractError: If the bus breaks the clause.
        """
        try:
            async with asyncio.timeout(stage.patience) as limit:
                await self.play(stage)
        except TimeoutError as error:
            if not limit.expired():
                raise
            what = f"the clause {self.name!r} came to no end"
            raise BusContractError(what, f"an end within {stage.patience:g} s", "none") from error


def check_equal(what: str, got: object, expected: object) -> None:
    """Raise an error unless two values are equal.

    Raises:
        BusContractError: If they differ.
    """
    if got != expected:
        raise BusContractError(what, repr(expected), repr(got))


def commit_of(operation_id: str, number: int) -> CommittedEvents:
    """Return a commit with one event."""
    return CommittedEvents(operation_id=operation_id, number=number, events=[msgspec.Raw(b'{"type":"onComplete"}')])


class HeardCommits:
    """Notes what several processes hear.

    Attributes:
        heard: The ids of the commits that were heard to the end, in that order.
        overlaps: The commits of an operation of which another commit was being heard.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.overlaps: list[str] = []
        self._under_way: set[str] = set()
        self._changed = asyncio.Event()

    async def note(self, commit: CommittedEvents) -> None:
        """Hear a commit, in a few steps of the event loop."""
        if commit.operation_id in self._under_way:
            self.overlaps.append(commit.id)
        self._under_way.add(commit.operation_id)
        try:
            for _ in range(1 + commit.number % 3):
                await asyncio.sleep(0)
            self.heard.append(commit.id)
        finally:
            self._under_way.discard(commit.operation_id)
            self._changed.set()

    async def wait_for(self, ids: Sequence[str]) -> None:
        """Wait until commits were heard."""
        while set(ids) - set(self.heard):
            self._changed.clear()
            await self._changed.wait()

    def of(self, operation_id: str) -> list[str]:
        """Return the commits of an operation, each at its first time."""
        return [each for each in dict.fromkeys(self.heard) if each.rpartition(":")[0] == operation_id]


async def echo(question: bytes) -> bytes:
    """Answer with the question."""
    await asyncio.sleep(0)
    return b"answer to " + question


async def hang(question: bytes) -> bytes:
    """Never answer."""
    await asyncio.Event().wait()
    return question


async def _each_question_gets_its_own_answer(stage: BusStage) -> None:
    asker, one, other = await stage.join(), await stage.join(), await stage.join()
    questions = [str(nth).encode() for nth in range(50)]
    async with one.answer("guard", echo), other.answer("guard", echo):
        answers = await asyncio.gather(*(asker.ask("guard", each, deadline=HANGING) for each in questions))
    check_equal("the answers to 50 questions", answers, [b"answer to " + each for each in questions])


async def _a_question_that_nobody_serves_fails_at_once(stage: BusStage) -> None:
    asker, member = await stage.join(), await stage.join()
    async with member.answer("guard", echo):
        pass
    for name in ("guard", "unknown"):
        await _expect(asker.ask(name, b"?", deadline=HANGING), NobodyServesError)


async def _a_question_ends_at_its_deadline(stage: BusStage) -> None:
    asker, member = await stage.join(), await stage.join()
    async with member.answer("guard", hang):
        await _expect(asker.ask("guard", b"?", deadline=0.2), TimeoutError)


async def _a_failure_is_told_to_the_asker(stage: BusStage) -> None:
    asker, member = await stage.join(), await stage.join()

    async def fail(question: bytes) -> bytes:
        raise ValueError("no rule fits")

    async with member.answer("guard", fail):
        error = await _expect(asker.ask("guard", b"?", deadline=HANGING), BusAnswerError)
    if "no rule fits" not in str(error):
        raise BusContractError("the reason in the error", "no rule fits", str(error))


async def _another_process_answers_for_a_killed_one(stage: BusStage) -> None:
    asker, killed, living = await stage.join(), await stage.join(), await stage.join()
    asked = asyncio.Event()

    async def hang_and_tell(question: bytes) -> bytes:
        asked.set()
        return await hang(question)

    async with killed.answer("guard", hang_and_tell):
        question = asyncio.create_task(asker.ask("guard", b"?", deadline=HANGING))
        await asked.wait()
        async with living.answer("guard", echo):
            await stage.kill(killed)
            check_equal("the answer", await question, b"answer to ?")


async def _commits_of_an_operation_are_heard_in_order(stage: BusStage) -> None:
    teller, one, other = await stage.join(), await stage.join(), await stage.join()
    ledger, told = HeardCommits(), [(f"op{nth % 3}", 1 + nth // 3) for nth in range(30)]
    async with one.hear("observer", ledger.note), other.hear("observer", ledger.note):
        for operation_id, number in told:
            await teller.tell(commit_of(operation_id, number))
        await ledger.wait_for([f"{operation_id}:{number}" for operation_id, number in told])
    for operation_id in ("op0", "op1", "op2"):
        check_equal("the order", ledger.of(operation_id), [f"{operation_id}:{number}" for number in range(1, 11)])
    check_equal("commits that were heard beside another one of their operation", ledger.overlaps, [])


async def _a_commit_that_is_told_again_is_heard_once(stage: BusStage) -> None:
    teller, other, hearer = await stage.join(), await stage.join(), await stage.join()
    ledger = HeardCommits()
    for bus in (teller, other, teller):
        await bus.tell(commit_of("op", 1))
    await teller.tell(commit_of("op", 2))
    async with hearer.hear("observer", ledger.note):
        await ledger.wait_for(["op:2"])
    check_equal("what was heard", ledger.heard, ["op:1", "op:2"])


async def _what_was_told_while_nobody_listened_is_heard(stage: BusStage) -> None:
    teller, first, second = await stage.join(), await stage.join(), await stage.join()
    ledger = HeardCommits()
    await teller.tell(commit_of("op", 1))
    async with first.hear("observer", ledger.note):
        await ledger.wait_for(["op:1"])
    await teller.tell(commit_of("op", 2))
    async with second.hear("observer", ledger.note):
        await ledger.wait_for(["op:2"])
    check_equal("the order", ledger.of("op"), ["op:1", "op:2"])


async def _what_a_killed_process_was_hearing_is_heard_by_another(stage: BusStage) -> None:
    teller, killed, living = await stage.join(), await stage.join(), await stage.join()
    ledger, begun = HeardCommits(), asyncio.Event()

    async def hang_and_tell(commit: CommittedEvents) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with killed.hear("observer", hang_and_tell):
        await teller.tell(commit_of("op", 1))
        await begun.wait()
        async with living.hear("observer", ledger.note):
            await teller.tell(commit_of("op", 2))
            await teller.tell(commit_of("other", 1))
            await stage.kill(killed)
            await ledger.wait_for(["op:2", "other:1"])
            await ledger.wait_for(["op:1"])
    check_equal("the order", ledger.of("op"), ["op:1", "op:2"])


async def _a_commit_is_heard_again_after_a_failure(stage: BusStage) -> None:
    teller, hearer = await stage.join(), await stage.join()
    ledger = HeardCommits()
    failed: list[str] = []

    async def fail_once(commit: CommittedEvents) -> None:
        if not failed:
            failed.append(commit.id)
            raise ValueError("the disk is full")
        await ledger.note(commit)

    async with hearer.hear("observer", fail_once):
        for number in (1, 2):
            await teller.tell(commit_of("op", number))
        await ledger.wait_for(["op:2"])
    check_equal("what was heard", ledger.heard, ["op:1", "op:2"])


async def _each_name_hears_everything(stage: BusStage) -> None:
    teller, one, other = await stage.join(), await stage.join(), await stage.join()
    ledgers = HeardCommits(), HeardCommits()
    async with one.hear("first", ledgers[0].note), other.hear("second", ledgers[1].note):
        for number in (1, 2, 3):
            await teller.tell(commit_of("op", number))
        for ledger in ledgers:
            await ledger.wait_for([f"op:{number}" for number in (1, 2, 3)])


async def _the_depth_of_a_name_is_what_it_has_not_heard(stage: BusStage) -> None:
    teller, hearer = await stage.join(), await stage.join()
    ledger = HeardCommits()
    async with hearer.hear("observer", ledger.note):
        await teller.tell(commit_of("op", 1))
        await ledger.wait_for(["op:1"])
    for number in (2, 3):
        await teller.tell(commit_of("op", number))
    check_equal("the depth while nobody listens", await teller.depths(), {"observer": 2})
    async with hearer.hear("observer", ledger.note):
        await ledger.wait_for(["op:3"])
        while await teller.depths() != {"observer": 0}:  # noqa: ASYNC110 - it is confirmed a moment later
            await asyncio.sleep(0.01)


async def _a_commit_for_a_name_is_heard_by_no_other(stage: BusStage) -> None:
    teller, one, other = await stage.join(), await stage.join(), await stage.join()
    ledgers = HeardCommits(), HeardCommits()
    async with one.hear("first", ledgers[0].note), other.hear("second", ledgers[1].note):
        await teller.tell(msgspec.structs.replace(commit_of("op", 1), hearers=["first"]))
        await teller.tell(commit_of("op", 2))
        for ledger in ledgers:
            await ledger.wait_for(["op:2"])
    check_equal("what was heard", [ledger.heard for ledger in ledgers], [["op:1", "op:2"], ["op:2"]])


async def _a_wake_up_reaches_other_processes(stage: BusStage) -> None:
    sleeper, waker = await stage.join(), await stage.join()
    woken = asyncio.Event()
    async with sleeper.woken("work", woken.set):
        waker.wake("work")
        await woken.wait()


class SeenValues:
    """Notes what a watcher is called with.

    Attributes:
        changes: The keys and values, in order.
    """

    def __init__(self) -> None:
        self.changes: list[tuple[str, bytes | None]] = []
        self._changed = asyncio.Event()

    def note(self, key: str, value: bytes | None) -> None:
        """Be called with a change."""
        self.changes.append((key, value))
        self._changed.set()

    async def wait_for(self, key: str, value: bytes | None) -> None:
        """Wait until the last change of a key gave it this value."""
        while dict(self.changes).get(key, b"nothing yet") != value:
            self._changed.clear()
            await self._changed.wait()


async def _a_value_is_there_for_all_processes(stage: BusStage) -> None:
    one, other = await stage.join(), await stage.join()
    check_equal("a value that was never put", await one.get("definitions.revision"), None)
    for value in (b"1", b"", b"2"):
        await one.put("definitions.revision", value)
        check_equal("the value in another process", await other.get("definitions.revision"), value)
    await stage.kill(one)
    check_equal("the value of a killed process", await other.get("definitions.revision"), b"2")
    await other.delete("definitions.revision")
    await other.delete("definitions.revision")
    check_equal("a value that was deleted", await other.get("definitions.revision"), None)


async def _a_watcher_sees_the_values_and_each_change_in_order(stage: BusStage) -> None:
    watcher, one, other = await stage.join(), await stage.join(), await stage.join()
    seen = SeenValues()
    for key, value in (("a.x", b"1"), ("a.y", b"1"), ("a.gone", b"1"), ("ab.x", b"1"), ("a.x", b"2")):
        await one.put(key, value)
    await one.delete("a.gone")
    async with watcher.watch("a", seen.note):
        check_equal("the values at the start", seen.changes, [("a.y", b"1"), ("a.x", b"2")])
        await one.put("a.b.c", b"3")
        await seen.wait_for("a.b.c", b"3")
        await other.delete("a.y")
        await seen.wait_for("a.y", None)
        await other.put("ab.x", b"4")
        await other.put("a.x", b"")
        await seen.wait_for("a.x", b"")
    check_equal("the changes", seen.changes[2:], [("a.b.c", b"3"), ("a.y", None), ("a.x", b"")])


async def _the_last_value_reaches_each_watcher(stage: BusStage) -> None:
    writer, watchers = await stage.join(), [await stage.join() for _ in range(3)]
    seen = [SeenValues() for _ in watchers]
    async with AsyncExitStack() as stack:
        for bus, noted in zip(watchers, seen, strict=True):
            await stack.enter_async_context(bus.watch("a", noted.note))
        for number in range(50):
            await writer.put("a.x", str(number).encode())
        for noted in seen:
            await noted.wait_for("a.x", b"49")
    for noted in seen:
        numbers = [int(value or b"-1") for _, value in noted.changes]
        check_equal("the order of the values", numbers, sorted(set(numbers)))


async def _a_value_expires_unless_it_is_put_again(stage: BusStage) -> None:
    owner, watcher = await stage.join(), await stage.join()
    seen, loop = SeenValues(), asyncio.get_running_loop()
    async with watcher.watch("members", seen.note):
        await owner.put("members.kept", b"1", seconds=1)
        await owner.put("members.kept", b"2")
        began = loop.time()
        await owner.put("members.lost", b"1", seconds=1)
        await stage.kill(owner)
        await seen.wait_for("members.lost", b"1")
        await seen.wait_for("members.lost", None)
        if loop.time() - began < 1:
            raise BusContractError("the seconds until a value expires", "at least 1", f"{loop.time() - began:g}")
        check_equal("the value that was put again", await watcher.get("members.kept"), b"2")
        check_equal("the value that was not", await watcher.get("members.lost"), None)
    check_equal("whether it stays", seen.changes.count(("members.kept", None)), 0)


async def _expect(work: Awaitable[object], expected: type[Exception]) -> Exception:
    try:
        got: object = await work
    except expected as error:
        return error
    except Exception as error:
        raise BusContractError("how the question ends", expected.__name__, repr(error)) from error
    raise BusContractError("how the question ends", expected.__name__, repr(got))


def _clause(play: Callable[[BusStage], Awaitable[None]]) -> BusClause:
    return BusClause(name=play.__name__.lstrip("_").replace("_", " "), play=play)


BUS_CONTRACT: tuple[BusClause, ...] = tuple(
    map(
        _clause,
        (
            _each_question_gets_its_own_answer,
            _a_question_that_nobody_serves_fails_at_once,
            _a_question_ends_at_its_deadline,
            _a_failure_is_told_to_the_asker,
            _another_process_answers_for_a_killed_one,
            _commits_of_an_operation_are_heard_in_order,
            _a_commit_that_is_told_again_is_heard_once,
            _what_was_told_while_nobody_listened_is_heard,
            _what_a_killed_process_was_hearing_is_heard_by_another,
            _a_commit_is_heard_again_after_a_failure,
            _each_name_hears_everything,
            _a_commit_for_a_name_is_heard_by_no_other,
            _the_depth_of_a_name_is_what_it_has_not_heard,
            _a_wake_up_reaches_other_processes,
            _a_value_is_there_for_all_processes,
            _a_watcher_sees_the_values_and_each_change_in_order,
            _the_last_value_reaches_each_watcher,
            _a_value_expires_unless_it_is_put_again,
        ),
    )
)
"""All clauses of the contract."""


async def check_bus_contract(new_stage: Callable[[], BusStage]) -> None:
    """Check a bus against all clauses of the contract.

    Args:
        new_stage: Makes a new stage, on which no bus has carried anything yet.

    Raises:
        BusContractError: If the bus breaks a clause; a note names it.
    """
    for clause in BUS_CONTRACT:
        try:
            await clause.check(new_stage())
        except BusContractError as error:
            error.add_note(f"This is the clause {clause.name!r} of the contract.")
            raise
