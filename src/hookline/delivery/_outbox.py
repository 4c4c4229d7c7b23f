"""`Outbox`: deliveries that are written into a store first, and handed over from there by workers."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from types import TracebackType
from typing import TypeGuard

import anyio
import msgspec
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from hookline.delivery._endpoint_secrets import EndpointSecrets
from hookline.delivery._in_process import InProcess, LocalFunctions, is_local
from hookline.delivery._master_keys import MasterKeyError, MasterKeys
from hookline.delivery._sender import Sender
from hookline.delivery._signing import KeyRing
from hookline.errors import DeliveryError, HookUsageError, StoreUnavailableError, message_of
from hookline.store import (
    LONGEST_LEASE,
    Breaker,
    Claimed,
    Outcome,
    Run,
    SqlStore,
    claim,
    correct_times,
    due,
    extend,
    insert_deliveries,
    lock,
    release,
    release_unknown,
    rows_of,
    settle,
    storable,
)
from hookline.webhooks import ControlAnswer, Envelope, ServedBy

__all__ = [
    "LONGEST_WAIT",
    "STANDARD",
    "Held",
    "Lanes",
    "Outbox",
    "Worker",
    "WorkerOptions",
    "checked_schedule",
    "delay_after",
    "is_number",
]

STANDARD: tuple[float, ...] = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Seconds before each attempt, since the one before: ten of them over three days.

Source:
    Standard Webhooks 1.0.0, "Deliverability and reliability".
"""
LONGEST_WAIT = 86400.0
"""Seconds that a receiver may ask for in `Retry-After`."""


def checked_schedule(schedule: Sequence[float], jitter: float) -> tuple[float, ...]:
    """A schedule that can be kept.

    Args:
        schedule: Seconds before each attempt, since the one before; the first is 0.
        jitter: By which part of itself a delay may get longer or shorter.

    Raises:
        HookUsageError: If it cannot be.
    """
    if not isinstance(schedule, Sequence) or not all(is_number(delay) for delay in schedule):
        raise HookUsageError(f"The schedule of an Outbox is a sequence of seconds; got {schedule!r:.200}.")
    seconds = tuple(map(float, schedule))
    if not seconds or seconds[0] != 0 or any(delay < 0 for delay in seconds):
        raise HookUsageError(
            f"The schedule of an Outbox says before each attempt how many seconds to wait. It begins with 0, since the "
            f"first attempt is made at once, and none is negative; got {seconds!r}."
        )
    if not is_number(jitter) or not 0 <= jitter < 1:
        raise HookUsageError(f"The jitter of an Outbox is a part of each delay, from 0 to below 1; got {jitter!r}.")
    return seconds


def delay_after(
    schedule: Sequence[float], attempts: int, *, jitter: float = 0.0, retry_after: float | None = None
) -> float | None:
    """Seconds from a failed attempt to the next; `None` if that was the last.

    Args:
        schedule: Seconds before each attempt.
        attempts: How many were made, with the one that failed.
        jitter: By which part of itself the delay may get longer or shorter.
        retry_after: What the receiver asked for; it is never asked sooner than that, but for a wait of more than a day.
    """
    if attempts >= len(schedule):
        return None
    delay = schedule[attempts] * random.uniform(1 - jitter, 1 + jitter)
    return max(delay, min(retry_after or 0.0, LONGEST_WAIT))


def is_number(given: object) -> TypeGuard[float]:
    """Whether it is a number that one can count with."""
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)


class Held:
    """A run that this worker has claimed.

    Args:
        run: Deliveries of one stream, in order.
        until: When the claim ends, by the clock of the event loop.
    """

    def __init__(self, run: Run, until: float) -> None:
        self.run = run
        self.until = until
        self.outcomes: list[Outcome] = []

    @property
    def seq(self) -> int:
        """The row that carries the claim."""
        return self.run[0].seq


class Lane:
    """What is held for one endpoint."""

    def __init__(self) -> None:
        self.queue: deque[Held] = deque()
        self.under_way = 0
        self.failures = 0


