"""Operations on one database, while processes are killed, the database flaps and receivers fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import monotonic, strftime

import asyncpg
import msgspec
from sqlalchemy import func, select

from benchmarks.postgresql import PostgreSQL
from benchmarks.soak import trips
from benchmarks.soak.counting import Count, count
from benchmarks.soak.moody import Journal, Moody
from benchmarks.soak.nursery import NO_STORE, Order, Word
from hookline import Approve, Reject
from hookline.delivery import EndpointSecrets, KeyRing, MasterKeys
from hookline.errors import DecisionError, HooklineError, OperationFinishedError
from hookline.store import SqlStore
from hookline.store._tables import deliveries, operations

ROOT = Path(__file__).parents[2]
WORKERS, RECEIVERS = 3, 6
MOST_UNFINISHED, MOST_AT_ONCE = 200, 20
"""Operations that are under way at all, and that one worker starts."""
PATIENCE = 120.0
"""Seconds in which everything has to end once nothing is killed any more."""
TOLD_SECONDS = 30.0
ROTATION_SECONDS = 5.0
"""After which all workers sign with a new secret: they look twice in a second, and attempts take a second at most."""
MOST_ROOM, NO_ROOM_SECONDS = "2g", 4.0
WRITTEN = ("operations", "deliveries", "attempts", "workers")
NO_ROOM = """
CREATE OR REPLACE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$
"""
"""What a full disk says at the commit: deferred triggers run there."""
ON_WRITE = (
    "CREATE CONSTRAINT TRIGGER no_room AFTER INSERT OR UPDATE ON {} DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION no_room()"
)
UNFINISHED = ("running", "waiting_for_human")


class Nursery:
    """Has workers forked, and learns of their ends."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._forked: deque[asyncio.Future[tuple[int, asyncio.Future[int]]]] = deque()
        self._ended: dict[int, asyncio.Future[int]] = {}

    async def __aenter__(self) -> Nursery:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.soak.nursery"),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._listening

    async def fork(self, order: Order) -> tuple[int, asyncio.Future[int]]:
        """Fork a worker; gives its id, and its status when it ends."""
        assert self._process.stdin is not None
        forked: asyncio.Future[tuple[int, asyncio.Future[int]]] = asyncio.get_running_loop().create_future()
        self._forked.append(forked)
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        return await forked

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            word = msgspec.json.decode(line, type=Word)
            if word.status is not None:
                self._ended.pop(word.pid).set_result(word.status)
                continue
            ended = self._ended[word.pid] = asyncio.get_running_loop().create_future()
            self._forked.popleft().set_result((word.pid, ended))


