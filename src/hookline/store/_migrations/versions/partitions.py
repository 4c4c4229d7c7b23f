"""Partition events, deliveries, attempts and executions by day, on PostgreSQL."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "0007_partitions"
down_revision = "0006_appended_states"

DAY = 86_400
KEYS = DAY * 1_000_000 << 11
"""Number of keys of executions in a day: microseconds, and 11 bits more."""


class Split(NamedTuple):
    """How a table is partitioned.

    Attributes:
        table: The name of the table.
        column: The column by which it is partitioned.
        key: The columns of its primary key.
        unique: The columns of its unique constraint, by name.
        serial: The column that a sequence fills.
    """

    table: str
    column: str
    key: tuple[str, ...]
    unique: tuple[str, tuple[str, ...]] | None = None
    serial: str | None = None


SPLITS = (
    Split("events", "day", ("operation_id", "number", "day")),
    Split("deliveries", "day", ("seq", "day"), ("uq_deliveries_id", ("id", "day")), "seq"),
    Split("attempts", "day", ("seq", "day"), None, "seq"),
    Split("executions", "id", ("id",)),
    Split("execution_hooks", "id", ("hook_id", "id")),
)
FORMER_KEYS = {"events": "operation_id, number", "deliveries": "seq", "attempts": "seq"}
GIVEN_UP = ("deliveries", "attempts")
"""Tables with a partition of their own for the deliveries that were given up."""


def upgrade() -> None:
    """Add the columns; on PostgreSQL, make each table a partition of a new one of its name.

    No row is copied. All these tables are locked until the migration ends. This takes as long as PostgreSQL needs to
    read them once, and to build the primary keys of events, deliveries and attempts and the unique index of
    deliveries, since these contain the day from now on.
    """
    for table in ("operations", "events", "deliveries", "attempts"):
        op.add_column(table, sa.Column("day", sa.Integer(), nullable=False, server_default="0"))
    in_a_day = sa.text("day <> 0")
    op.create_index("ix_operations_day", "operations", ["day"], sqlite_where=in_a_day, postgresql_where=in_a_day)
    if op.get_bind().dialect.name != "postgresql":
        return
    for split in SPLITS:
        partition(split)


def partition(split: Split) -> None:
    """Replace a table by a partitioned one that has the old table as its first partition."""
    table, by_day = split.table, split.column == "day"
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    until = (tomorrow - datetime(1970, 1, 1, tzinfo=UTC).date()).days * KEYS
    if by_day:
        first, bounds = f"{table}_{'kept' if table == 'events' else 'unsettled'}", "FROM (0) TO (1)"
    else:
        first, bounds = f"{table}_before_{tomorrow:%Y%m%d}", f"FROM (MINVALUE) TO ({until})"
        # Executions whose process had a clock that was ahead.
        op.execute(f"CREATE TEMPORARY TABLE later ON COMMIT DROP AS SELECT * FROM {table} WHERE id >= {until}")
        op.execute(f"DELETE FROM {table} WHERE id >= {until}")
    indexes = index_definitions(table)
    op.execute(f"ALTER TABLE {table} RENAME TO {first}")
    if by_day:
        op.execute(f"ALTER TABLE {first} DROP CONSTRAINT {table}_pkey")
    else:
        op.execute(f"ALTER TABLE {first} RENAME CONSTRAINT {table}_pkey TO {first}_pkey")
    if split.unique:
        op.execute(f"ALTER TABLE {first} DROP CONSTRAINT {split.unique[0]}")
    for number, name in enumerate(indexes):
        op.execute(f"ALTER INDEX {name} RENAME TO {first}_{number}_idx")
    op.execute(f"CREATE TABLE {table} (LIKE {first} INCLUDING DEFAULTS) PARTITION BY RANGE ({split.column})")
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY ({', '.join(split.key)})")
    if split.unique:
        name, columns = split.unique
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} UNIQUE ({', '.join(columns)})")
    if split.serial:
        op.execute(f"ALTER SEQUENCE {table}_{split.serial}_seq OWNED BY {table}.{split.serial}")
        op.execute(f"ALTER TABLE {first} ALTER COLUMN {split.serial} DROP DEFAULT")
    for definition in indexes.values():
        op.execute(definition)
    op.execute(f"ALTER TABLE {table} ATTACH PARTITION {first} FOR VALUES {bounds}")
    if table in GIVEN_UP:
        op.execute(f"CREATE TABLE {table}_given_up PARTITION OF {table} FOR VALUES FROM (1) TO (2)")
    op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
    if not by_day:
        op.execute(f"INSERT INTO {table} SELECT * FROM later")
        op.execute("DROP TABLE later")


def downgrade() -> None:
    """Copy the rows of all partitions into tables without partitions, and remove the columns.

    The tables are locked until it ends, and it needs as much space again as they have.
    """
    if op.get_bind().dialect.name == "postgresql":
        for split in SPLITS:
            merge(split)
    op.drop_index("ix_operations_day", "operations")
    for table in ("operations", "events", "deliveries", "attempts"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN day")


def merge(split: Split) -> None:
    """Replace a partitioned table by a plain one with the same rows."""
    table = split.table
    indexes = index_definitions(table)
    op.execute(f"ALTER TABLE {table} RENAME TO {table}_in_days")
    op.execute(f"CREATE TABLE {table} (LIKE {table}_in_days INCLUDING DEFAULTS)")
    # Events of an operation outside of its day remain of a run whose state was stored later; nothing shows them.
    shown = (
        "WHERE NOT EXISTS (SELECT FROM operations WHERE operation_id = its.operation_id AND day <> its.day) "
        "AND (day = 0 OR EXISTS (SELECT FROM operations WHERE operation_id = its.operation_id))"
    )
    op.execute(f"INSERT INTO {table} SELECT * FROM {table}_in_days AS its {shown if table == 'events' else ''}")
    if split.serial:
        op.execute(f"ALTER SEQUENCE {table}_{split.serial}_seq OWNED BY {table}.{split.serial}")
    op.execute(f"DROP TABLE {table}_in_days")
    key = FORMER_KEYS.get(table, ", ".join(split.key))
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY ({key})")
    if split.unique:
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {split.unique[0]} UNIQUE ({split.unique[1][0]})")
    for definition in indexes.values():
        op.execute(definition)


def index_definitions(table: str) -> dict[str, str]:
    """Return the statements that create the indexes of a table, without those of its constraints, by name."""
    query = sa.text(
        "SELECT relname, pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE indrelid = to_regclass(:table) AND NOT indisunique ORDER BY relname"
    )
    found = op.get_bind().execute(query, {"table": table})
    return {name: definition.replace(" ON ONLY ", " ON ") for name, definition in found}
