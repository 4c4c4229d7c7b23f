"""`DeliveryLog`: what became of deliveries, for those who look after them, and how to have them delivered again."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Select, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.store._deliveries import disable_endpoint, enable_endpoint, line_up, reopen_endpoints
from hookline.store._reading import Page
from hookline.store._tables import attempts, deliveries, endpoints

if TYPE_CHECKING:
    from hookline.store._store import SqlStore

__all__ = ["DeliveryFilter", "DeliveryLog", "DeliveryStatus", "StoredAttempt", "StoredDelivery", "StoredEndpoint"]

DeliveryStatus: TypeAlias = Literal["waiting", "pending", "delivered", "dead"]

TOGETHER = 500
"""Deliveries that one transaction changes at most, so that it does not keep others waiting."""
LONGEST_PAGE = 1000


class DeliveryFilter(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which deliveries are meant: those to which all that is given applies.

    Attributes:
        tenant_id: Of this tenant; `""` is the system.
        status: `"waiting"` behind another one, `"pending"`, `"delivered"`, or `"dead"`: given up.
        endpoint: To this address.
        operation_id: Of this operation.
        hook_id: Of this hook.
        owner_id: Of a hook of this tenant; `""` is the system.
        since: Made at this time or later, in unix seconds.
        until: Made before this time, in unix seconds.
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
        """What it means in SQL."""
        for name in ("tenant_id", "status", "endpoint", "operation_id", "hook_id", "owner_id"):
            if (value := getattr(self, name)) is not None:
                yield deliveries.c[name] == value
        if self.since is not None:
            yield deliveries.c.created_at >= self.since
        if self.until is not None:
            yield deliveries.c.created_at < self.until


class StoredDelivery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A delivery as the store has it.

    Attributes:
        id: The same in every attempt; receivers know it as `webhook-id`.
        operation_id: The run.
        number: Of the event in its operation.
        tenant_id: The tenant.
        hook_id: The hook.
        owner_id: The tenant whose hook it is; `""` is the system.
        type: Of the event.
        endpoint: Where it goes.
        status: What became of it so far.
        attempts: How many were made, since it was last put in.
        next_attempt_at: When it is due, in unix seconds; while a worker has it: when that must have given a sign.
        claimed_by: The worker that has it.
        last_status_code: What the receiver answered last.
        last_error: What went wrong last.
        created_at: When it was put in, in unix seconds.
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
        nth: Which, from 1; a replay counts from 1 again.
        started_at: When, in unix seconds.
        duration_ms: How long it took.
        status_code: What the receiver answered, if it did.
        error: What went wrong; `None` if it was taken.
        worker: The process that made it.
    """

    nth: int
    started_at: float
    duration_ms: float
    status_code: int | None
    error: str | None
    worker: str


class StoredEndpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An endpoint that has failed, or did once.

    Attributes:
        tenant_id: Whose.
        url: Where.
        failures: One after another, until now.
        closed_until: Until when it is left alone, in unix seconds.
        disabled_at: Since when nothing is sent to it any more, in unix seconds.
        reason: Why nothing is sent.
    """

    tenant_id: str
    url: str
    failures: int
    closed_until: float | None
    disabled_at: float | None
    reason: str | None


_shown = tuple(deliveries.c[name] for name in StoredDelivery.__struct_fields__)
_attempt = tuple(attempts.c[name] for name in StoredAttempt.__struct_fields__)
_endpoint = tuple(endpoints.c[name] for name in StoredEndpoint.__struct_fields__)


class DeliveryLog:
    """The deliveries of a store. No worker has to run for it.

    Args:
        store: Where they are.
    """

    def __init__(self, store: "SqlStore") -> None:
        self._store = store

    async def page(
        self, which: DeliveryFilter | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> Page[StoredDelivery]:
        """A part of the list, the newest first.

        Args:
            which: Those that are meant; all unless given.
            cursor: Where the part begins; that of the part before.
            limit: How many at most, up to 1000.

        Raises:
            HookUsageError: If the cursor or the limit makes no sense.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LONGEST_PAGE:
            raise HookUsageError(f"`limit` is 1 to {LONGEST_PAGE}; got {limit!r}.")
        query = select(deliveries.c.seq, *_shown).where(*(which or DeliveryFilter()).conditions())
        if cursor is not None:
            query = query.where(deliveries.c.seq < _place(cursor))
        async with self._store.reading() as connection:
            rows = (await connection.execute(query.order_by(deliveries.c.seq.desc()).limit(limit + 1))).all()
        found = [StoredDelivery(**dict(zip(StoredDelivery.__struct_fields__, row[1:], strict=True))) for row in rows]
        return Page(items=found[:limit], cursor=str(rows[limit - 1].seq) if len(rows) > limit else None)

    async def delivery(self, id: str) -> StoredDelivery | None:  # noqa: A002
        """A delivery, or `None` if there is none of that id."""
        row = await self._first(select(*_shown).where(deliveries.c.id == id))
        return None if row is None else StoredDelivery(**row._mapping)

    async def payload(self, id: str) -> bytes | None:  # noqa: A002
        """What is sent, as JSON; `None` if there is no delivery of that id."""
        row = await self._first(select(deliveries.c.payload).where(deliveries.c.id == id))
        return None if row is None else bytes(row.payload)

    async def attempts(self, id: str) -> list[StoredAttempt]:  # noqa: A002
        """The attempts at a delivery, in order."""
        query = select(*_attempt).where(attempts.c.delivery_id == id).order_by(attempts.c.seq)
        async with self._store.reading() as connection:
            return [StoredAttempt(**row._mapping) for row in await connection.execute(query)]

    async def counts(self, tenant_id: str | None = None) -> dict[DeliveryStatus, int]:
        """How many deliveries there are of each status.

        Args:
            tenant_id: Only those of this tenant.
        """
        query = select(deliveries.c.status, func.count()).group_by(deliveries.c.status)
        if tenant_id is not None:
            query = query.where(deliveries.c.tenant_id == tenant_id)
        counts: dict[DeliveryStatus, int] = {"waiting": 0, "pending": 0, "delivered": 0, "dead": 0}
        async with self._store.reading() as connection:
            return counts | {row[0]: row[1] for row in await connection.execute(query)}

    async def retry(self, ids: Sequence[str], *, tenant_id: str | None = None) -> int:
        """Have deliveries tried now: those that wait for their next attempt, and those that were given up.

        The endpoints are tried again too, if they were left alone; not if they are disabled.

        Args:
            ids: Which.
            tenant_id: Only those of this tenant.

        Returns:
            How many are tried. What was delivered is not, nor what a worker is trying just now.
        """
        if isinstance(ids, str):
            raise HookUsageError("`ids` is a list of ids of deliveries, not one string.")
        count = 0
        for start in range(0, len(ids), TOGETHER):
            these = deliveries.c.id.in_(list(ids[start : start + TOGETHER]))
            which = these if tenant_id is None else these & (deliveries.c.tenant_id == tenant_id)
            async with self._store.writing() as connection:
                now = (await connection.execute(select(self._store.now_sql()))).scalar_one()
                free = (deliveries.c.status == "pending") & deliveries.c.claimed_by.is_(None)
                soon = update(deliveries).where(which, free).values(next_attempt_at=now)
                found = await connection.execute(soon.returning(deliveries.c.tenant_id, deliveries.c.endpoint))
                places = [(row.tenant_id, row.endpoint) for row in found]
                await reopen_endpoints(connection, places)
                count += len(places) + await _again(connection, which & (deliveries.c.status == "dead"), now=now)
        return count

    async def replay(self, which: DeliveryFilter) -> int:
        """Have deliveries made again that were delivered or given up, with the same ids, in their old order.

        Args:
            which: Those that are meant; of any other status than these two, none is.

        Returns:
            How many are made again.
        """
        settled = deliveries.c.status.in_(("delivered", "dead"))
        where = [*which.conditions(), settled]
        last, count = 0, 0
        async with self._store.reading() as connection:
            # What is delivered again meanwhile is not meant: else a replay would never end.
            end = (await connection.execute(select(func.max(deliveries.c.seq)).where(*where))).scalar() or 0
        while last < end:
            async with self._store.writing() as connection:
                some = select(deliveries.c.seq).where(*where, deliveries.c.seq > last, deliveries.c.seq <= end)
                seqs = list((await connection.execute(some.order_by(deliveries.c.seq).limit(TOGETHER))).scalars())
                if not seqs:
                    break
                now = (await connection.execute(select(self._store.now_sql()))).scalar_one()
                count += await _again(connection, deliveries.c.seq.in_(seqs) & settled, now=now)
                last = seqs[-1]
        return count

    async def prune(self, older_than: float, *, dead_too: bool = False) -> int:
        """Forget deliveries that were settled long ago, with their attempts.

        Args:
            older_than: Seconds since they were settled.
            dead_too: Whether those are meant too that were given up.

        Returns:
            How many were forgotten.
        """
        statuses = ("delivered", "dead") if dead_too else ("delivered",)
        count = 0
        while True:
            async with self._store.writing() as connection:
                old = deliveries.c.settled_at < self._store.now_sql() - older_than
                some = select(deliveries.c.seq, deliveries.c.id).where(deliveries.c.status.in_(statuses), old)
                # Locked, on PostgreSQL: else one that is replayed meanwhile would be forgotten with the others.
                some = some.order_by(deliveries.c.seq).limit(TOGETHER).with_for_update()
                rows = (await connection.execute(some)).all()
                if not rows:
                    return count
                await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_([row.id for row in rows])))
                await connection.execute(delete(deliveries).where(deliveries.c.seq.in_([row.seq for row in rows])))
                count += len(rows)

    async def endpoints(self, tenant_id: str | None = None, *, owner_id: str | None = None) -> list[StoredEndpoint]:
        """Endpoints that have failed, or did once; of others nothing is known.

        Args:
            tenant_id: Only those of this tenant.
            owner_id: Only those to which a hook of this tenant delivers.
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
        async with self._store.reading() as connection:
            return [StoredEndpoint(**row._mapping) for row in await connection.execute(query)]

    async def enable(self, tenant_id: str, url: str) -> bool:
        """Send to an endpoint again. What was given up stays so, until it is replayed.

        Returns:
            Whether it had failed, or was disabled.
        """
        async with self._store.writing() as connection:
            return await enable_endpoint(connection, tenant_id, url)

    async def disable(self, tenant_id: str, url: str, reason: str) -> None:
        """Send nothing more to an endpoint: what is not delivered is given up, and so is what comes.

        Args:
            tenant_id: Whose.
            url: Which.
            reason: Why, for those who look.
        """
        async with self._store.writing() as connection:
            now = (await connection.execute(select(self._store.now_sql()))).scalar_one()
            await disable_endpoint(connection, tenant_id, url, reason=reason, now=now)

    async def _first(self, query: Select[Any]) -> Any:
        async with self._store.reading() as connection:
            return (await connection.execute(query)).first()


async def _again(connection: AsyncConnection, which: ColumnElement[bool], *, now: float) -> int:
    """Make settled deliveries as if they had just been put in."""
    new = {"status": "waiting", "attempts": 0, "next_attempt_at": now, "settled_at": None}
    column = deliveries.c
    changed = update(deliveries).where(which).values(new).returning(column.stream, column.tenant_id, column.endpoint)
    rows = (await connection.execute(changed)).all()
    await line_up(connection, {row.stream for row in rows}, now=now)
    await reopen_endpoints(connection, [(row.tenant_id, row.endpoint) for row in rows])
    return len(rows)


def _place(cursor: str) -> int:
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 19:
        return int(cursor)
    raise HookUsageError("`cursor` is not one that this list has given; leave it out to begin anew.")
