"""Decisions stay when the operation has gone on, with what was decided about and the event that told of it."""

import sqlalchemy as sa
from alembic import op

revision = "0002_decisions"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns. Older decisions have no call, and none of them is told: they were deleted then."""
    op.add_column("decisions", sa.Column("call", sa.LargeBinary()))
    op.add_column("decisions", sa.Column("event_number", sa.BigInteger()))
    untold = sa.text("event_number IS NULL")
    op.create_index(
        "ix_decisions_operation_id", "decisions", ["operation_id"], sqlite_where=untold, postgresql_where=untold
    )
