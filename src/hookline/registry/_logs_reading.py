"""Reading the log: pages, the newest first, that cost the same however long the log is.

Every filter has an index whose last column is the key, and a page is the part of that index between two keys. SQLite
reads it so. PostgreSQL may think it cheaper to walk the log from its end until it has found enough, which for a tenant
who has been silent for long is never; so it compares whole rows of the index, must give them in the order of the index,
and is forbidden to sort, which leaves it no other way, whatever it knows or assumes about the rows.
"""

from functools import partial
from typing import NamedTuple, TypeVar, get_args

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    func,
    literal,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.registry._logs_rows import ExecutionRow, first_key, key_of
from hookline.signals import ExecutionStatus
from hookline.store import Page, execution_hooks, executions

__all__ = ["Wanted", "page", "single", "wanted"]

T = TypeVar("T")
LAST = (1 << 63) - 1
_no_sorting = select(
    *(
        func.set_config(f"enable_{way}", "off", literal_column("true"))
        for way in ("sort", "incremental_sort", "seqscan", "bitmapscan")
    )
)
"""Until the transaction ends."""
_row = msgspec.json.Decoder(ExecutionRow).decode


class Wanted(NamedTuple):
    """What a page is to show: that to which all that is given applies."""

    tenant_id: str | None
    hook_id: str | None
    point: str | None
    status: str | None
    operation_id: str | None
    from_key: int
    to_key: int


def wanted(
    tenant_id: str | None,
    *,
    hook_id: str | None = None,
    point: str | None = None,
    status: str | None = None,
    operation_id: str | None = None,
    since: float | None = None,
    until: float | None = None,
    cursor: str | None = None,
) -> Wanted:
    """Check what is asked for.

    Raises:
        HookUsageError: If it makes no sense.
    """
    if status is not None and status not in get_args(ExecutionStatus):
        raise HookUsageError(f"`status` is one of {', '.join(get_args(ExecutionStatus))}; got {status!r}.")
    return Wanted(
        tenant_id,
        hook_id,
        point,
        status,
        operation_id,
        0 if since is None else first_key(since),
        min(LAST if until is None else first_key(until), LAST if cursor is None else key_of(cursor)),
    )


async def page(connection: AsyncConnection, which: Wanted, limit: int) -> Page[ExecutionRow]:
    """A part of the log, the newest first."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        await connection.execute(_no_sorting)
    found = [_row(wire) for wire in (await connection.execute(page_query(which, limit + 1, dialect))).scalars()]
    found.sort(key=lambda row: row.id, reverse=True)
    return Page(items=found[:limit], cursor=found[limit - 1].id if len(found) > limit else None)


async def single(connection: AsyncConnection, key: int, tenant_id: str | None) -> ExecutionRow | None:
    """One row, if it is this tenant's."""
    query = select(executions.c.wire).where(executions.c.id == key)
    if tenant_id is not None:
        query = query.where(executions.c.tenant_id == tenant_id)
    wire = (await connection.execute(query)).scalar()
    return None if wire is None else _row(wire)


def page_query(which: Wanted, limit: int, dialect: str) -> Select[bytes]:
    """A page in SQL."""
    part = partial(between, which=which, limit=limit, dialect=dialect)
    wire = select(executions.c.wire)
    if which.operation_id is not None:
        query = part(wire, executions, named(which, "operation_id"))
        others = named(which, "tenant_id", "point")
        query = query.where(*(beside(executions.c[name], value) for name, value in others.items()))
        if which.hook_id is None:
            return query if which.status is None else query.where(beside(executions.c.status, which.status))
        its = (execution_hooks.c.hook_id == which.hook_id) & (execution_hooks.c.id == executions.c.id)
        status = select(execution_hooks.c.status).where(its).scalar_subquery()
        return query.where(status.is_not(None) if which.status is None else status == which.status)
    if which.hook_id is not None:
        inner = part(select(execution_hooks.c.id), execution_hooks, named(which, "tenant_id", "hook_id", "status"))
        if which.point is not None:
            # It is no part of what the index is sorted by: as a rule, all that a hook does is at one point.
            inner = inner.where(beside(execution_hooks.c.point, which.point))
        ids = inner.subquery()
        return wire.join_from(ids, executions, executions.c.id == ids.c.id)
    return part(wire, executions, named(which, "tenant_id", "point", "status"))


def named(which: Wanted, *names: str) -> dict[str, str]:
    """Those filters that are given, in the order in which an index has them."""
    return {name: value for name in names if (value := getattr(which, name)) is not None}


def beside(column: ColumnElement[str], value: str) -> ColumnElement[bool]:
    """A condition for which no index is to be looked up: that of the page is another one."""
    return column.concat("") == value


def between(
    query: Select[T], source: Table, equal: dict[str, str], *, which: Wanted, limit: int, dialect: str
) -> Select[T]:
    """The rows of an index between two keys, from the last one on."""
    status = equal.get("status")
    if status == "ok":
        # They are not in the indexes by status.
        query = query.where(beside(source.c.status, equal.pop("status")))
    elif status is not None:
        query = query.where(text("status <> 'ok'"))
    columns = [*(source.c[name] for name in equal), source.c.id]
    values = [literal(value, source.c[name].type) for name, value in equal.items()]
    first, last = literal(which.from_key, BigInteger), literal(which.to_key, BigInteger)
    if dialect == "postgresql":
        index = tuple_(*columns)
        query = query.where(index >= tuple_(*values, first), index < tuple_(*values, last))
    else:
        same = (column == value for column, value in zip(columns, values, strict=False))
        query = query.where(*same, source.c.id >= first, source.c.id < last)
    # Not as a parameter: of one, PostgreSQL assumes that it asks for a tenth of all.
    return query.order_by(*(column.desc() for column in columns)).limit(literal_column(str(limit)))
