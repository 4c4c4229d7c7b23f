"""`Outbox`: deliveries that are written into a store first, and handed over from there by workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from types import TracebackType

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from hookline.delivery._endpoint_secrets import EndpointSecrets
from hookline.delivery._in_process import InProcess, LocalFunctions, is_local
from hookline.delivery._keys import KeyRing
from hookline.delivery._master_keys import MasterKeyError, MasterKeys
from hookline.delivery._outbox_worker import SOONEST, Worker, WorkerOptions
from hookline.delivery._schedule import LONGEST_WAIT, STANDARD, checked_schedule, delay_after, is_number
from hookline.delivery._sender import Sender
from hookline.errors import DeliveryError, HookUsageError, StoreUnavailableError, message_of
from hookline.store import LONGEST_LEASE, Breaker, Claimed, Outcome, SqlStore, due, insert_deliveries, rows_of, storable
from hookline.webhooks import ControlAnswer, Envelope, ServedBy

__all__ = ["Outbox"]

logger = logging.getLogger("hookline")

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
