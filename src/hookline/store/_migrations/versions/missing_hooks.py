"""Add the column with the interceptors that an operation waits for."""

import sqlalchemy as sa
from alembic import op

revision = "0003_missing_hooks"
down_revision = "0002_decisions"


def upgrade() -> None:
    """Add the column, and an index of the few operations in which it is set."""
    op.add_column("operations", sa.Column("missing_hooks", sa.Text()))
    is_waiting = sa.text("missing_hooks IS NOT NULL")
    op.create_index(
        "ix_operations_missing_hooks",
        "operations",
        ["operation_id"],
        sqlite_where=is_waiting,
        postgresql_where=is_waiting,
    )
