"""Search and sort operations: each page looks at a limited number of rows, and says where it stopped."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    exists,
    func,
    or_,
    select,
    text,
    tuple_,
    type_coerce,
    types,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.store._reading import (
    LIVE,
    Page,
    StoredOperation,
    encode_cursor,
    operation_from_row,
    parse_cursor,
    summary_columns,
)
from hookline.store._rows import is_storable
from hookline.store._tables import HAS_ENDED, events, operation_tags, operations

__all__ = [
    "OperationFilter",
    "OperationPage",
    "OperationSort",
    "read_known_names",
    "search_operations",
    "select_branches",
]

OperationSort: TypeAlias = Literal["newest", "changed", "longest", "costliest", "tokens", "steps"]
SORTS: tuple[OperationSort, ...] = get_args(OperationSort)
_keys: dict[OperationSort, ColumnElement[Any]] = {
    "newest": operations.c.created_at,
    "changed": operations.c.updated_at,
    "longest": operations.c.duration_ms,
    "costliest": operations.c.cost_usd,
    "tokens": operations.c.total_tokens,
    "steps": operations.c.steps,
}
MOST_LOOKED_AT = 10_000
"""Operations that a page looks at. On SQLite, an index holds all that is asked of them: this takes about 5 ms."""
MOST_READ = 1_000
"""The same for a search by tool, which reads the events of each operation, or by tag, which reads its row."""
LONGEST_SEARCH = 200
END = 1e12
"""A time after all operations, in unix seconds."""


class OperationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which operations to read. An operation has to match every field that is set.

    Attributes:
        tenant_id: Only operations of this tenant.
        status: Only operations with this status.
        agent_id: Only operations of this agent.
        user_id: Only operations of this user.
        tag: Only operations with this tag.
        tool: Only operations that called this tool: its name, or toolset and name as `toolset/name`.
        search: Only operations whose id begins with this text, or whose prompt preview contains it. ASCII letters
            match in upper and lower case.
        since: Only operations that started at this time or later, in unix seconds.
        until: Only operations that started before this time, in unix seconds.
    """

    tenant_id: str | None = None
    status: str | None = None
    agent_id: str | None = None
    user_id: str | None = None
    tag: str | None = None
    tool: str | None = None
    search: str | None = None
    since: float | None = None
    until: float | None = None

    def check(self) -> None:
        """Raise unless the search has a valid length.

        Raises:
            HookUsageError: If it is too long.
        """
        if len(self.search or "") > LONGEST_SEARCH:
            raise HookUsageError(f"`search` can have at most {LONGEST_SEARCH} characters.")

    @property
    def is_impossible(self) -> bool:
        """Whether no operation can match, since a text has characters that no stored text has."""
        given = (self.tenant_id, self.status, self.agent_id, self.user_id, self.tag, self.tool, self.search)
        return not all(is_storable(each) for each in given if each is not None)

    @property
    def has_own_index(self) -> bool:
        """Whether one index yields the matching operations in order of their start."""
        return all(each is None for each in (self.status, self.agent_id, self.user_id, self.tool, self.search))

    @property
    def place(self) -> tuple[ColumnElement[float], ColumnElement[str]]:
        """The columns by which the operations of the range are in the order of their start."""
        return self._placed.c.created_at, self._placed.c.operation_id

    @property
    def _placed(self) -> Table:
        """The table whose index has the operations of the range."""
        return operations if self.tag is None else operation_tags

    def range_conditions(self) -> list[ColumnElement[bool]]:
        """Return the SQL conditions of the tag, the tenant and the time range."""
        column, conditions = self._placed.c, list[ColumnElement[bool]]()
        if self.tag is not None:
            conditions += [operation_tags.c.tag == self.tag, operation_tags.c.operation_id == operations.c.operation_id]
        if self.tenant_id is not None:
            conditions.append(column.tenant_id == self.tenant_id)
        if self.since is not None:
            conditions.append(column.created_at >= self.since)
        if self.until is not None:
            conditions.append(column.created_at < self.until)
        return conditions

    def row_conditions(self, dialect: str) -> list[ColumnElement[bool]]:
        """Return the SQL conditions that are checked for each operation of the range."""
        named = {"status": self.status, "agent_id": self.agent_id, "user_id": self.user_id}
        # The index of the status would yield all operations of a status, in no order; so it is hidden from SQLite.
        conditions = [
            (operations.c[name].concat("") if dialect == "sqlite" else operations.c[name]) == value
            for name, value in named.items()
            if value is not None
        ]
        if self.search is not None:
            conditions.append(
                or_(
                    *(
                        column(self.search, autoescape=True)
                        for column in (operations.c.operation_id.istartswith, operations.c.prompt.icontains)
                    )
                )
            )
        if self.tool is not None:
            conditions.append(_called_tool(self.tool, dialect))
        return conditions


