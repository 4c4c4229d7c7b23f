"""`DeliveryLog`: list, retry, replay and delete the deliveries of a store, and enable or disable endpoints."""

from collections.abc import Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Select, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.store._circuit_breaker import disable_endpoint, enable_endpoint, reopen_endpoints
from hookline.store._database import read_clock
from hookline.store._deliveries import promote_waiting
from hookline.store._partitions import DAY, GIVEN_UP, KEPT, day_of, drop_days, move_rows
from hookline.store._reading import Page, check_limit, cursor_error
from hookline.store._retention import give_way
from hookline.store._tables import attempts, deliveries, endpoints
from hookline.store._topics import DELIVERIES

if TYPE_CHECKING:
    from hookline.store._store import SqlStore

__all__ = ["DeliveryFilter", "DeliveryLog", "DeliveryStatus", "StoredAttempt", "StoredDelivery", "StoredEndpoint"]

DeliveryStatus: TypeAlias = Literal["waiting", "pending", "delivered", "dead"]

BATCH_SIZE = 500
"""Deliveries that are changed in one transaction at most, so that other transactions do not wait for long."""


class DeliveryFilter(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A filter of deliveries: a delivery matches if it matches every attribute that is set.

    Attributes:
        tenant_id: Only deliveries of this tenant; `""` is the system.
        status: `"waiting"` behind another delivery, `"pending"`, `"delivered"`, or `"dead"`: given up.
        endpoint: Only deliveries to this address.
        operation_id: Only deliveries of this operation.
        hook_id: Only deliveries of this hook.
        owner_id: Only deliveries of hooks of this tenant; `""` is the system.
        since: Only deliveries created at this time or later, in unix seconds.
        until: Only deliveries created before this time, in unix seconds.
    """

    tenant_id: str | None = None
    status: DeliveryStatus | None = None
    endpoint: str | None = None
    operation_id: str | None = None
    hook_id: str | None = None
    owner_id: str | None = None
    since: float | None = None
    until: float | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield the SQL conditions of the filter."""
        for name in ("tenant_id", "status", "endpoint", "operation_id", "hook_id", "owner_id"):
            if (value := getattr(self, name)) is not None:
                yield deliveries.c[name] == value
        if self.since is not None:
            yield deliveries.c.created_at >= self.since
        if self.until is not None:
            yield deliveries.c.created_at < self.until


class StoredDelivery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A delivery in the store.

    Attributes:
        id: The id, the same in every attempt; receivers see it as `webhook-id`.
        operation_id: The operation whose event it delivers.
        number: The number of the event in its operation.
        tenant_id: The tenant of the operation.
        hook_id: The hook that delivers.
        owner_id: The tenant that owns the hook; `""` is the system.
        type: The type of the event.
        endpoint: The address of the receiver.
        status: `"waiting"` behind another delivery, `"pending"`, `"delivered"`, or `"dead"`: given up.
        attempts: Number of attempts since it was created or last replayed.
        next_attempt_at: When the next attempt is due, in unix seconds; while a worker holds the delivery, when the
            worker's claim ends.
        claimed_by: The worker that holds the delivery.
        last_status_code: The HTTP status of the last attempt.
        last_error: The error of the last attempt.
        created_at: When it was created, in unix seconds.
        settled_at: When it was delivered or given up, in unix seconds.
    """

    id: str
    operation_id: str
    number: int | None
    tenant_id: str
    hook_id: str
    owner_id: str
    type: str
    endpoint: str
    status: DeliveryStatus
    attempts: int
    next_attempt_at: float
    claimed_by: str | None
    last_status_code: int | None
    last_error: str | None
    created_at: float
    settled_at: float | None


class StoredAttempt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An attempt at a delivery.

    Attributes:
        nth: The number of the attempt, from 1; a replay counts from 1 again.
        started_at: When the attempt started, in unix seconds.
        duration_ms: How long the attempt took.
        status_code: The HTTP status of the receiver's answer, if there was one.
        error: The error; `None` if the receiver accepted the delivery.
        worker: The process that made the attempt.
    """

    nth: int
    started_at: float
    duration_ms: float
    status_code: int | None
    error: str | None
    worker: str


class StoredEndpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An endpoint that is failing, has failed before, or is disabled.

    Attributes:
        tenant_id: The tenant that owns the endpoint.
        url: The URL of the endpoint.
        failures: Consecutive failures until now.
        closed_until: Until when deliveries to it pause, in unix seconds.
        disabled_at: When it was disabled, in unix seconds; `None` if it is enabled.
        reason: Why it was disabled.
    """

    tenant_id: str
    url: str
    failures: int
    closed_until: float | None
    disabled_at: float | None
    reason: str | None


_dead = (deliveries.c.status == "dead") & (deliveries.c.day <= GIVEN_UP)
_shown = tuple(deliveries.c[name] for name in StoredDelivery.__struct_fields__)
_attempt = tuple(attempts.c[name] for name in StoredAttempt.__struct_fields__)
_endpoint = tuple(endpoints.c[name] for name in StoredEndpoint.__struct_fields__)


class DeliveryLog:
    """Administers the deliveries of a store, whether or not a worker is running.

    Args:
        store: The store.
    """

    def __init__(self, store: "SqlStore") -> None:
        self._store = store

    async def page(
        self, which: DeliveryFilter | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> Page[StoredDelivery]:
        """Read a page of deliveries, newest first.

        Args:
            which: Only deliveries that match this filter; all by default.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of deliveries at most, up to 1000.

        Raises:
            HookUsageError: If the cursor or the limit is invalid.
        """
        check_limit(limit)
        query = select(deliveries.c.seq, *_shown).where(*(which or DeliveryFilter()).conditions())
        if cursor is not None:
            query = query.where(deliveries.c.seq < _parse_cursor(cursor))
        rows = await self._store.read_rows(query.order_by(deliveries.c.seq.desc()).limit(limit + 1))
        found = [StoredDelivery(**dict(zip(StoredDelivery.__struct_fields__, row[1:], strict=True))) for row in rows]
        return Page(items=found[:limit], cursor=str(rows[limit - 1].seq) if len(rows) > limit else None)

    async def delivery(self, id: str) -> StoredDelivery | None:  # noqa: A002
        """Read a delivery; `None` if there is no delivery of that id."""
        row = await self._read_first(select(*_shown).where(deliveries.c.id == id))
        return None if row is None else StoredDelivery(**row._mapping)

    async def payload(self, id: str) -> bytes | None:  # noqa: A002
        """Read the JSON body of a delivery; `None` if there is no delivery of that id."""
        row = await self._read_first(select(deliveries.c.payload).where(deliveries.c.id == id))
        return None if row is None else bytes(row.payload)

    async def attempts(self, id: str) -> list[StoredAttempt]:  # noqa: A002
        """List the attempts at a delivery, in order."""
        query = select(*_attempt).where(attempts.c.delivery_id == id).order_by(attempts.c.seq)
        return [StoredAttempt(**row._mapping) for row in await self._store.read_rows(query)]

    async def counts(
        self, tenant_id: str | None = None, *, statuses: Sequence[DeliveryStatus] | None = None
    ) -> dict[DeliveryStatus, int]:
        """Count the deliveries of each status.

        Args:
            tenant_id: Only deliveries of this tenant.
            statuses: Only deliveries with one of these statuses; the counts of the others are 0.
        """
        query = select(deliveries.c.status, func.count()).group_by(deliveries.c.status)
        if statuses is not None:
            query = query.where(deliveries.c.status.in_(statuses))
        if tenant_id is not None:
            query = query.where(deliveries.c.tenant_id == tenant_id)
        counts: dict[DeliveryStatus, int] = {"waiting": 0, "pending": 0, "delivered": 0, "dead": 0}
        return counts | {row[0]: row[1] for row in await self._store.read_rows(query)}

    async def retry(self, ids: Sequence[str], *, tenant_id: str | None = None) -> int:
        """Retry deliveries now: those that wait for their next attempt, and those that were given up.

        Endpoints whose deliveries pause are tried again at once; disabled endpoints are not.

        Args:
            ids: The ids of the deliveries.
            tenant_id: Only deliveries of this tenant.

        Returns:
            The number of deliveries that are retried, without those that were delivered or that a worker is attempting.
        """
        if isinstance(ids, str):
            raise HookUsageError("`ids` is a list of ids of deliveries, not one string.")
        count = 0
        for start in range(0, len(ids), BATCH_SIZE):
            these = deliveries.c.id.in_(list(ids[start : start + BATCH_SIZE]))
            which = these if tenant_id is None else these & (deliveries.c.tenant_id == tenant_id)

            async def requeue(connection: AsyncConnection, which: ColumnElement[bool] = which) -> int:
                now = await read_clock(connection)
                free = (deliveries.c.status == "pending") & deliveries.c.claimed_by.is_(None)
                soon = update(deliveries).where(deliveries.c.day == KEPT, which, free).values(next_attempt_at=now)
                found = await connection.execute(soon.returning(deliveries.c.tenant_id, deliveries.c.endpoint))
                places = [(row.tenant_id, row.endpoint) for row in found]
                await reopen_endpoints(connection, places)
                return len(places) + await _requeue(connection, which & _dead, now=now)

            count += await self._store.write(requeue)
            self._store.wakeups.wake(DELIVERIES)
        return count

    async def replay(self, which: DeliveryFilter) -> int:
        """Deliver again what was delivered or given up, with the same ids and in the old order.

        Args:
            which: A filter; deliveries with the status "waiting" or "pending" are left out in any case.

        Returns:
            The number of replayed deliveries.
        """
        settled = deliveries.c.status.in_(("delivered", "dead"))
        where = [*which.conditions(), settled]
        last, count = 0, 0
        async with self._store.reading() as connection:
            # Deliveries that this replay settles meanwhile are left out, or it would never end.
            end = (await connection.execute(select(func.max(deliveries.c.seq)).where(*where))).scalar() or 0
        while last < end:
            async with self._store.writing() as connection:
                some = select(deliveries.c.seq).where(*where, deliveries.c.seq > last, deliveries.c.seq <= end)
                seqs = list((await connection.execute(some.order_by(deliveries.c.seq).limit(BATCH_SIZE))).scalars())
                if not seqs:
                    break
                now = await read_clock(connection)
                count += await _requeue(connection, deliveries.c.seq.in_(seqs) & settled, now=now)
                last = seqs[-1]
            self._store.wakeups.wake(DELIVERIES)
        return count

    async def prune(self, older_than: float, *, dead_too: bool = False) -> int:
        """Delete deliveries that were delivered long ago, with their attempts, in small steps.

        Deliveries go on meanwhile, and several processes may do this at once. PostgreSQL drops those of a whole day at
        a time; so if `older_than` is a day or more, a delivery is deleted up to a day later there.

        Args:
            older_than: Seconds since the deliveries were settled.
            dead_too: Whether to delete deliveries that were given up, too.

        Returns:
            The number of deleted deliveries. For a large day that PostgreSQL drops, it is an estimate.
        """
        statuses = ("delivered", "dead") if dead_too else ("delivered",)
        now = await self._store.now()
        first_kept = day_of(now - max(0.0, older_than))
        count = await drop_days(self._store, ("deliveries", "attempts"), before=first_kept)
        which: list[ColumnElement[bool]] = [deliveries.c.status.in_(statuses)]
        if self._store.dialect == "postgresql" and older_than >= DAY:
            # The last of these days waits until it is dropped; a clock that was ahead has made later days.
            day = deliveries.c.day
            which.append(or_(day < first_kept, day > day_of(now)))
        while True:
            began = monotonic()
            async with self._store.writing() as connection:
                old = deliveries.c.settled_at < self._store.now_sql() - older_than
                some = select(deliveries.c.seq, deliveries.c.id).where(*which, old)
                # Locked, on PostgreSQL: otherwise one that is replayed meanwhile would be deleted with the others.
                some = some.order_by(deliveries.c.seq).limit(BATCH_SIZE).with_for_update()
                rows = (await connection.execute(some)).all()
                if not rows:
                    return count
                await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_([row.id for row in rows])))
                await connection.execute(delete(deliveries).where(deliveries.c.seq.in_([row.seq for row in rows])))
                count += len(rows)
            await give_way(self._store.dialect, began)

    async def endpoints(self, tenant_id: str | None = None, *, owner_id: str | None = None) -> list[StoredEndpoint]:
        """List the endpoints that are failing, have failed before, or are disabled; no others are recorded.

        Args:
            tenant_id: Only endpoints of this tenant.
            owner_id: Only endpoints to which a hook of this tenant delivers.
        """
        query = select(*_endpoint).order_by(endpoints.c.tenant_id, endpoints.c.url)
        if tenant_id is not None:
            query = query.where(endpoints.c.tenant_id == tenant_id)
        if owner_id is not None:
            theirs = exists().where(
                deliveries.c.tenant_id == endpoints.c.tenant_id,
                deliveries.c.endpoint == endpoints.c.url,
                deliveries.c.owner_id == owner_id,
            )
            query = query.where(theirs)
        return [StoredEndpoint(**row._mapping) for row in await self._store.read_rows(query)]

    async def enable(self, tenant_id: str, url: str) -> bool:
        """Enable an endpoint again. Deliveries that were given up stay so until they are replayed.

        Returns:
            Whether the endpoint had failed, or was disabled.
        """
        changed = await self._store.write(partial(enable_endpoint, tenant_id=tenant_id, url=url))
        self._store.wakeups.wake(DELIVERIES)
        return changed

    async def disable(self, tenant_id: str, url: str, reason: str) -> None:
        """Disable an endpoint: its pending and future deliveries are given up.

        Args:
            tenant_id: The tenant that owns the endpoint.
            url: The URL of the endpoint.
            reason: Why, to be shown to people.
        """
        async with self._store.writing() as connection:
            now = await read_clock(connection)
            await disable_endpoint(connection, tenant_id, url, reason=reason, now=now)
        self._store.wakeups.wake(DELIVERIES)

    async def _read_first(self, query: Select[Any]) -> Any:
        return next(iter(await self._store.read_rows(query)), None)


async def _requeue(connection: AsyncConnection, which: ColumnElement[bool], *, now: float) -> int:
    """Reset settled deliveries as if they had just been created."""
    new = {"status": "waiting", "attempts": 0, "next_attempt_at": now, "settled_at": None}
    column = deliveries.c
    columns = (column.stream, column.tenant_id, column.endpoint)
    if connection.dialect.name == "postgresql":
        moved = move_rows(deliveries, which, lambda _: {**new, "day": KEPT}).returning(*columns, column.id)
        rows: Sequence[Any] = (await connection.execute(moved)).all()
        theirs = attempts.c.delivery_id.in_([row.id for row in rows]) & (attempts.c.day != KEPT)
        await connection.execute(move_rows(attempts, theirs, lambda _: {"day": KEPT}))
    else:
        rows = (await connection.execute(update(deliveries).where(which).values(new).returning(*columns))).all()
    await promote_waiting(connection, {row.stream for row in rows}, now=now)
    await reopen_endpoints(connection, [(row.tenant_id, row.endpoint) for row in rows])
    return len(rows)


def _parse_cursor(cursor: str) -> int:
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 19:
        return int(cursor)
    raise cursor_error()
