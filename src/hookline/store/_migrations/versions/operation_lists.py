"""Add the indexes by which operations are searched, sorted and summed up."""

import sqlalchemy as sa
from alembic import op

revision = "0009_operation_lists"
down_revision = "0008_interrupt_and_retry"

LISTED = (
    "operation_id",
    "status",
    "agent_id",
    "user_id",
    "updated_at",
    "duration_ms",
    "cost_usd",
    "total_tokens",
    "steps",
)
HAS_ENDED = "status NOT IN ('running', 'waiting_for_human')"
INDEXES = {
    "ix_operations_ended": ("created_at", *LISTED, "tenant_id"),
    "ix_operations_ended_of_tenant": ("tenant_id", "created_at", *LISTED),
}


def upgrade() -> None:
    """Add the indexes, on SQLite only.

    They hold what lists filter and sort by, of the operations that have ended, so that a commit of a running operation
    does not write them. PostgreSQL limits an entry of an index to 2.7 kB, which four ids of 400 characters can exceed,
    and reads rows in the order of `created_at` fast enough without.
    """
    if op.get_bind().dialect.name != "sqlite":
        return
    for name, columns in INDEXES.items():
        op.create_index(name, "operations", columns, sqlite_where=sa.text(HAS_ENDED), if_not_exists=True)


def downgrade() -> None:
    """Drop the indexes."""
    for name in INDEXES:
        op.drop_index(name, table_name="operations", if_exists=True)