class Lanes:
    """What is held for all endpoints, so that none takes more than its share.

    Args:
        per_endpoint: How many deliveries are under way at one endpoint at most.
        concurrency: How many are under way at all.
        enough: After how many failures an endpoint gets one at a time.
    """

    def __init__(self, *, per_endpoint: int, concurrency: int, enough: int) -> None:
        self._per_endpoint, self._concurrency, self._enough = per_endpoint, concurrency, enough
        self._lanes: dict[str, Lane] = {}
        self.under_way = 0

    @property
    def room(self) -> int:
        """How many more could be under way."""
        return self._concurrency - self.under_way

    def busy(self) -> list[str]:
        """Endpoints for which enough is held already."""
        return [url for url, lane in self._lanes.items() if len(lane.queue) >= self._share(lane)]

    def add(self, held: Sequence[Held]) -> None:
        """Hold what was claimed."""
        for each in held:
            lane = self._lanes.setdefault(each.run[0].endpoint, Lane())
            lane.failures = each.run[0].failures if not lane.under_way else max(lane.failures, each.run[0].failures)
            lane.queue.append(each)

    def startable(self) -> Iterator[Held]:
        """Take out what can be begun now; `ended` has to be called of each."""
        for lane in self._lanes.values():
            while lane.queue and lane.under_way < self._share(lane) and self.under_way < self._concurrency:
                lane.under_way += 1
                self.under_way += 1
                yield lane.queue.popleft()

    def ended(self, held: Held) -> list[Held]:
        """One that was begun is over.

        Returns:
            What is to be given back, since the endpoint is left alone from now on.
        """
        url = held.run[0].endpoint
        lane = self._lanes[url]
        lane.under_way -= 1
        self.under_way -= 1
        for outcome in held.outcomes:
            if outcome.status == "delivered":
                lane.failures = 0
            elif outcome.failed:
                lane.failures += 1
        back = []
        gone = any(outcome.gone for outcome in held.outcomes)
        if gone or (held.outcomes and lane.failures >= self._enough):
            back, lane.queue = list(lane.queue), deque()
        if not lane.under_way and not lane.queue:
            del self._lanes[url]
        return back

    def take_all(self) -> list[Held]:
        """Take out of the queues what was not begun."""
        taken = [held for lane in self._lanes.values() for held in lane.queue]
        for lane in self._lanes.values():
            lane.queue.clear()
        return taken

    def _share(self, lane: Lane) -> int:
        return 1 if lane.failures >= self._enough else self._per_endpoint


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


COMPLAINTS_EVERY = 60.0
WITHOUT_KEY, WITHOUT_STORE = 5.0, 1.0
"""Seconds until a delivery is looked at again whose signing secret cannot be opened here, or could not be read."""


