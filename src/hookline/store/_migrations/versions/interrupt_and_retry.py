"""Add to operations who asked for their interruption and when, and which operation they retry."""

import sqlalchemy as sa
from alembic import op

revision = "0008_interrupt_and_retry"
down_revision = "0007_partitions"

COLUMNS = (("interrupt_asked_at", sa.Float()), ("interrupt_asked_by", sa.String(400)), ("retry_of", sa.String(400)))
INDEXES = (
    ("ix_operations_interrupts", ("status", "owner"), "interrupt_asked_at IS NOT NULL"),
    ("ix_operations_retry_of", ("retry_of",), "retry_of IS NOT NULL"),
)


def upgrade() -> None:
    """Add the columns, and indexes of the few operations in which they are set."""
    for name, kind in COLUMNS:
        op.add_column("operations", sa.Column(name, kind))
    for name, columns, condition in INDEXES:
        where = sa.text(condition)
        op.create_index(name, "operations", list(columns), sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    """Drop the columns and their indexes; who asked for an interruption, and what was retried, is lost."""
    for name, _, _ in INDEXES:
        op.drop_index(name, table_name="operations")
    for name, _ in reversed(COLUMNS):
        op.drop_column("operations", name)
