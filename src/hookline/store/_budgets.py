"""The counts of budgets as rows: take an amount if the window has it left, and settle it later.

The counts of a window are one row. To reserve is one conditional upsert of it, so that no two processes can both take
what is left. A reservation whose lease has ended stays as it is, and only reads as used: the limit counts it all the
same, and a call that settles later finds it.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, exists, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.budgets import (
    AMOUNTS,
    Amounts,
    BudgetFigures,
    BudgetRequest,
    BudgetScope,
    Reservation,
    Settlement,
    find_window,
    load_zone,
    make_window_id,
)
from hookline.store._database import Database, insert_into, read_clock
from hookline.store._rows import LONGEST_ID, replace_unstorable
from hookline.store._tables import budget_reservations as reservations
from hookline.store._tables import budget_windows as windows
from hookline.store._tables import operations

__all__ = ["prune_budgets", "read_figures", "read_windows", "reserve", "reset", "settle"]

BATCH_SIZE = 500
"""Windows that are deleted in one transaction at most."""


class _RefusedError(Exception):
    """The window has too little left; raised to roll the reservation back."""


async def reserve(database: Database, request: BudgetRequest) -> Reservation:
    """Reserve amounts if their window has that much left.

    The window is that of the database's clock, which all processes share.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """

    async def attempt() -> Reservation:
        with suppress(_RefusedError):
            if request.amounts:
                return await database.write(partial(_take, request=request))
        figures = await database.read(partial(_present_figures, request=request))
        return Reservation(granted=not request.amounts and not figures.closed, figures=figures)

    # The id makes it safe to ask again when the answer to a commit was lost.
    return await database.retry(attempt)


async def _take(connection: AsyncConnection, request: BudgetRequest) -> Reservation:
    if not request.beyond and not request.amounts.fit(request.limits):
        raise _RefusedError
    now = await read_clock(connection)
    fresh = _new_figures(request, now)
    reserved = insert_into(connection, reservations).values(
        id=request.id,
        window_id=fresh.id,
        operation_id=replace_unstorable(request.operation_id),
        **_columns("", request.amounts),
        created_at=now,
        lease_until=now + request.lease_seconds,
    )
    # Before the window, whose row all calls of the budget wait for until the commit.
    added = await connection.execute(reserved.on_conflict_do_nothing())
    if not added.rowcount:
        return Reservation(granted=True, figures=await _present_figures(connection, request))
    first = insert_into(connection, windows).values(
        id=fresh.id,
        tenant_id=replace_unstorable(request.scope.tenant_id)[:LONGEST_ID],
        budget_id=replace_unstorable(request.scope.budget_id)[:LONGEST_ID],
        per=request.scope.per,
        key=replace_unstorable(request.scope.key),
        window_kind=request.window,
        window_start=fresh.start,
        window_end=fresh.end,
        **_columns("limit_", request.limits),
        **_columns("used_", Amounts()),
        **_columns("reserved_", request.amounts),
        **_columns("overrun_", Amounts()),
        **_columns("allowed_", request.amounts if request.beyond else Amounts()),
        closed=False,
        warned=False,
        updated_at=now,
    )
    added_up = {
        f"{count}_{name}": windows.c[f"{count}_{name}"] + first.excluded[f"{count}_{name}"]
        for count in ("reserved", "allowed")
        for name in AMOUNTS
    }
    following = first.on_conflict_do_update(
        index_elements=[windows.c.id],
        set_={**_columns("limit_", request.limits), **added_up, "updated_at": now},
        where=None if request.beyond else _has_left(request),
    )
    row = (await connection.execute(following.returning(*windows.c))).one_or_none()
    if row is None:
        raise _RefusedError
    figures = await _figures_of(connection, row, now)
    if request.warn_at is None or row.warned:
        return Reservation(granted=True, figures=figures)
    warns = (figures.used + figures.reserved).reach(request.warn_at, request.limits)
    if warns:
        await connection.execute(update(windows).where(windows.c.id == fresh.id).values(warned=True))
    return Reservation(granted=True, warns=warns, figures=figures)


