"""`MemoryBus`: a bus within one process, for tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Self
from zlib import crc32

from hookline.bus._bus import Bus
from hookline.bus._hearing import Draining, check_filter, select_commits
from hookline.bus._messages import (
    Answerer,
    BusAnswerError,
    CommittedEvents,
    EventFilter,
    Hearer,
    NobodyServesError,
    Watcher,
    check_asking,
    check_commit,
    check_handler,
    check_key,
    check_value,
    check_watcher,
    no_answer_error,
)
from hookline.errors import HookUsageError, message_of
from hookline.wakeups import NET, LocalWakeups

__all__ = ["MemoryBus"]

logger = logging.getLogger("hookline")

PARTITIONS = 4
"""Number of queues of commits; the commits of one operation are all in the same one."""
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
"""Seconds before a handler that raised is called with the same commit again: the first time, and at most."""


class _Member:
    """One process that answers a name.

    Attributes:
        bus: The bus of the process.
        handler: Answers.
        under_way: The questions that it is answering.
    """

    def __init__(self, bus: MemoryBus, handler: Answerer) -> None:
        self.bus, self.handler = bus, handler
        self.under_way: set[asyncio.Task[bytes]] = set()


class _Progress:
    """What the processes that hear under one name have heard.

    Attributes:
        heard: Number of commits of each queue that were heard.
        locks: Held by the process that hears a queue.
    """

    def __init__(self) -> None:
        self.heard = [0] * PARTITIONS
        self.locks = [asyncio.Lock() for _ in range(PARTITIONS)]


class _Shared:
    """What the buses of a test share."""

    def __init__(self) -> None:
        self.buses: list[MemoryBus] = []
        self.members: dict[str, list[_Member]] = {}
        self.queues: list[list[CommittedEvents]] = [[] for _ in range(PARTITIONS)]
        self.known: set[str] = set()
        self.progress: dict[str, _Progress] = {}
        self.told = asyncio.Event()
        self.turns = count()
        self.values: dict[str, bytes] = {}
        self.expiries: dict[str, asyncio.TimerHandle] = {}


class MemoryBus(LocalWakeups, Bus):
    """A `Bus` within one process, for tests. What it keeps is lost with the process.

    `peer()` makes the bus of a further process of the test, and `kill()` ends one without a farewell.

    Args:
        net: Shortest and longest time, in seconds, after which a listener is called without a reason.
    """

    def __init__(self, *, net: Sequence[float] = NET) -> None:
        super().__init__(net)
        self._shared = _Shared()
        self._shared.buses.append(self)
        self._hearing: set[asyncio.Task[None]] = set()
        self._watchers: list[tuple[str, Watcher]] = []
        self._is_open = True

    def peer(self) -> Self:
        """Return the bus of another process of the same test."""
        other = type(self)(net=self._net)
        other._shared = self._shared
        self._shared.buses.append(other)
        return other

    def kill(self) -> None:
        """End the process of this bus: what it is answering or hearing is neither answered nor confirmed."""
        self._leave()
        for members in self._shared.members.values():
            for member in [each for each in members if each.bus is self]:
                members.remove(member)
                for task in member.under_way:
                    task.cancel()
        for hearing in self._hearing:
            hearing.cancel()

    async def __aenter__(self) -> Self:
        """Return the bus, which is open from the start."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the bus."""
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the other processes of the test. May be called twice."""
        self._leave()
        await super().aclose()

    def _leave(self) -> None:
        self._is_open = False
        self._watchers.clear()
        if self in self._shared.buses:
            self._shared.buses.remove(self)

    def _check_open(self) -> None:
        if not self._is_open:
            raise HookUsageError("The bus is closed.")

    def wake(self, topic: str) -> None:
        """Wake the listeners of a topic, in this process now and in the others soon."""
        super().wake(topic)
        for other in self._shared.buses:
            if other is not self and topic in other._calls:
                asyncio.get_running_loop().call_soon(other._call, topic)

    async def ask(self, name: str, question: bytes, *, deadline: float) -> bytes:
        """Ask one of the processes that serve a name, and return its answer; see `Bus.ask`."""
        check_asking(name, question, deadline)
        self._check_open()
        try:
            async with asyncio.timeout(deadline) as limit:
                while True:
                    members = self._shared.members.get(name)
                    if not members:
                        raise NobodyServesError(name)
                    answer = await self._ask_member(members[next(self._shared.turns) % len(members)], name, question)
                    if answer is not None:
                        return answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise no_answer_error(name, deadline) from None

    async def _ask_member(self, member: _Member, name: str, question: bytes) -> bytes | None:
        """Return the answer of a process; `None` if it was killed.

        Raises:
            BusAnswerError: If it answered with a failure.
        """
        task = asyncio.create_task(call_answerer(member.handler, question))
        member.under_way.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            member.under_way.discard(task)
        if task.cancelled():
            return None
        error = task.exception()
        if error is not None:
            raise BusAnswerError(name, f"{type(error).__name__}: {message_of(error)}")
        return task.result()

    @asynccontextmanager
    async def answer(self, name: str, handler: Answerer) -> AsyncIterator[None]:
        """Answer questions of a name while the context is open; see `Bus.answer`."""
        check_handler(name, handler)
        self._check_open()
        member = _Member(self, handler)
        members = self._shared.members.setdefault(name, [])
        members.append(member)
        try:
            yield
        finally:
            if member in members:
                members.remove(member)
            if member.under_way:
                await asyncio.wait(member.under_way)

    async def tell(self, commit: CommittedEvents) -> None:
        """Hand over a commit to all who hear; see `Bus.tell`."""
        check_commit(commit)
        self._check_open()
        if not self._is_known(commit):
            self._shared.known.add(commit.message_id)
            self._shared.queues[partition_of(commit.operation_id, PARTITIONS)].append(commit)
            self._announce()

    async def depths(self) -> dict[str, int]:
        """Return the number of commits that are not heard yet, by name; see `Bus.depths`."""
        self._check_open()
        told = sum(len(queue) for queue in self._shared.queues)
        return {name: told - sum(progress.heard) for name, progress in self._shared.progress.items()}

    def _is_known(self, commit: CommittedEvents) -> bool:
        return commit.message_id in self._shared.known

    def _announce(self) -> None:
        """Wake those who hear."""
        self._shared.told.set()
        self._shared.told = asyncio.Event()

    @asynccontextmanager
    async def hear(self, name: str, handler: Hearer, *, where: EventFilter | None = None) -> AsyncIterator[None]:
        """Hear every commit that was told for a name, while the context is open; see `Bus.hear`."""
        check_handler(name, handler)
        self._check_open()
        draining = Draining()
        handler = draining.guard(select_commits(name, handler, check_filter(where)))
        progress = self._shared.progress.setdefault(name, _Progress())
        tasks = {asyncio.create_task(self._hear_queue(nth, progress, handler)) for nth in range(PARTITIONS)}
        self._hearing |= tasks
        try:
            yield
        finally:
            await draining.finish(tasks)
            self._hearing -= tasks

    async def _hear_queue(self, nth: int, progress: _Progress, handler: Hearer) -> None:
        queue = self._shared.queues[nth]
        async with progress.locks[nth]:
            while True:
                told = self._shared.told
                while progress.heard[nth] < len(queue):
                    await self._hear_next(queue, nth, progress, handler)
                await told.wait()

    async def _hear_next(self, queue: list[CommittedEvents], nth: int, progress: _Progress, handler: Hearer) -> None:
        """Call a handler with the next commit of a queue until it does not raise, and confirm the commit."""
        await call_until_heard(handler, queue[progress.heard[nth]])
        progress.heard[nth] += 1

    async def put(self, key: str, value: bytes, *, seconds: float | None = None) -> None:
        """Give a key a value, for all processes; see `Bus.put`."""
        check_value(key, value, seconds)
        self._check_open()
        self._change(key, value)
        if seconds is not None:
            self._shared.expiries[key] = asyncio.get_running_loop().call_later(seconds, self._change, key, None)

    async def get(self, key: str) -> bytes | None:
        """Return the present value of a key; see `Bus.get`."""
        self._check_open()
        return self._shared.values.get(check_key(key))

    async def delete(self, key: str) -> None:
        """Take the value of a key away; see `Bus.delete`."""
        check_key(key)
        self._check_open()
        self._change(key, None)

    def _change(self, key: str, value: bytes | None) -> None:
        expiry = self._shared.expiries.pop(key, None)
        if expiry is not None:
            expiry.cancel()
        had_value = self._shared.values.pop(key, None) is not None
        if value is not None:
            self._shared.values[key] = value  # the last, since it is the latest
        if had_value or value is not None:
            for bus in self._shared.buses:
                for prefix, call in tuple(bus._watchers):
                    if key.startswith(prefix):
                        call_watcher(call, key, value)

    @asynccontextmanager
    async def watch(self, prefix: str, call: Watcher) -> AsyncIterator[None]:
        """Call a function with the values of keys, and with each change; see `Bus.watch`."""
        watcher = f"{check_watcher(prefix, call)}.", call
        self._check_open()
        for key, value in tuple(self._shared.values.items()):
            if key.startswith(watcher[0]):
                call_watcher(call, key, value)
        self._watchers.append(watcher)
        try:
            yield
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)


def call_watcher(call: Watcher, key: str, value: bytes | None) -> None:
    """Call a watcher, and log what it raises."""
    try:
        call(key, value)
    except Exception:
        logger.exception("The watcher of the key %s failed", key)


async def call_answerer(handler: Answerer, question: bytes) -> bytes:
    answer: object = await handler(question)
    if not isinstance(answer, bytes):
        raise TypeError(f"an answer must be bytes, not {type(answer).__name__}")
    return answer


async def call_until_heard(handler: Hearer, commit: CommittedEvents) -> None:
    """Call a handler with a commit, again and again while it raises."""
    pause = FIRST_PAUSE
    while True:
        try:
            await handler(commit)
        except Exception:
            logger.exception("A handler failed with the commit %s, and gets it again in %g s", commit.id, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            return


def partition_of(operation_id: str, partitions: int) -> int:
    """Return the partition of an operation, from 0."""
    return crc32(operation_id.encode(errors="surrogatepass")) % partitions
