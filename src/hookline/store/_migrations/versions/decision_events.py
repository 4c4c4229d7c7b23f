"""Keep decisions after the operation is resumed, with the call they are about and the number of their event."""

import sqlalchemy as sa
from alembic import op

revision = "0002_decisions"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns. Older decisions have no call, and none has an event: until now, they were deleted on resume."""
    op.add_column("decisions", sa.Column("call", sa.LargeBinary()))
    op.add_column("decisions", sa.Column("event_number", sa.BigInteger()))
    without_event = sa.text("event_number IS NULL")
    op.create_index(
        "ix_decisions_operation_id",
        "decisions",
        ["operation_id"],
        sqlite_where=without_event,
        postgresql_where=without_event,
    )