class Soak:
    """One soak on one database.

    Args:
        url: The database.
        folder: Where effects and logs are written.
        nursery: Forks workers.
        store: The soak's own connection.
    """

    def __init__(self, url: str, folder: Path, nursery: Nursery, store: SqlStore) -> None:
        self.url, self.nursery, self.store = url, nursery, store
        self.effects = folder / "effects"
        self.journal = Journal()
        self.receivers = [Moody(self.journal) for _ in range(RECEIVERS)]
        self.secrets = EndpointSecrets(store, MasterKeys([trips.MASTER_KEY]), environment=KeyRing())
        self.full: Path | None = None
        """While this file is there, workers find the disk full; `None` where a disk is filled."""
        self.wind_down = asyncio.Event()
        self.issued: set[str] = set()
        self.again: deque[str] = deque()
        self.unfinished = 0
        self.tally: Counter[str] = Counter()
        self.outages: list[float] = []
        self.problems: list[str] = []

    async def run(self, minutes: float, flap: Callable[[Soak], Awaitable[None]]) -> Count:
        """Go through all of it.

        Args:
            minutes: For how long there are faults.
            flap: Makes the database fail once, and come back.
        """
        async with contextlib.AsyncExitStack() as stack:
            for receiver in self.receivers:
                await stack.enter_async_context(receiver.receiver)
                receiver.receiver.secrets = (await self.new_secret(receiver),)
            tasks = [asyncio.create_task(receiver.run(self.wind_down)) for receiver in self.receivers]
            tasks += [asyncio.create_task(work) for work in (self.approve(), self.watch(), self.rotate())]
            flapping = asyncio.create_task(self.flap(flap, seldom=minutes >= 10))
            lives = [asyncio.create_task(self.live()) for _ in range(WORKERS)]
            try:
                await self.pass_time(minutes * 60, [*tasks, *lives, flapping])
                self.wind_down.set()
                await flapping
                await self.end([*tasks, *lives])
            finally:
                for task in (*tasks, *lives, flapping):
                    task.cancel()
                await asyncio.gather(*tasks, *lives, flapping, return_exceptions=True)
        found = await count(self.store, self.issued, self.effects, self.journal)
        found.problems += self.problems
        return found

    async def pass_time(self, seconds: float, tasks: list[asyncio.Task[None]]) -> None:
        """Let time pass; a fault of the soak itself ends it."""
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait until every operation has ended and everything is delivered."""
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline:
            running, undelivered = await self.look()
            if not running and not undelivered and not self.again:
                return
            await self.pass_time(0.5, tasks)
        self.problems.append(
            f"after {PATIENCE:.0f} s {running} operations have not ended and {undelivered} are not delivered"
        )

    async def look(self) -> tuple[int, int]:
        """How many operations have not ended, and how many deliveries are not delivered."""
        while True:
            with contextlib.suppress(HooklineError):
                async with self.store.reading() as connection:
                    ids = select(func.count()).select_from(operations).where(operations.c.status.in_(UNFINISHED))
                    left = select(func.count()).select_from(deliveries)
                    left = left.where(deliveries.c.status.in_(("pending", "waiting")))
                    self.unfinished = (await connection.execute(ids)).scalar_one()
                    return self.unfinished, (await connection.execute(left)).scalar_one()
            await asyncio.sleep(0.2)

    async def live(self) -> None:
        """One worker after another, each killed at some moment; the last one is left alone."""
        while True:
            mine, last = self.next_trips(), self.wind_down.is_set()
            urls = [receiver.url for receiver in self.receivers]
            full = "" if self.full is None else str(self.full)
            order = Order(url=self.url, effects=str(self.effects), urls=urls, trips=mine, full=full)
            pid, ended = await self.nursery.fork(order)
            self.tally["processes"] += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if last else lifetime()):
                    await asyncio.shield(ended)
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself, and nobody was told yet
                    os.kill(pid, signal.SIGKILL)
            status = await ended
            if status == -signal.SIGKILL:
                self.tally["kills"] += 1
            elif status == NO_STORE:
                self.tally["processes that found no store"] += 1
            else:
                self.problems.append(f"process {pid} ended by itself with status {status}")
            await self.put_back(mine)

    def next_trips(self) -> list[str]:
        """What a new worker starts."""
        mine = [self.again.popleft() for _ in range(min(len(self.again), MOST_AT_ONCE))]
        if self.wind_down.is_set():
            return mine
        room = MOST_UNFINISHED // WORKERS - self.unfinished // WORKERS - len(mine)
        fresh = [f"trip{len(self.issued) + n}" for n in range(min(max(0, room), MOST_AT_ONCE - len(mine)))]
        self.issued.update(fresh)
        return mine + fresh

    async def put_back(self, names: list[str]) -> None:
        """Have another worker start what a dead one has not."""
        while names:
            with contextlib.suppress(HooklineError):
                async with self.store.reading() as connection:
                    query = select(operations.c.operation_id).where(operations.c.operation_id.in_(names))
                    stored = set((await connection.execute(query)).scalars())
                self.again.extend(name for name in names if name not in stored)
                return
            await asyncio.sleep(0.2)

    async def approve(self) -> None:
        """The person who decides, and does not like to be asked twice."""
        decided: set[str] = set()
        while True:
            with contextlib.suppress(HooklineError):
                for each in (await self.store.operations(status="waiting_for_human", limit=1000)).items:
                    name = each.operation_id
                    decision = Reject("p1", reason="too dear") if trips.refused(name) else Approve("p1")
                    with contextlib.suppress(DecisionError, OperationFinishedError):
                        await self.store.decide(name, decision, by="ann")
                        self.tally["decisions"] += 1
                        if name in decided:
                            self.problems.append(f"{name} has lost what a person had decided")
                        decided.add(name)
            await asyncio.sleep(0.2)

    async def rotate(self) -> None:
        """Give one receiver after another a new secret, which alone it accepts once every worker knows it."""
        while not self.wind_down.is_set():
            for receiver in self.receivers:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(1, 5)):
                        await self.wind_down.wait()
                secret = await self.new_secret(receiver)
                await asyncio.sleep(ROTATION_SECONDS)
                receiver.receiver.secrets = (secret,)
                self.tally["rotations of secrets"] += 1

    async def new_secret(self, receiver: Moody) -> str:
        while True:
            with contextlib.suppress(HooklineError):
                made = await self.secrets.rotate(trips.TENANT, receiver.url, overlap_seconds=3 * ROTATION_SECONDS)
                assert made.secret is not None
                return made.secret
            await asyncio.sleep(0.2)

    async def flap(self, flap: Callable[[Soak], Awaitable[None]], *, seldom: bool) -> None:
        """Let the database fail again and again."""
        while not self.wind_down.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(20, 40) if seldom else random.uniform(8, 16)):
                    await self.wind_down.wait()
                    return
            began = monotonic()
            await flap(self)
            self.outages.append(monotonic() - began)

    async def watch(self) -> None:
        """Say from time to time how it goes."""
        began = told = monotonic()
        while True:
            running, undelivered = await self.look()
            if monotonic() - told > TOLD_SECONDS:
                told = monotonic()
                print(
                    f"{strftime('%H:%M:%S')} {told - began:5.0f} s: {self.tally['kills']} kills, {len(self.outages)} "
                    f"outages, {len(self.issued)} operations ({running} unfinished), {len(self.journal.taken)} ids "
                    f"received ({undelivered} undelivered), {len(self.problems)} problems",
                    flush=True,
                )
            await asyncio.sleep(0.3)


def lifetime() -> float:
    """Seconds: some die while they start, most in the middle of work, a few are old enough to see an outage through."""
    return random.choices([random.uniform(0.0, 0.3), random.uniform(0.2, 1.5), random.uniform(2, 12)], [2, 7, 1])[0]


async def soak_on(database: str, folder: Path, minutes: float) -> tuple[Soak, Count]:
    """Soak one kind of database.

    Args:
        database: `"postgresql"`, which crashes and starts again now and then, or `"sqlite"`, a file that another
            process locks for some seconds. Both find their disk full now and then.
        folder: Where everything is written.
        minutes: For how long there are faults.
    """
    if database == "sqlite":
        with disk(folder / "disk") as place:
            return await soak_url(f"sqlite:///{(place or folder) / 'store.db'}", folder, minutes, sqlite_fault(place))
    with PostgreSQL() as server:

        async def crash(soak: Soak) -> None:
            if random.random() < 0.5:
                soak.tally["full disks"] += 1
                await refuse_commits(soak.url)
                return
            await asyncio.to_thread(server.crash)
            await asyncio.sleep(random.choice([0.0, random.uniform(0.2, 4.0)]))
            await asyncio.to_thread(server.start)

        return await soak_url(await server.new_database("soak"), folder, minutes, crash)


async def soak_url(
    url: str, folder: Path, minutes: float, flap: Callable[[Soak], Awaitable[None]]
) -> tuple[Soak, Count]:
    async with SqlStore(url, retry_seconds=60.0) as store, Nursery(folder / "log") as nursery:
        soak = Soak(url, folder, nursery, store)
        if store.dialect == "sqlite" and not (folder / "disk").is_mount():
            soak.full = folder / "full"
        return soak, await soak.run(minutes, flap)


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Path | None]:
    """A disk of its own in memory, which can be filled; `None` where this user may mount none."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MOST_ROOM}", "tmpfs", str(folder)], check=False)
    try:
        yield folder if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def sqlite_fault(place: Path | None) -> Callable[[Soak], Awaitable[None]]:
    """What happens to an SQLite file: another process locks it, or its disk is full."""

    async def flap(soak: Soak) -> None:
        if random.random() < 0.5:
            await lock(soak)
            return
        soak.tally["full disks"] += 1
        if place is None:
            assert soak.full is not None
            soak.full.touch()
            await asyncio.sleep(random.uniform(0.5, NO_ROOM_SECONDS))
            soak.full.unlink()
            return
        used = os.statvfs(place)
        size = f"{(used.f_blocks - used.f_bfree) * used.f_frsize // 1024 + 4}k"
        # It may have grown meanwhile, and then it cannot be made that small.
        await asyncio.to_thread(subprocess.run, ["mount", "-o", f"remount,size={size}", str(place)], check=False)
        try:
            await asyncio.sleep(random.uniform(0.5, NO_ROOM_SECONDS))
        finally:
            await asyncio.to_thread(
                subprocess.run, ["mount", "-o", f"remount,size={MOST_ROOM}", str(place)], check=True
            )

    return flap


async def refuse_commits(url: str) -> None:
    """Have a PostgreSQL server refuse commits for some seconds, as it does when it finds no room for them."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(NO_ROOM)
        try:
            for table in WRITTEN:  # one by one: who held the locks of several would be in a deadlock with writers
                await execute_again(connection, ON_WRITE.format(table))
            await asyncio.sleep(random.uniform(0.5, NO_ROOM_SECONDS))
        finally:
            for table in WRITTEN:
                await execute_again(connection, f"DROP TRIGGER IF EXISTS no_room ON {table}")
    finally:
        await connection.close()


async def execute_again(connection: asyncpg.Connection[asyncpg.Record], statement: str) -> None:
    """Execute a statement until it is not chosen to end a deadlock: it locks all partitions of a table in turn."""
    while True:
        try:
            await connection.execute(statement)
        except asyncpg.DeadlockDetectedError:
            continue
        return


async def lock(soak: Soak) -> None:
    """Have another process hold the lock of an SQLite file."""
    seconds = random.uniform(0.2, 5.0)
    _, ended = await soak.nursery.fork(Order(url=soak.url, lock_seconds=seconds))
    if status := await ended:
        soak.problems.append(f"the process that locks ended with status {status}")