class OperationPage(Page[StoredOperation], frozen=True, kw_only=True, rename="camel"):
    """One page of operations.

    Attributes:
        looked_at: Number of operations that this page has looked at, if it stopped before the end of the range. The
            page may have few items then, or none; `cursor` continues with older operations.
    """

    looked_at: int | None = None


async def search_operations(
    connection: AsyncConnection, wanted: OperationFilter, *, sort: OperationSort, cursor: str | None, limit: int
) -> OperationPage:
    """Read a page of operations that match a filter.

    Sorted by anything but their start, operations are sorted among the newest `MOST_LOOKED_AT` of the range; the next
    ones follow after them.

    Raises:
        HookUsageError: If the filter, the sorting or the cursor is invalid.
    """
    if sort not in SORTS:
        raise HookUsageError(f"`sort` must be one of {', '.join(SORTS)}; got {sort!r}.")
    wanted.check()
    if sort == "newest":
        start, after = parse_cursor(cursor, tuple[float, str]) if cursor is not None else (END, ""), None
    else:
        start, after = _parse_sorted_cursor(cursor, sort)
    if wanted.is_impossible:
        return OperationPage(items=[])
    conditions = [*wanted.range_conditions()]
    if start[0] < END:
        conditions.append(tuple_(*wanted.place) < tuple_(*start))
    end = None if sort == "newest" and wanted.has_own_index else await _find_end(connection, conditions, wanted)
    dialect = connection.dialect.name
    rows = wanted.row_conditions(dialect)
    if end is not None:
        conditions.append(tuple_(*wanted.place) >= tuple_(*end))
    started_at, operation_id = wanted.place
    key = started_at if sort == "newest" else _keys[sort]
    columns = (operation_id, key.label("key"))
    if after is not None:
        rows.append(tuple_(key, operation_id) < tuple_(*after))
    exact: Sequence[Any] = []
    if wanted.search is not None and limit > 1:
        # The operation whose id is the text comes first, however old it is, and not again in its place.
        if cursor is None:
            exact = await _find_exact_match(connection, wanted, columns)
        rows.append(operation_id != wanted.search)
    room = limit - len(exact)
    branches = _select_matching(wanted, columns, conditions, rows, is_in_order=sort == "newest", dialect=dialect)
    # Each branch is sorted by itself, since SQLite would sort all rows of both otherwise.
    parts = [part.order_by(key.desc(), operation_id.desc()).limit(room + 1) for part in branches]
    query: Any = parts[0]
    if len(parts) > 1:
        them = union_all(*(select(part.subquery()) for part in parts)).subquery()
        query = select(them).order_by(them.c.key.desc(), them.c.operation_id.desc()).limit(room + 1)
    top = (await connection.execute(query)).all()
    items = await _read_operations(connection, [row.operation_id for row in (*exact, *top[:room])])
    if len(top) > room:
        last = top[room - 1]
        following = (
            (last.key, last.operation_id) if sort == "newest" else (sort, *start, float(last.key), last.operation_id)
        )
        return OperationPage(items=items, cursor=encode_cursor(following))
    if end is None:
        return OperationPage(items=items)
    onward = end if sort == "newest" else (sort, *end)
    return OperationPage(items=items, cursor=encode_cursor(onward), looked_at=_most_looked_at(wanted))


def _select_matching(
    wanted: OperationFilter,
    columns: Sequence[ColumnElement[Any]],
    conditions: Sequence[ColumnElement[bool]],
    rows: Sequence[ColumnElement[bool]],
    *,
    is_in_order: bool,
    dialect: str,
) -> list[Select[Any]]:
    """Return the queries which together find the operations that match a filter, by the index that suits it on SQLite.

    Args:
        wanted: The filter.
        columns: The columns, labelled.
        conditions: The conditions of the tenant and the range.
        rows: The other conditions.
        is_in_order: Whether the newest operations are wanted, so that reading can stop early.
        dialect: The dialect of the database.
    """
    if wanted.tag is not None:
        return [select(*columns).where(*conditions, *rows)]
    reads_rows = wanted.has_own_index or wanted.search is not None or wanted.tool is not None
    if dialect == "sqlite" and is_in_order and reads_rows and wanted.status not in LIVE:
        return [select(*columns).where(*conditions, *rows)]
    return select_branches(columns, conditions, rows, status=wanted.status, tenant_id=wanted.tenant_id, dialect=dialect)


