"""`Outbox`: write deliveries into a store first, and send them from there, with retries, in background workers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from types import TracebackType

import anyio
import msgspec
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.delivery._endpoint_secrets import EndpointSecrets
from hookline.delivery._in_process import InProcess, LocalFunctions, is_local
from hookline.delivery._master_keys import MasterKeyError, MasterKeys
from hookline.delivery._retries import (
    LONGEST_WAIT,
    STANDARD_SCHEDULE,
    check_schedule,
    delay_before_retry,
    is_finite_number,
)
from hookline.delivery._sender import Sender
from hookline.delivery._signing import KeyRing
from hookline.errors import DeliveryError, HookUsageError, StoreUnavailableError, message_of
from hookline.store import (
    DELIVERIES,
    LONGEST_LEASE,
    Breaker,
    ClaimedDelivery,
    DeliveryOutcome,
    DeliveryRun,
    SqlStore,
    build_delivery_rows,
    claim_deliveries,
    correct_due_times,
    extend_claims,
    has_due_deliveries,
    insert_deliveries,
    read_clock,
    read_next_due,
    release_claims,
    release_uncertain_claims,
    replace_unstorable,
    settle_deliveries,
)
from hookline.webhooks import ControlAnswer, Envelope, ServedBy

__all__ = [
    "ClaimedBatch",
    "DeliveryWorker",
    "DeliveryWorkerOptions",
    "EndpointQueues",
    "Outbox",
]


class ClaimedBatch:
    """Consecutive deliveries of one stream that this worker has claimed together.

    Args:
        deliveries: The deliveries, in the order of their stream.
        until: The end of the claim, by the clock of the event loop.
    """

    def __init__(self, deliveries: DeliveryRun, until: float) -> None:
        self.deliveries = deliveries
        self.until = until
        self.outcomes: list[DeliveryOutcome] = []

    @property
    def seq(self) -> int:
        """Sequence number of the row that carries the claim."""
        return self.deliveries[0].seq


class EndpointQueue:
    """Claimed batches for one endpoint: those that wait, and the number of those under way."""

    def __init__(self) -> None:
        self.waiting: deque[ClaimedBatch] = deque()
        self.under_way = 0
        self.failures = 0


class EndpointQueues:
    """Claimed batches of all endpoints, with a limit of parallel deliveries for each endpoint and for all together.

    Args:
        per_endpoint: Deliveries under way at one endpoint at most.
        concurrency: Deliveries under way at all endpoints together at most.
        enough: Consecutive failures after which an endpoint gets one delivery at a time.
    """

    def __init__(self, *, per_endpoint: int, concurrency: int, enough: int) -> None:
        self._per_endpoint, self._concurrency, self._enough = per_endpoint, concurrency, enough
        self._queues: dict[str, EndpointQueue] = {}
        self.under_way = 0

    @property
    def free_slots(self) -> int:
        """Number of further batches that may start now."""
        return self._concurrency - self.under_way

    def saturated_endpoints(self) -> list[str]:
        """Return the endpoints for which no further batches should be claimed."""
        return [url for url, queue in self._queues.items() if len(queue.waiting) >= self._parallel_limit(queue)]

    def add(self, batches: Sequence[ClaimedBatch]) -> None:
        """Add claimed batches to the queues of their endpoints."""
        for batch in batches:
            first = batch.deliveries[0]
            queue = self._queues.setdefault(first.endpoint, EndpointQueue())
            queue.failures = first.failures if not queue.under_way else max(queue.failures, first.failures)
            queue.waiting.append(batch)

    def take_startable(self) -> Iterator[ClaimedBatch]:
        """Remove and yield the batches that may start now. Call `finish` for each when it ends."""
        for queue in self._queues.values():
            while (
                queue.waiting and queue.under_way < self._parallel_limit(queue) and self.under_way < self._concurrency
            ):
                queue.under_way += 1
                self.under_way += 1
                yield queue.waiting.popleft()

    def finish(self, batch: ClaimedBatch) -> list[ClaimedBatch]:
        """Record the outcomes of a batch that was started.

        Returns:
            The endpoint's waiting batches if its circuit breaker has opened; their claims have to be released.
        """
        url = batch.deliveries[0].endpoint
        queue = self._queues[url]
        queue.under_way -= 1
        self.under_way -= 1
        for outcome in batch.outcomes:
            if outcome.status == "delivered":
                queue.failures = 0
            elif outcome.failed:
                queue.failures += 1
        back = []
        gone = any(outcome.gone for outcome in batch.outcomes)
        if gone or (batch.outcomes and queue.failures >= self._enough):
            back, queue.waiting = list(queue.waiting), deque()
        if not queue.under_way and not queue.waiting:
            del self._queues[url]
        return back

    def take_waiting(self) -> list[ClaimedBatch]:
        """Remove and return all batches that have not started."""
        taken = [batch for queue in self._queues.values() for batch in queue.waiting]
        for queue in self._queues.values():
            queue.waiting.clear()
        return taken

    def _parallel_limit(self, queue: EndpointQueue) -> int:
        return 1 if queue.failures >= self._enough else self._per_endpoint


logger = logging.getLogger("hookline")

SOONEST, LATEST = 0.05, 1.0
"""Shortest and longest pause, in seconds, between two queries while deliveries are due that cannot be claimed."""
LONGEST_OUTAGE_PAUSE = 5.0
"""Longest pause, in seconds, between two tries to reach a store that is down."""
GRACE = 5.0
"""Seconds that deliveries under way may still take after the worker is told to stop."""
LONGEST_RUN = 1.0
"""Seconds after which a batch is written back, although it has deliveries left: after a crash, everything that was not
written back is delivered again."""
RUN = 16
"""Deliveries of one stream that are claimed together at most."""
AHEAD = 4
"""Batches claimed for one endpoint per delivery that may be under way there, so that the next ones are at hand."""


class DeliveryWorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and timing of a delivery worker.

    Attributes:
        per_endpoint: Deliveries under way at one endpoint at most.
        concurrency: Deliveries under way at all.
        lease_seconds: Seconds until a claim ends unless it is renewed.
        longest_delay: Longest time, in seconds, that a delivery may have to wait for its next attempt.
        breaker: When deliveries to a failing endpoint pause.
    """

    per_endpoint: int = 8
    concurrency: int = 256
    lease_seconds: float = 60.0
    longest_delay: float = 90_000.0
    breaker: Breaker = Breaker()