class Outbox:
    """Delivers webhooks from a store, so that none is lost: at least once, signed, in order per operation and address.

    What is published is handed over once it is written. `async with outbox:` works on what is due in the background;
    `await outbox.run()` does so in the foreground. As many processes as there are may work on one store. A delivery
    that is not taken is tried again by the schedule, always with the same id; then it is given up, and kept.

    Args:
        store: Where deliveries are kept.
        keys: Keys that hooks may name, and the unnamed one; those of the environment unless given.
        master_key: Opens the secrets of endpoints in the store, which sign for hooks of tenants; that of
            `HOOKLINE_MASTER_KEY` unless given. Without one, `keys` sign for all endpoints; but if a server works on the
            store, deliveries of tenants' hooks wait for a process that has its master key.
        allow_private: Networks (`"10.0.0.0/8"`) that may be reached although they are not public.
        schedule: Seconds before each attempt, since the one before.
        jitter: By which part of itself each of these gets longer or shorter.
        per_endpoint: Deliveries under way at one address at most, so that one that hangs does not slow the others.
        concurrency: Deliveries under way at all.
        lease_seconds: For how long a worker holds what it has claimed without a sign of life.
        breaker: When an endpoint that fails is left alone.
        sender: Sends in place of one made from `keys` and `allow_private`; it is closed by whoever made it.

    Raises:
        HookUsageError: If an argument cannot work.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        keys: KeyRing | None = None,
        allow_private: Iterable[str] = (),
        schedule: Sequence[float] = STANDARD,
        jitter: float = 0.1,
        per_endpoint: int = 8,
        concurrency: int = 256,
        lease_seconds: float = 60.0,
        breaker: Breaker | None = None,
        sender: Sender | None = None,
        master_key: MasterKeys | None = None,
    ) -> None:
        if not isinstance(store, SqlStore):
            raise HookUsageError(f"An Outbox keeps deliveries in a SqlStore, not in {type(store).__name__}.")
        for name, count in (("per_endpoint", per_endpoint), ("concurrency", concurrency)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise HookUsageError(f"`{name}` of an Outbox is a whole number above 0; got {count!r}.")
        if not is_number(lease_seconds) or not 0 < lease_seconds <= LONGEST_LEASE:
            raise HookUsageError(
                f"`lease_seconds` of an Outbox is above 0, and at most {LONGEST_LEASE:g}; got {lease_seconds!r}."
            )
        if breaker is not None and not isinstance(breaker, Breaker):
            raise HookUsageError(f"`breaker` of an Outbox is a Breaker; got {type(breaker).__name__}.")
        if sender is not None and not (keys is None and master_key is None):
            raise HookUsageError("Give the keys to the Sender of an Outbox, since there is one.")
        self.store = store
        self._schedule, self._jitter = checked_schedule(schedule, jitter), jitter
        self._own_sender = sender is None
        if sender is None:
            ring = KeyRing.from_environment() if keys is None else keys
            master = MasterKeys.from_environment() if master_key is None else master_key
            self.secrets: EndpointSecrets | None = EndpointSecrets(store, master, environment=ring)
            sender = Sender(ring, allow_private=allow_private, connections=max(500, concurrency), secrets=self.secrets)
        else:
            self.secrets = sender.secrets
        self._sender = sender
        self._functions = LocalFunctions()
        self._direct = InProcess(sender)
        self._names: set[str] = set()
        breaker = Breaker() if breaker is None else breaker
        self._worker = Worker(
            store,
            self._attempt,
            served=lambda: self._names,
            options=WorkerOptions(
                per_endpoint=per_endpoint,
                concurrency=concurrency,
                lease_seconds=lease_seconds,
                longest_delay=max(LONGEST_WAIT, *self._schedule, breaker.longest_pause) * (1 + jitter),
                breaker=breaker,
            ),
        )
        self._task: asyncio.Task[None] | None = None
        self._waits_since: float | None = None

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Take envelopes for delivery, in order. Once it returns they are written; an id that is known is left alone.

        Raises:
            StoreUnavailableError: If the store could not be reached; none was taken then, or all were.
            HookUsageError: If the database does not take them, such as text that is too long for it; none was taken.
        """
        rows = rows_of(envelopes)
        try:
            async with self.store.writing() as connection:
                await insert_deliveries(connection, rows, now=self.store.now_sql())
        except DBAPIError as error:
            raise HookUsageError(
                f"The database does not take these deliveries: {message_of(error.orig or error)}"
            ) from error
        self.wake()

    async def request(self, envelope: Envelope, *, timeout: float) -> ControlAnswer:
        """Ask the receiver of a control now, again if it fails at once and there is time.

        Args:
            envelope: What is asked.
            timeout: Seconds until the answer is too late.

        Raises:
            DeliveryError: If no valid answer came in time.
        """
        if is_local(envelope.hook):
            return await self._functions.call(envelope, timeout)
        return await self._direct.request(envelope, timeout=timeout)

    @asynccontextmanager
    async def serve(self, name: str, handler: ServedBy) -> AsyncIterator[None]:
        """Take what is delivered to `local://name`, while the context is open.

        What is delivered there waits in the store for a process that does.

        Raises:
            HookUsageError: If the name is taken in this process, or is none.
        """
        with self._functions.serving(name, handler):
            self._names.add(name)
            self.wake()
            try:
                yield
            finally:
                self._names.discard(name)

    def wake(self) -> None:
        """Look for what is due now, not a moment later: something was written."""
        self._worker.wake()

    async def run(self) -> None:
        """Work until cancelled. What is under way then gets a few seconds; the rest is given back."""
        ignore = self.store.when_deliveries(self.wake)
        try:
            await self._worker.run()
        finally:
            ignore()

    async def idle(self) -> None:
        """Wait until nothing is due that this process could deliver. What waits for its next attempt is not due."""
        while True:
            if self._worker.idle:
                async with self.store.reading() as connection:
                    now = (await connection.execute(select(self.store.now_sql()))).scalar_one()
                    if not await due(connection, now=now, served=self._names) and self._worker.idle:
                        return
                self.wake()
            await asyncio.sleep(SOONEST / 5)

    async def aclose(self) -> None:
        """Stop working, and let go of connections. What is not delivered stays in the store."""
        task, self._task = self._task, None
        try:
            if task is not None:
                self._worker.stop()
                await task
        finally:
            if self._own_sender:
                await self._sender.aclose()

    async def __aenter__(self) -> Outbox:
        if self._task is not None:
            raise HookUsageError("This Outbox is at work already.")
        self._task = asyncio.create_task(self.run(), name="hookline-outbox")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _attempt(self, claimed: Claimed) -> Outcome:
        """Make one attempt; whatever goes wrong becomes its outcome."""
        if claimed.refused is not None:
            return Outcome(claimed=claimed, status="dead", attempted=False, error=claimed.refused)
        began, code = monotonic(), None
        try:
            if is_local(claimed.envelope.hook):
                await self._functions.call(claimed.envelope, claimed.envelope.hook.webhook.timeout)
            else:
                code = (await self._sender.send(claimed.envelope)).status_code
        except DeliveryError as error:
            if isinstance(error.__cause__, MasterKeyError | StoreUnavailableError | TimeoutError):
                # Whose secret cannot be had now is not to blame, and nothing goes out without it.
                if self._waits_since is None or monotonic() - self._waits_since > COMPLAINTS_EVERY:
                    self._waits_since = monotonic()
                    logger.error("Deliveries wait for their signing secrets: %s", error.problem)
                why = storable(f"waits for its signing secret: {error.problem}")
                delay = WITHOUT_KEY if isinstance(error.__cause__, MasterKeyError) else WITHOUT_STORE
                return Outcome(claimed=claimed, status="pending", attempted=False, delay=delay, error=why)
            return self._failed(claimed, error, began)
        except Exception as error:
            logger.exception("Delivery %s failed in an unexpected way", claimed.envelope.id)
            problem = DeliveryError(claimed.envelope.hook.id, "network_error", type(error).__name__)
            return self._failed(claimed, problem, began)
        took = (monotonic() - began) * 1e3
        return Outcome(claimed=claimed, status="delivered", began=began, duration_ms=took, status_code=code)

    def _failed(self, claimed: Claimed, error: DeliveryError, began: float) -> Outcome:
        # Functions of the process raise what they like; one odd value would keep all outcomes from being written.
        wait = min(error.retry_after, LONGEST_WAIT) if is_number(error.retry_after) else None
        code = error.status_code if isinstance(error.status_code, int) and 0 <= error.status_code < 1000 else None
        gone = error.code == "gone"
        delay = delay_after(self._schedule, claimed.attempts + 1, jitter=self._jitter, retry_after=wait)
        return Outcome(
            claimed=claimed,
            status="dead" if gone or delay is None else "pending",
            delay=delay or 0.0,
            began=began,
            duration_ms=(monotonic() - began) * 1e3,
            status_code=code,
            error=storable(f"{error.code}: {error.problem}"),
            failed=error.code not in ("configuration", "blocked"),
            pause=wait,
            gone=gone,
        )