def _has_left(request: BudgetRequest) -> ColumnElement[bool]:
    """Return the condition under which a window has the amounts of a request left."""
    limited = [name for name in AMOUNTS if getattr(request.limits, name)]
    taken = {name: windows.c[f"used_{name}"] + windows.c[f"reserved_{name}"] for name in limited}
    enough = (taken[name] + getattr(request.amounts, name) <= getattr(request.limits, name) for name in limited)
    return and_(windows.c.closed.is_(False), *enough)


def _new_figures(request: BudgetRequest, now: float) -> BudgetFigures:
    start, end = find_window(request.window, load_zone(request.zone), now)
    return BudgetFigures(
        id=make_window_id(request.scope, request.window, start),
        scope=request.scope,
        window=request.window,
        start=start,
        end=end,
        limits=request.limits,
    )


async def _present_figures(connection: AsyncConnection, request: BudgetRequest) -> BudgetFigures:
    """Read the counts of the window of a request; those of a new window if there is none."""
    fresh = _new_figures(request, await read_clock(connection))
    return await read_figures(connection, window_id=fresh.id) or fresh


async def settle(database: Database, reservation_id: str, used: Amounts | None) -> Settlement | None:
    """Replace a reservation by what its call took; do nothing if it was settled already.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    settle_once = partial(_settle_once, reservation_id=reservation_id, used=used)
    return await database.retry(partial(database.write, settle_once))


async def _settle_once(connection: AsyncConnection, reservation_id: str, used: Amounts | None) -> Settlement | None:
    ending = delete(reservations).where(reservations.c.id == reservation_id).returning(*reservations.c)
    reservation = (await connection.execute(ending)).one_or_none()
    if reservation is None:
        return None
    reserved = _amounts_of(reservation, "")
    took = reserved if used is None else used
    overrun = took.beyond(reserved)
    now = await read_clock(connection)
    changes: dict[str, object] = {"updated_at": now}
    for name in AMOUNTS:
        changes[f"used_{name}"] = windows.c[f"used_{name}"] + getattr(took, name)
        changes[f"reserved_{name}"] = windows.c[f"reserved_{name}"] - getattr(reserved, name)
        changes[f"overrun_{name}"] = windows.c[f"overrun_{name}"] + getattr(overrun, name)
    if overrun:
        changes["closed"] = True
    changing = update(windows).where(windows.c.id == reservation.window_id).values(changes).returning(*windows.c)
    row = (await connection.execute(changing)).one_or_none()
    if row is None:
        return None
    return Settlement(used=took, overrun=overrun, figures=await _figures_of(connection, row, now))


async def read_windows(
    connection: AsyncConnection, *, tenant_id: str | None, budget_id: str | None, open_only: bool, limit: int
) -> list[BudgetFigures]:
    """Read the counts of windows, those that changed last first."""
    now = await read_clock(connection)
    query = select(windows).order_by(windows.c.updated_at.desc(), windows.c.id).limit(limit)
    if tenant_id is not None:
        query = query.where(windows.c.tenant_id == replace_unstorable(tenant_id))
    if budget_id is not None:
        query = query.where(windows.c.budget_id == replace_unstorable(budget_id))
    if open_only:
        query = query.where(or_(windows.c.window_end.is_(None), windows.c.window_end > now))
    rows = (await connection.execute(query)).all()
    expired = await _read_expired(connection, [row.id for row in rows], now)
    return [_show(row, expired.get(row.id, Amounts())) for row in rows]


async def read_figures(connection: AsyncConnection, *, window_id: str) -> BudgetFigures | None:
    """Read the counts of a window; `None` if there is no such window."""
    row = (await connection.execute(select(windows).where(windows.c.id == window_id))).one_or_none()
    return None if row is None else await _figures_of(connection, row, await read_clock(connection))


async def reset(connection: AsyncConnection, *, window_id: str) -> BudgetFigures | None:
    """Start the counts of a window again, but for the reservations of calls that may still run.

    Args:
        connection: In a transaction that may write.
        window_id: The window.

    Returns:
        The counts before; `None` if there is no such window.
    """
    now = await read_clock(connection)
    # The update comes first, since it locks the row: nothing is reserved or settled until the commit.
    locking = update(windows).where(windows.c.id == window_id).values(updated_at=now).returning(*windows.c)
    row = (await connection.execute(locking)).one_or_none()
    if row is None:
        return None
    before = await _figures_of(connection, row, now)
    ended = and_(reservations.c.window_id == window_id, reservations.c.lease_until <= now)
    await connection.execute(delete(reservations).where(ended))
    start_again = {
        **_columns("used_", Amounts()),
        **_columns("reserved_", before.reserved),
        **_columns("overrun_", Amounts()),
        **_columns("allowed_", before.reserved.beyond(before.limits)),
        "closed": False,
        "warned": False,
    }
    await connection.execute(update(windows).where(windows.c.id == window_id).values(start_again))
    return before


async def prune_budgets(database: Database, older_than: float) -> int:
    """Delete windows that ended and last changed that many seconds ago; return their number.

    A window without an end goes on counting. That of an operation is deleted once the operation is no longer stored, so
    that one which waits for a person for long finds what it has used.
    """
    before = database.now_sql() - older_than
    is_stored = exists().where(operations.c.operation_id == windows.c.key)
    has_ended = or_(windows.c.window_end < before, and_(windows.c.per == "operation", ~is_stored))
    is_old = and_(has_ended, windows.c.updated_at < before)

    async def delete_some(connection: AsyncConnection) -> int:
        old = select(windows.c.id).where(is_old).limit(BATCH_SIZE)
        ids = list((await connection.execute(old)).scalars())
        if ids:
            await connection.execute(delete(reservations).where(reservations.c.window_id.in_(ids)))
            await connection.execute(delete(windows).where(windows.c.id.in_(ids), is_old))
        return len(ids)

    count = 0
    while True:
        deleted = await database.write(delete_some)
        count += deleted
        if deleted < BATCH_SIZE:
            return count


async def _figures_of(connection: AsyncConnection, row: Row[Any], now: float) -> BudgetFigures:
    expired = await _read_expired(connection, [row.id], now)
    return _show(row, expired.get(row.id, Amounts()))


async def _read_expired(connection: AsyncConnection, window_ids: list[str], now: float) -> Mapping[str, Amounts]:
    """Sum up the reservations of windows whose lease has ended."""
    if not window_ids:
        return {}
    sums = [func.coalesce(func.sum(reservations.c[name]), literal(0)).label(name) for name in AMOUNTS]
    query = select(reservations.c.window_id, *sums).group_by(reservations.c.window_id)
    ended = query.where(reservations.c.window_id.in_(window_ids), reservations.c.lease_until <= now)
    return {row.window_id: _amounts_of(row, "") for row in await connection.execute(ended)}


def _show(row: Row[Any], expired: Amounts) -> BudgetFigures:
    return BudgetFigures(
        id=row.id,
        scope=BudgetScope(tenant_id=row.tenant_id, budget_id=row.budget_id, per=row.per, key=row.key),
        window=row.window_kind,
        start=row.window_start,
        end=row.window_end,
        limits=_amounts_of(row, "limit_"),
        used=_amounts_of(row, "used_") + expired,
        reserved=_amounts_of(row, "reserved_") - expired,
        overrun=_amounts_of(row, "overrun_"),
        allowed=_amounts_of(row, "allowed_"),
        closed=bool(row.closed),
        warned=bool(row.warned),
        updated_at=row.updated_at,
    )


def _amounts_of(row: Row[Any], prefix: str) -> Amounts:
    # PostgreSQL sums BIGINT as NUMERIC.
    return Amounts(**{name: int(row._mapping[prefix + name]) for name in AMOUNTS})


def _columns(prefix: str, amounts: Amounts) -> dict[str, int]:
    return {prefix + name: getattr(amounts, name) for name in AMOUNTS}
