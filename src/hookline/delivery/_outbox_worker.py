"""The worker of an outbox: claims what is due, hands it over, and writes in batches what became of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

import anyio
import msgspec
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from hookline.delivery._outbox_lanes import Held, Lanes
from hookline.errors import StoreUnavailableError, message_of
from hookline.store import (
    Breaker,
    Claimed,
    Outcome,
    SqlStore,
    claim,
    correct_times,
    extend,
    lock,
    release,
    release_unknown,
    settle,
)

__all__ = ["Worker", "WorkerOptions"]

logger = logging.getLogger("hookline")

SOONEST, LATEST = 0.05, 1.0
"""Seconds between two looks at the tables while nothing is due."""
LONGEST_OUTAGE_PAUSE = 5.0
"""Seconds between two tries to reach a store that is down."""
GRACE = 5.0
"""Seconds that deliveries under way get when the worker is told to stop."""
LONGEST_RUN = 1.0
"""Seconds after which a run of deliveries is settled, although more could follow: what is not settled is repeated after
a crash."""
RUN = 16
"""Deliveries of one stream that are claimed together."""
AHEAD = 4
"""Streams claimed for one endpoint, for each that may be under way there: the next are at hand when these end."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works.

    Attributes:
        per_endpoint: Deliveries under way at one endpoint at most.
        concurrency: Deliveries under way at all.
        lease_seconds: For how long a claim counts.
        longest_delay: Seconds that a delivery may be told to wait.
        breaker: When endpoints are left alone.
    """

    per_endpoint: int = 8
    concurrency: int = 256
    lease_seconds: float = 60.0
    longest_delay: float = 90_000.0
    breaker: Breaker = Breaker()


class Worker:
    """Claims what is due, hands it over, and writes what became of it.

    Args:
        store: Where deliveries are kept.
        attempt: Makes one attempt.
        served: Which `local://` names this process takes.
        options: How it works.
    """

    def __init__(
        self,
        store: SqlStore,
        attempt: Callable[[Claimed], Awaitable[Outcome]],
        *,
        served: Callable[[], Collection[str]],
        options: WorkerOptions,
    ) -> None:
        self._store, self._attempt, self._served, self._options = store, attempt, served, options
        self._lanes = Lanes(
            per_endpoint=options.per_endpoint, concurrency=options.concurrency, enough=options.breaker.failures
        )
        self._held: dict[int, Held] = {}
        self._ended: list[Held] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._look = True
        self._claiming = False
        self._stopping = False
        self._pause = SOONEST
        self._outage: float | None = None
        self._tended = 0.0
        self._doubtful: list[float] = []
        """When claims end of which nobody knows whether they were committed."""

    def wake(self) -> None:
        """Look at the tables now: there may be something new."""
        self._look = True
        self._wake.set()

    def stop(self) -> None:
        """Claim no more; `run` returns when what is under way is over, or given back."""
        self._stopping = True
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether it holds nothing, and is not about to."""
        return not (self._held or self._claiming or self._doubtful)

    async def run(self) -> None:
        """Work until stopped or cancelled."""
        try:
            while not self._stopping:
                self._wake.clear()
                await self._cycle()
                self._begin()
                await self._rest()
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish()

    async def _cycle(self) -> None:
        """Write what has ended, and claim what comes next, in one transaction."""
        ended, look = self._ended, self._look and self._lanes.room > 0 and not self._stopping
        tend = asyncio.get_running_loop().time() - self._tended > self._options.lease_seconds / 3
        if not (ended or look or tend):
            return
        self._ended, self._look = [], self._look and not look
        self._claiming = True
        doubtful = self._doubtful.copy()
        try:
            claimed = await self._write(ended, look=look, tend=tend, doubtful=doubtful)
        except (StoreUnavailableError, SQLAlchemyError) as error:
            self._ended = [*ended, *self._ended]
            self._look, self._claiming, self._doubtful = True, False, doubtful
            self._is_down(error)
            return
        except BaseException:
            self._ended, self._claiming, self._doubtful = [*ended, *self._ended], False, doubtful
            raise
        self._doubtful = []
        self._is_up()
        for held in ended:
            self._held.pop(held.seq, None)
            tell(held)
        self._hold(claimed)
        self._claiming = False
        if claimed or any(outcome.status != "pending" for held in ended for outcome in held.outcomes):
            self._look, self._pause = True, SOONEST

    def _hold(self, claimed: list[Held]) -> None:
        new = []
        for held in claimed:
            if held.seq in self._held:
                # Its claim had run out while the store was down, and nobody else took it.
                self._held[held.seq].until = held.until
            else:
                self._held[held.seq] = held
                new.append(held)
        self._lanes.add(new)

    async def _write(self, ended: list[Held], *, look: bool, tend: bool, doubtful: list[float]) -> list[Held]:
        """Write what has ended, and claim.

        Args:
            ended: What has ended.
            look: Whether to claim.
            tend: Whether to prolong what is held.
            doubtful: When earlier claims end of which nobody knows whether they were committed. The end of this one is
                added, for the case that its commit fails.
        """
        options, worker = self._options, self._store.worker_id
        loop = asyncio.get_running_loop()
        async with self._store.writing() as connection:
            began = loop.time()
            now = (await connection.execute(select(self._store.now_sql()))).scalar_one()
            outcomes = [outcome for held in ended for outcome in held.outcomes]
            settled = {outcome.claimed.seq for outcome in outcomes} | {held.seq for held in ended}
            await lock(connection, settled | (self._held.keys() if tend else set()))
            if doubtful:
                await release_unknown(connection, doubtful, kept=self._held.keys(), now=now, worker=worker)
            await settle(connection, outcomes, now=now, worker=worker, breaker=options.breaker)
            untried = [held.seq for held in ended if not held.outcomes]
            if untried:
                await release(connection, untried, now=now, worker=worker)
            lost: set[int] = set()
            if tend:
                seqs = self._held.keys() - {held.seq for held in ended}
                kept = await extend(connection, seqs, now=now, worker=worker, lease_seconds=options.lease_seconds)
                lost = seqs - kept
                await correct_times(connection, now=now, longest_delay=options.longest_delay)
            runs = []
            if look:
                doubtful.append(now + options.lease_seconds)
                runs = await claim(
                    connection,
                    now=now,
                    worker=worker,
                    lease_seconds=options.lease_seconds,
                    limit=options.concurrency,
                    each=options.per_endpoint * AHEAD,
                    longest=RUN,
                    busy=self._lanes.busy(),
                    served=self._served(),
                )
        if tend:
            self._tended = began
            for seq, held in self._held.items():
                held.until = began if seq in lost else began + options.lease_seconds
        return [Held(run, began + options.lease_seconds) for run in runs]

    def _begin(self) -> None:
        """Begin what there is room for. The tables may be slow: what is at hand does not wait for them."""
        if self._stopping:
            return
        for held in self._lanes.startable():
            task = asyncio.create_task(self._deliver(held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, held: Held) -> None:
        """Hand over the deliveries of a run one after another, until one is not taken."""
        clock = asyncio.get_running_loop().time
        enough = clock() + LONGEST_RUN
        try:
            for claimed in held.run:
                if clock() >= held.until or (held.outcomes and (self._stopping or clock() > enough)):
                    break
                outcome = await self._attempt(claimed)
                held.outcomes.append(outcome)
                if outcome.status == "pending" or outcome.gone:
                    break
        finally:
            self._ended += [held, *self._lanes.ended(held)]
            self._wake.set()
            self._begin()

    async def _rest(self) -> None:
        """Wait until something has ended or is new, or it is time to look again."""
        if self._outage is not None:
            await asyncio.sleep(self._outage)
            return
        if self._look and self._lanes.room > 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(min(self._pause, self._options.lease_seconds / 3)):
                await self._wake.wait()
        except TimeoutError:
            self._look, self._pause = True, min(self._pause * 2, LATEST)

    async def _finish(self) -> None:
        """Let what is under way end, and give back what is not."""
        self._stopping = True
        self._ended += self._lanes.take_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(3):
            if not self._ended:
                break
            await self._cycle()
            if self._outage is not None:
                await asyncio.sleep(SOONEST)
        if self._ended:
            logger.warning("%d claims could not be given back; they end by themselves", len(self._ended))
        self._ended, self._held = [], {}
        self._stopping = False

    def _is_down(self, error: Exception) -> None:
        if self._outage is None:
            logger.warning("Deliveries stop until the store is back: %s", message_of(error))
        self._outage = min((self._outage or SOONEST / 2) * 2, LONGEST_OUTAGE_PAUSE)

    def _is_up(self) -> None:
        if self._outage is not None:
            logger.warning("The store is back; deliveries go on")
        self._outage = None


def tell(held: Held) -> None:
    """Log what was given up."""
    for outcome in held.outcomes:
        if outcome.status == "dead":
            envelope = outcome.claimed.envelope
            logger.log(
                logging.ERROR if envelope.hook.webhook.fallback == "none" else logging.WARNING,
                "Delivery %s of hook %r in operation %r was given up after %d attempts: %s",
                envelope.id,
                envelope.hook.id,
                envelope.operation_id,
                outcome.claimed.attempts + outcome.attempted,
                outcome.error,
            )
