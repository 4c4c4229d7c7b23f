"""The counts of budgets as rows: take an amount if the window has it left, and settle it later.

The counts of a window are one row. To reserve is one conditional upsert of it, so that no two processes can both take
what is left. A reservation whose lease has ended stays as it is, and only reads as used: the limit counts it all the
same, and a call that settles later finds it.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from sqlalchemy import (
    Executable,
    Insert,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)
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
from hookline.store._database import Database, express_insert, read_clock
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
    dialect = connection.dialect.name
    reserved = {
        "id": request.id,
        "window_id": fresh.id,
        "operation_id": replace_unstorable(request.operation_id),
        **_columns("", request.amounts),
        "created_at": now,
        "lease_until": now + request.lease_seconds,
    }
    # Before the window, whose row all calls of the budget wait for until the commit.
    added = await connection.execute(_add_once(dialect), reserved)
    if not added.rowcount:
        return Reservation(granted=True, figures=await _present_figures(connection, request))
    first = {
        "id": fresh.id,
        "tenant_id": replace_unstorable(request.scope.tenant_id)[:LONGEST_ID],
        "budget_id": replace_unstorable(request.scope.budget_id)[:LONGEST_ID],
        "per": request.scope.per,
        "key": replace_unstorable(request.scope.key),
        "window_kind": request.window,
        "window_start": fresh.start,
        "window_end": fresh.end,
        **_columns("limit_", request.limits),
        **_columns("used_", Amounts()),
        **_columns("reserved_", request.amounts),
        **_columns("overrun_", Amounts()),
        **_columns("allowed_", request.amounts if request.beyond else Amounts()),
        "closed": False,
        "warned": False,
        "updated_at": now,
    }
    limited = None if request.beyond else tuple(name for name in AMOUNTS if getattr(request.limits, name))
    row = (await connection.execute(_add_up(dialect, limited), first)).one_or_none()
    if row is None:
        raise _RefusedError
    figures = await _figures_of(connection, row, now)
    if request.warn_at is None or row.warned:
        return Reservation(granted=True, figures=figures)
    warns = (figures.used + figures.reserved).reach(request.warn_at, request.limits)
    if warns:
        await connection.execute(update(windows).where(windows.c.id == fresh.id).values(warned=True))
    return Reservation(granted=True, warns=warns, figures=figures)


@cache
def _add_once(dialect: str) -> Insert:
    """Return the statement that inserts a reservation, unless it is there already."""
    return express_insert(dialect, reservations).on_conflict_do_nothing()


@cache
def _add_up(dialect: str, limited: tuple[str, ...] | None) -> Executable:
    """Return the statement that inserts a window, or adds what is reserved if there is one that has it left.

    Args:
        dialect: The kind of database.
        limited: The amounts that must be left; `None` if the window may be closed or have nothing left.
    """
    first = express_insert(dialect, windows)
    new = first.excluded
    added_up = {name: windows.c[name] + new[name] for count in ("reserved_", "allowed_") for name in _names(count)}
    has_left = None
    if limited is not None:
        taken = {name: windows.c[f"used_{name}"] + windows.c[f"reserved_{name}"] for name in limited}
        enough = (taken[name] + new[f"reserved_{name}"] <= new[f"limit_{name}"] for name in limited)
        has_left = and_(windows.c.closed.is_(False), *enough)
    following = first.on_conflict_do_update(
        index_elements=[windows.c.id],
        set_={**{name: new[name] for name in (*_names("limit_"), "updated_at")}, **added_up},
        where=has_left,
    )
    return following.returning(*windows.c)


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
    ending, changing = _settlement()
    reservation = (await connection.execute(ending, {"its_id": reservation_id})).one_or_none()
    if reservation is None:
        return None
    reserved = _amounts_of(reservation, "")
    took = reserved if used is None else used
    overrun = took.beyond(reserved)
    now = await read_clock(connection)
    changes = {**_columns("took_", took), **_columns("its_", reserved), **_columns("beyond_", overrun)}
    given = {**changes, "its_window": reservation.window_id, "closes": bool(overrun), "now": now}
    row = (await connection.execute(changing, given)).one_or_none()
    if row is None:
        return None
    return Settlement(used=took, overrun=overrun, figures=await _figures_of(connection, row, now))


@cache
def _settlement() -> tuple[Executable, Executable]:
    """Return the statements that end a reservation, and that count what its call took."""
    changes: dict[str, object] = {"updated_at": bindparam("now")}
    for name in AMOUNTS:
        changes[f"used_{name}"] = windows.c[f"used_{name}"] + bindparam(f"took_{name}")
        changes[f"reserved_{name}"] = windows.c[f"reserved_{name}"] - bindparam(f"its_{name}")
        changes[f"overrun_{name}"] = windows.c[f"overrun_{name}"] + bindparam(f"beyond_{name}")
    changes["closed"] = or_(windows.c.closed, bindparam("closes", type_=windows.c.closed.type))
    its = windows.c.id == bindparam("its_window")
    return (
        delete(reservations).where(reservations.c.id == bindparam("its_id")).returning(*reservations.c),
        update(windows).where(its).values(changes).returning(*windows.c),
    )


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
    row = (await connection.execute(_select_window(), {"its_id": window_id})).one_or_none()
    return None if row is None else await _figures_of(connection, row, await read_clock(connection))


@cache
def _select_window() -> Select[*tuple[Any, ...]]:
    return select(windows).where(windows.c.id == bindparam("its_id"))


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
    ended = await connection.execute(_sum_up_expired(), {"windows": window_ids, "now": now})
    return {row.window_id: _amounts_of(row, "") for row in ended}


@cache
def _sum_up_expired() -> Select[*tuple[Any, ...]]:
    sums = [func.coalesce(func.sum(reservations.c[name]), literal(0)).label(name) for name in AMOUNTS]
    query = select(reservations.c.window_id, *sums).group_by(reservations.c.window_id)
    its = reservations.c.window_id.in_(bindparam("windows", expanding=True))
    return query.where(its, reservations.c.lease_until <= bindparam("now"))


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


def _names(prefix: str) -> list[str]:
    return [prefix + name for name in AMOUNTS]


def _columns(prefix: str, amounts: Amounts) -> dict[str, int]:
    return {prefix + name: getattr(amounts, name) for name in AMOUNTS}
