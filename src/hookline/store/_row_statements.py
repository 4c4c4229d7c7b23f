"""Insert, update and delete many rows with few statements, as plain SQL.

Both drivers get plain tuples: SQLAlchemy takes as long to make the parameters of a row as a database to store it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from operator import itemgetter
from typing import TypeAlias

from sqlalchemy import Table, cast, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._database import Dialect, express_now

__all__ = ["delete_rows", "insert_into_tables", "insert_rows", "update_rows"]

Values: TypeAlias = Mapping[str, object]
"""Values of a row by the names of its columns."""
Names: TypeAlias = tuple[str, ...]

_dialects = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}  # type: ignore[no-untyped-call]


async def insert_rows(
    connection: AsyncConnection,
    table: Table,
    rows: Sequence[Values],
    *,
    alike: Values | None = None,
    skip_known: bool = False,
) -> None:
    """Insert rows that have the same columns, in order.

    PostgreSQL gets them in one statement with an array for each column. It would prepare the indexes and partitions of
    the table for every row of an `executemany`.

    Args:
        connection: In a transaction that may write.
        table: The table.
        rows: The rows.
        alike: Values or SQL expressions that all rows have, by column.
        skip_known: Whether rows whose key is stored already are left out.
    """
    if not alike and not skip_known:
        await insert_into_tables(connection, {table: rows})
        return
    alike = alike or {}
    if connection.dialect.name != "postgresql":
        inserting = sqlite.insert(table).values(alike) if alike else sqlite.insert(table)
        await connection.execute(inserting.on_conflict_do_nothing() if skip_known else inserting, rows)
        return
    names = tuple(rows[0])
    arrays = [literal([row[name] for row in rows], postgresql.ARRAY(table.c[name].type)) for name in names]
    new = func.unnest(*arrays).table_valued(*names, name="new").render_derived()
    values = [*(new.c[name] for name in names), *(cast(value, table.c[name].type) for name, value in alike.items())]
    moved = postgresql.insert(table).from_select([*names, *alike], select(*values))
    await connection.execute(moved.on_conflict_do_nothing() if skip_known else moved)


async def insert_into_tables(
    connection: AsyncConnection, rows: Mapping[Table, Sequence[Values]], *, now: Mapping[Table, Names] | None = None
) -> None:
    """Insert rows into several tables; those of one table have the same columns.

    PostgreSQL gets all of them in one statement, as from `insert_rows`: another one would take another round trip.

    Args:
        connection: In a transaction that may write.
        rows: The rows of each table; none are left out.
        now: Further columns of a table, which are set to the time of the database.
    """
    now = now or {}
    given = {table: its for table, its in rows.items() if its}
    tables = tuple((table, tuple(its[0]), now.get(table, ())) for table, its in given.items())
    if connection.dialect.name == "postgresql":
        arrays = [[row[name] for row in given[table]] for table, names, _ in tables for name in names]
        if arrays:
            await connection.exec_driver_sql(_insert_arrays(tables), [tuple(arrays)])
        return
    for table, names, times in tables:
        await connection.exec_driver_sql(_insert_tuple(table, names, times), _list_tuples(names, given[table]))


async def update_rows(
    connection: AsyncConnection, table: Table, changes: Sequence[tuple[Values, Values]], *, now: str
) -> int | None:
    """Update rows whose changes name the same columns.

    Args:
        connection: In a transaction that may write.
        table: The table.
        changes: For each row, its new values, and values that it must have now, which name it.
        now: A further column, which is set to the time of the database.

    Returns:
        How many rows had these values; `None` if PostgreSQL does not say, since there is more than one change.
    """
    new, stored = (tuple(values) for values in changes[0])
    new_of, stored_of = _tuple_getter(new), _tuple_getter(stored)
    rows = [(*new_of(change), *stored_of(known)) for change, known in changes]
    statement = _update_tuple(connection.dialect.name, table, new, stored, now)
    changed = (await connection.exec_driver_sql(statement, rows)).rowcount
    return None if connection.dialect.name == "postgresql" and len(rows) > 1 else changed


async def delete_rows(connection: AsyncConnection, table: Table, keys: Sequence[Values]) -> None:
    """Delete the rows that have some values.

    Args:
        connection: In a transaction that may write.
        table: The table.
        keys: The values of each row, or of several rows; all name the same columns.
    """
    names = tuple(keys[0])
    statement = _delete_tuple(connection.dialect.name, table, names)
    await connection.exec_driver_sql(statement, _list_tuples(names, keys))


def _list_tuples(names: Names, rows: Sequence[Values]) -> list[tuple[object, ...]]:
    values_of = _tuple_getter(names)
    return [values_of(row) for row in rows]


def _tuple_getter(names: Names) -> Callable[[Values], tuple[object, ...]]:
    [first, *others] = names
    return itemgetter(*names) if others else lambda row: (row[first],)


# The statements


@cache
def _insert_tuple(table: Table, names: Names, now: Names) -> str:
    """Return the statement for SQLite that inserts a row."""
    values = ", ".join([*("?" for _ in names), *(_render_now("sqlite") for _ in now)])
    return f"INSERT INTO {table.name} ({_list_columns((*names, *now))}) VALUES ({values})"


@cache
def _insert_arrays(tables: tuple[tuple[Table, Names, Names], ...]) -> str:
    """Return the statement for PostgreSQL that inserts an array for each column.

    Args:
        tables: The tables, each with the columns that are given, and with those that are set to the present time.
    """
    places = _number_places("postgresql")
    inserts: list[str] = []
    for table, names, now in tables:
        arrays = ", ".join(f"{next(places)}::{_name_type(table, name)}[]" for name in names)
        values = ", ".join(["new.*", *(_render_now("postgresql") for _ in now)])
        columns = _list_columns((*names, *now))
        inserts.append(f"INSERT INTO {table.name} ({columns}) SELECT {values} FROM unnest({arrays}) AS new")
    *others, last = inserts
    ctes = ", ".join(f"insert_{nth} AS ({each})" for nth, each in enumerate(others))
    return f"WITH {ctes} {last}" if ctes else last


@cache
def _update_tuple(dialect: Dialect, table: Table, new: Names, stored: Names, now: str) -> str:
    """Return the statement that updates the row that has some values."""
    places = _number_places(dialect)
    changes = ", ".join(f'"{name}" = {next(places)}' for name in new)
    return (
        f'UPDATE {table.name} SET {changes}, "{now}" = {_render_now(dialect)} {_match(dialect, table, stored, places)}'
    )


@cache
def _delete_tuple(dialect: Dialect, table: Table, names: Names) -> str:
    """Return the statement that deletes the rows that have some values."""
    return f"DELETE FROM {table.name} {_match(dialect, table, names, _number_places(dialect))}"


def _match(dialect: Dialect, table: Table, names: Names, places: Iterator[str]) -> str:
    is_same = "IS NOT DISTINCT FROM" if dialect == "postgresql" else "IS"
    conditions = (f'"{name}" {is_same if table.c[name].nullable else "="} {next(places)}' for name in names)
    return f"WHERE {' AND '.join(conditions)}"


def _number_places(dialect: Dialect) -> Iterator[str]:
    """Return the places of the values in a statement, one after the other."""
    return (f"${number}" if dialect == "postgresql" else "?" for number in count(1))


def _list_columns(names: Names) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _name_type(table: Table, name: str) -> str:
    """Return the type of a column for PostgreSQL, without its length: a cast would cut a long text short."""
    return table.c[name].type.compile(dialect=_dialects["postgresql"]).partition("(")[0]


def _render_now(dialect: Dialect) -> str:
    return str(express_now(dialect).compile(dialect=_dialects[dialect]))