def select_branches(
    columns: Sequence[ColumnElement[Any]],
    conditions: Sequence[ColumnElement[bool]],
    rows: Sequence[ColumnElement[bool]] = (),
    *,
    status: str | None,
    tenant_id: str | None,
    dialect: str,
) -> list[Select[Any]]:
    """Return the queries which together select columns of operations.

    On SQLite, one uses the index of ended operations, and one that of live operations.

    Args:
        columns: The columns, labelled.
        conditions: The conditions of the tenant and the time range.
        rows: Further conditions.
        status: The status that the further conditions demand.
        tenant_id: The tenant that the conditions demand.
        dialect: The dialect of the database.
    """
    query = select(*columns).where(*conditions, *rows)
    if dialect != "sqlite":
        return [query]
    ended = query.where(text(HAS_ENDED))
    live = query.where(operations.c.status.in_(LIVE))
    if status is not None:
        return [live if status in LIVE else ended]
    return [ended, live]


async def read_known_names(
    connection: AsyncConnection, column: Literal["agent_id", "tenant_id"], tenant_id: str | None, *, most: int
) -> list[str]:
    """Read the different agents or tenants of the newest operations, in alphabetical order.

    Args:
        connection: The connection to read from.
        column: Which of the two.
        tenant_id: Only of operations of this tenant.
        most: Number of names at most.
    """
    wanted = OperationFilter(tenant_id=tenant_id)
    conditions = wanted.range_conditions()
    end = await _find_end(connection, conditions, wanted)
    if end is not None:
        conditions.append(tuple_(*wanted.place) >= tuple_(*end))
    branches = select_branches(
        (operations.c[column].label("name"),),
        conditions,
        status=None,
        tenant_id=tenant_id,
        dialect=connection.dialect.name,
    )
    them = union_all(*(part.distinct() for part in branches)).subquery()
    query = select(them.c.name).distinct().order_by(them.c.name).limit(most)
    return list((await connection.execute(query)).scalars())


async def _find_end(
    connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]], wanted: OperationFilter
) -> tuple[float, str] | None:
    """Find the last operation that a page may look at; `None` if the range ends before."""
    if wanted.status in LIVE and wanted.tool is None and wanted.tag is None:
        return None  # few operations are live, and they have an index
    newest = select(*wanted.place).where(*conditions).order_by(*(each.desc() for each in wanted.place))
    row = (await connection.execute(newest.offset(_most_looked_at(wanted) - 1).limit(1))).first()
    return None if row is None else (row.created_at, row.operation_id)


async def _find_exact_match(
    connection: AsyncConnection, wanted: OperationFilter, columns: Sequence[ColumnElement[Any]]
) -> Sequence[Any]:
    """Find the operation whose id is the searched text, if it matches the other filters."""
    others = msgspec.structs.replace(wanted, search=None)
    rows = others.row_conditions(connection.dialect.name)
    query = select(*columns).where(operations.c.operation_id == wanted.search, *others.range_conditions(), *rows)
    return (await connection.execute(query)).all()


async def _read_operations(connection: AsyncConnection, ids: Sequence[str]) -> list[StoredOperation]:
    """Read operations in the order of their ids; one that was deleted meanwhile is left out."""
    query = select(*summary_columns).where(operations.c.operation_id.in_(ids))
    found = {row.operation_id: operation_from_row(row) for row in await connection.execute(query)} if ids else {}
    return [found[name] for name in ids if name in found]


def _parse_sorted_cursor(cursor: str | None, sort: OperationSort) -> tuple[tuple[float, str], tuple[float, str] | None]:
    """Return where the present range begins, and the sort key after which the page begins, if it is not the first."""
    if cursor is None:
        return (END, ""), None
    after: tuple[float, str] | None = None
    try:
        sorting, created_at, operation_id, key, last = parse_cursor(cursor, tuple[str, float, str, float, str])
        after = key, last
    except HookUsageError:
        sorting, created_at, operation_id = parse_cursor(cursor, tuple[str, float, str])
    if sorting != sort:
        raise HookUsageError(f"`cursor` belongs to a list that is sorted by {sorting!r}; leave it out to start anew.")
    return (created_at, operation_id), after


def _most_looked_at(wanted: OperationFilter) -> int:
    return MOST_LOOKED_AT if wanted.tool is None and wanted.tag is None else MOST_READ


def _called_tool(tool: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition that an operation has an event of a call of a tool."""
    toolset, _, name = tool.rpartition("/")
    named = b'"apiName":' + msgspec.json.encode(name) + b',"args":'
    if toolset:
        named = b'"identifier":' + msgspec.json.encode(toolset) + b"," + named
    # The bytes cannot come from a text in the event, since quotes are escaped there.
    needle = type_coerce(named, types.LargeBinary())
    place = (
        func.instr(events.c.wire, needle) if dialect == "sqlite" else func.pg_catalog.position(events.c.wire, needle)
    )
    its = (events.c.operation_id == operations.c.operation_id) & (events.c.day == operations.c.day)
    return exists().where(its, events.c.type == "beforeToolCall", place > 0)