class DeliveryWorker:
    """Claims due deliveries from a store, attempts them, and writes their outcomes.

    Args:
        store: The store that holds the deliveries.
        attempt: Makes one attempt.
        served: Returns the `local://` names that this process serves.
        options: Limits and timing.
    """

    def __init__(
        self,
        store: SqlStore,
        attempt: Callable[[ClaimedDelivery], Awaitable[DeliveryOutcome]],
        *,
        served: Callable[[], Collection[str]],
        options: DeliveryWorkerOptions,
    ) -> None:
        self._store, self._attempt, self._served, self._options = store, attempt, served, options
        self._queues = EndpointQueues(
            per_endpoint=options.per_endpoint, concurrency=options.concurrency, enough=options.breaker.failures
        )
        self._batches: dict[int, ClaimedBatch] = {}
        self._finished: list[ClaimedBatch] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._should_claim = True
        self._claiming = False
        self._stopping = False
        self._pause = SOONEST
        self._next_due: float | None = None
        """When (by the clock of the event loop) the next delivery falls due, as far as the last query knows."""
        self._outage: float | None = None
        self._renewed_at = 0.0
        self._uncertain_ends: list[float] = []
        """Ends of claims whose commit failed in such a way that they may have been written all the same."""

    def wake(self) -> None:
        """Query for due deliveries now, since new ones may have been written."""
        self._should_claim = True
        self._wake.set()

    def stop(self) -> None:
        """Stop claiming. `deliveries` returns once the deliveries under way have ended and the rest is released."""
        self._stopping = True
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether the worker holds no claim, and is not claiming."""
        return not (self._batches or self._claiming or self._uncertain_ends)

    async def run(self) -> None:
        """Deliver until stopped or cancelled."""
        try:
            while not self._stopping:
                self._wake.clear()
                await self._cycle()
                self._start_batches()
                await self._wait_for_work()
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish()

    async def _cycle(self) -> None:
        """Write the outcomes of finished batches and claim new ones, in one transaction."""
        ended, should_claim = self._finished, self._should_claim and self._queues.free_slots > 0 and not self._stopping
        renew = asyncio.get_running_loop().time() - self._renewed_at > self._options.lease_seconds / 3
        if not (ended or should_claim or renew):
            return
        self._finished, self._should_claim = [], self._should_claim and not should_claim
        self._claiming = True
        uncertain_ends = self._uncertain_ends.copy()
        try:
            claimed = await self._settle_and_claim(
                ended, should_claim=should_claim, renew=renew, uncertain_ends=uncertain_ends
            )
        except (StoreUnavailableError, SQLAlchemyError) as error:
            self._finished = [*ended, *self._finished]
            self._should_claim, self._claiming, self._uncertain_ends = True, False, uncertain_ends
            self._note_outage(error)
            return
        except BaseException:
            self._finished, self._claiming, self._uncertain_ends = [*ended, *self._finished], False, uncertain_ends
            raise
        self._uncertain_ends = []
        self._note_recovery()
        for batch in ended:
            self._batches.pop(batch.seq, None)
            log_dead_deliveries(batch)
        self._enqueue(claimed)
        self._claiming = False
        if claimed or ended:  # what has ended makes place at its endpoint, and its stream goes on
            self._should_claim = True
        if claimed or any(outcome.status != "pending" for batch in ended for outcome in batch.outcomes):
            self._pause = SOONEST

    def _enqueue(self, claimed: list[ClaimedBatch]) -> None:
        new = []
        for batch in claimed:
            if batch.seq in self._batches:
                # The claim had run out while the store was down, and no other worker took it.
                self._batches[batch.seq].until = batch.until
            else:
                self._batches[batch.seq] = batch
                new.append(batch)
        self._queues.add(new)

    async def _settle_and_claim(
        self, ended: list[ClaimedBatch], *, should_claim: bool, renew: bool, uncertain_ends: list[float]
    ) -> list[ClaimedBatch]:
        """Write outcomes, renew claims, and claim new batches, in one transaction.

        Args:
            ended: Batches that have ended.
            should_claim: Whether to claim new batches.
            renew: Whether to renew the claims that are held.
            uncertain_ends: Ends of earlier claims that may or may not have been committed. The end of the new claim is
                added, for the case that this commit fails.
        """
        options, worker, served = self._options, self._store.worker_id, self._served()
        loop = asyncio.get_running_loop()
        held, busy = set(self._batches), self._queues.saturated_endpoints()

        async def settle_and_claim(
            connection: AsyncConnection,
        ) -> tuple[float, list[DeliveryRun], float | None, set[int]]:
            began = loop.time()
            now = await read_clock(connection)
            outcomes = [outcome for batch in ended for outcome in batch.outcomes]
            changing = {batch.seq for batch in ended} | (held if renew else set())
            await settle_deliveries(
                connection, outcomes, now=now, worker=worker, breaker=options.breaker, others=changing
            )
            if uncertain_ends:
                await release_uncertain_claims(connection, uncertain_ends, kept=held, now=now, worker=worker)
            untried = [batch.seq for batch in ended if not batch.outcomes]
            if untried:
                await release_claims(connection, untried, now=now, worker=worker)
            lost: set[int] = set()
            if renew:
                seqs = held - {batch.seq for batch in ended}
                kept = await extend_claims(
                    connection, seqs, now=now, worker=worker, lease_seconds=options.lease_seconds
                )
                lost = seqs - kept
                await correct_due_times(connection, now=now, longest_delay=options.longest_delay)
            runs: list[DeliveryRun] = []
            due = None
            if should_claim:
                uncertain_ends.append(now + options.lease_seconds)
                runs = await claim_deliveries(
                    connection,
                    now=now,
                    worker=worker,
                    lease_seconds=options.lease_seconds,
                    limit=options.concurrency,
                    each=options.per_endpoint * AHEAD,
                    longest=RUN,
                    busy=busy,
                    served=served,
                )
                if not runs:
                    due = await read_next_due(connection, now=now, busy=busy, served=served)
            return began, runs, due, lost

        began, runs, due, lost = await self._store.write(settle_and_claim)
        if should_claim:
            self._next_due = None if due is None else began + due
        if renew:
            self._renewed_at = began
            for seq, batch in self._batches.items():
                batch.until = began if seq in lost else began + options.lease_seconds
        return [ClaimedBatch(run, began + options.lease_seconds) for run in runs]

    def _start_batches(self) -> None:
        """Start the batches that the limits allow. They never wait for the database, which may be slow."""
        if self._stopping:
            return
        for batch in self._queues.take_startable():
            task = asyncio.create_task(self._deliver(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, batch: ClaimedBatch) -> None:
        """Attempt the deliveries of a batch one after another, until one fails."""
        clock = asyncio.get_running_loop().time
        enough = clock() + LONGEST_RUN
        try:
            for claimed in batch.deliveries:
                if clock() >= batch.until or (batch.outcomes and (self._stopping or clock() > enough)):
                    break
                outcome = await self._attempt(claimed)
                batch.outcomes.append(outcome)
                if outcome.status == "pending" or outcome.gone:
                    break
        finally:
            self._finished += [batch, *self._queues.finish(batch)]
            self._wake.set()
            self._start_batches()

    async def _wait_for_work(self) -> None:
        """Wait until a batch has ended, a delivery was written or falls due, or claims have to be renewed."""
        if self._outage is not None:
            await asyncio.sleep(self._outage)
            return
        if self._should_claim and self._queues.free_slots > 0:
            await asyncio.sleep(0)
            return
        now = asyncio.get_running_loop().time()
        renewal = self._renewed_at + self._options.lease_seconds / 3 if self._batches else math.inf
        due = math.inf
        if self._next_due is not None:
            due = self._next_due
            if due <= now:  # it was due already when nothing could be claimed, so that another worker has locked it
                due, self._pause = now + self._pause, min(self._pause * 2, LATEST)
        until = min(renewal, due)
        try:
            async with asyncio.timeout_at(until if until < math.inf else None):
                await self._wake.wait()
        except TimeoutError:
            self._should_claim = True

    async def _finish(self) -> None:
        """Wait for the deliveries under way, and release the claims on all others."""
        self._stopping = True
        self._finished += self._queues.take_waiting()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(3):
            if not self._finished:
                break
            await self._cycle()
            if self._outage is not None:
                await asyncio.sleep(SOONEST)
        if self._finished:
            logger.warning("%d claims could not be released; they expire by themselves", len(self._finished))
        self._finished, self._batches = [], {}
        self._stopping = False

    def _note_outage(self, error: Exception) -> None:
        if self._outage is None:
            logger.warning("Deliveries stop until the store can be reached: %s", message_of(error))
        self._outage = min((self._outage or SOONEST / 2) * 2, LONGEST_OUTAGE_PAUSE)

    def _note_recovery(self) -> None:
        if self._outage is not None:
            logger.warning("The store can be reached again; deliveries continue")
        self._outage = None


def log_dead_deliveries(batch: ClaimedBatch) -> None:
    """Log each delivery of a batch that was given up."""
    for outcome in batch.outcomes:
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


REPORT_SECONDS = 60.0
"""Seconds between two log records about deliveries that wait for their signing secrets."""
WITHOUT_KEY, WITHOUT_STORE = 5.0, 1.0
"""Seconds until the next try of a delivery whose signing secret cannot be decrypted, or could not be read."""


class Outbox:
    """Delivers webhooks from a store, so that none is lost: at least once, signed, in order per operation and address.

    A published delivery is sent once it is written. `async with outbox:` delivers in the background; `await
    outbox.run()` delivers in the foreground. Any number of processes may work on one store. A delivery that fails is
    tried again by the schedule, always with the same id; after the last attempt it is given up, and kept.

    Args:
        store: The store that holds the deliveries.
        keys: Keys that hooks may name, and the unnamed key; the keys of the environment by default.
        master_key: Decrypts the secrets of endpoints in the store, which sign for hooks of tenants; the key in
            `HOOKLINE_MASTER_KEY` by default. Without one, `keys` sign for all endpoints; but if a server works on the
            store, deliveries of tenants' hooks wait for a process that has its master key.
        allow_private: Networks (`"10.0.0.0/8"`) that may be reached although they are not public.
        schedule: Seconds to wait before each attempt, counted from the attempt before.
        jitter: Fraction by which each of these delays is randomly lengthened or shortened.
        per_endpoint: Deliveries under way at one address at most, so that one that hangs does not slow the others.
        concurrency: Deliveries under way at all addresses together at most.
        lease_seconds: Seconds after which the deliveries of a worker that has died are taken over by others.
        breaker: When deliveries to a failing endpoint pause.
        sender: Sends in place of one made from `keys` and `allow_private`; the outbox does not close it.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        keys: KeyRing | None = None,
        allow_private: Iterable[str] = (),
        schedule: Sequence[float] = STANDARD_SCHEDULE,
        jitter: float = 0.1,
        per_endpoint: int = 8,
        concurrency: int = 256,
        lease_seconds: float = 60.0,
        breaker: Breaker | None = None,
        sender: Sender | None = None,
        master_key: MasterKeys | None = None,
    ) -> None:
        if not isinstance(store, SqlStore):
            raise HookUsageError(f"An Outbox needs a SqlStore, not {type(store).__name__}.")
        for name, count in (("per_endpoint", per_endpoint), ("concurrency", concurrency)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise HookUsageError(f"`{name}` of an Outbox must be a whole number above 0; got {count!r}.")
        if not is_finite_number(lease_seconds) or not 0 < lease_seconds <= LONGEST_LEASE:
            raise HookUsageError(
                f"`lease_seconds` of an Outbox must be above 0 and at most {LONGEST_LEASE:g}; got {lease_seconds!r}."
            )
        if breaker is not None and not isinstance(breaker, Breaker):
            raise HookUsageError(f"`breaker` of an Outbox must be a Breaker; got {type(breaker).__name__}.")
        if sender is not None and not (keys is None and master_key is None):
            raise HookUsageError(
                "Pass `keys` to the Sender, not to the Outbox; with a `sender`, leave `master_key` out too."
            )
        self.store = store
        self._schedule, self._jitter = check_schedule(schedule, jitter), jitter
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
        self._worker = DeliveryWorker(
            store,
            self._attempt,
            served=lambda: self._names,
            options=DeliveryWorkerOptions(
                per_endpoint=per_endpoint,
                concurrency=concurrency,
                lease_seconds=lease_seconds,
                longest_delay=max(LONGEST_WAIT, *self._schedule, breaker.longest_pause) * (1 + jitter),
                breaker=breaker,
            ),
        )
        self._task: asyncio.Task[None] | None = None
        self._reported_at = -math.inf
        """When (by `monotonic`) it was last logged that deliveries wait for their signing secrets."""

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Write envelopes into the store for delivery, in order; an envelope whose id is stored already is skipped.

        Raises:
            StoreUnavailableError: If the store cannot be reached. Either all envelopes were written or none.
            HookUsageError: If the database refuses them, for example a text that is too long. None was written.
        """
        rows = build_delivery_rows(envelopes)
        try:
            await self.store.write(partial(insert_deliveries, rows=rows, now=self.store.now_sql()))
        except DBAPIError as error:
            raise HookUsageError(f"The database rejects these deliveries: {message_of(error.orig or error)}") from error
        self.store.wakeups.wake(DELIVERIES)

    async def request(self, envelope: Envelope, *, timeout: float) -> ControlAnswer:
        """Ask the receiver of a control for its decision; failed tries are repeated while there is time.

        Args:
            envelope: The question.
            timeout: Seconds within which the answer has to come.

        Raises:
            DeliveryError: If no valid answer came in time.
        """
        if is_local(envelope.hook):
            return await self._functions.call(envelope, timeout)
        return await self._direct.request(envelope, timeout=timeout)

    @asynccontextmanager
    async def serve(self, name: str, handler: ServedBy) -> AsyncIterator[None]:
        """Call a function with each delivery to `local://name`, while the context is open.

        Deliveries to a name that no process serves wait in the store.

        Raises:
            HookUsageError: If the name is invalid, or is served already in this process.
        """
        with self._functions.serve_name(name, handler):
            self._names.add(name)
            self.wake()
            try:
                yield
            finally:
                self._names.discard(name)

    def wake(self) -> None:
        """Query for due deliveries at once, since new ones were written."""
        self._worker.wake()

    async def run(self) -> None:
        """Deliver until cancelled. Deliveries under way then get a few seconds; the claims on others are released."""
        async with self.store.wakeups.woken(DELIVERIES, self.wake):
            await self._worker.run()

    async def idle(self) -> None:
        """Wait until this process has no due delivery left. A delivery that waits for its next attempt is not due."""
        while True:
            if self._worker.idle:
                async with self.store.reading() as connection:
                    now = await read_clock(connection)
                    if not await has_due_deliveries(connection, now=now, served=self._names) and self._worker.idle:
                        return
                self.wake()
            await asyncio.sleep(SOONEST / 5)

    async def aclose(self) -> None:
        """Stop delivering and close the connections. Undelivered envelopes stay in the store."""
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
            raise HookUsageError("This Outbox is already running.")
        self._task = asyncio.create_task(self.run(), name="hookline-outbox")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _attempt(self, claimed: ClaimedDelivery) -> DeliveryOutcome:
        """Make one attempt, and return its outcome; errors become outcomes too."""
        if claimed.refused is not None:
            return DeliveryOutcome(claimed=claimed, status="dead", attempted=False, error=claimed.refused)
        began, code = monotonic(), None
        local = is_local(claimed.envelope.hook)
        try:
            if local:
                await self._functions.call(claimed.envelope, claimed.envelope.hook.webhook.timeout)
            else:
                code = (await self._sender.send(claimed.envelope)).status_code
        except DeliveryError as error:
            # A function of this process may raise the same errors as the reading of a secret; those are failures.
            if not local and isinstance(error.__cause__, MasterKeyError | StoreUnavailableError | TimeoutError):
                return self._unsigned_outcome(claimed, error)
            return self._failed_outcome(claimed, error, began)
        except Exception as error:
            logger.exception("Delivery %s failed in an unexpected way", claimed.envelope.id)
            problem = DeliveryError(claimed.envelope.hook.id, "network_error", type(error).__name__)
            return self._failed_outcome(claimed, problem, began)
        took = (monotonic() - began) * 1e3
        return DeliveryOutcome(claimed=claimed, status="delivered", began=began, duration_ms=took, status_code=code)

    def _unsigned_outcome(self, claimed: ClaimedDelivery, error: DeliveryError) -> DeliveryOutcome:
        """Postpone a delivery that cannot be signed. The receiver is not to blame, so no attempt is counted."""
        if monotonic() - self._reported_at > REPORT_SECONDS:
            self._reported_at = monotonic()
            logger.error("Deliveries wait for their signing secrets: %s", error.problem)
        return DeliveryOutcome(
            claimed=claimed,
            status="pending",
            attempted=False,
            delay=WITHOUT_KEY if isinstance(error.__cause__, MasterKeyError) else WITHOUT_STORE,
            error=replace_unstorable(f"waits for its signing secret: {error.problem}"),
        )

    def _failed_outcome(self, claimed: ClaimedDelivery, error: DeliveryError, began: float) -> DeliveryOutcome:
        # Functions of the process may raise errors with any values; one odd value would keep the whole group of
        # outcomes from being written.
        wait = min(error.retry_after, LONGEST_WAIT) if is_finite_number(error.retry_after) else None
        code = error.status_code if isinstance(error.status_code, int) and 0 <= error.status_code < 1000 else None
        gone = error.code == "gone"
        delay = delay_before_retry(self._schedule, claimed.attempts + 1, jitter=self._jitter, retry_after=wait)
        return DeliveryOutcome(
            claimed=claimed,
            status="dead" if gone or delay is None else "pending",
            delay=delay or 0.0,
            began=began,
            duration_ms=(monotonic() - began) * 1e3,
            status_code=code,
            error=replace_unstorable(f"{error.code}: {error.problem}"),
            failed=error.code not in ("configuration", "blocked"),
            pause=wait,
            gone=gone,
        )
