"""Add the statistics of hooks by agent and by tool."""

import sqlalchemy as sa
from alembic import op

revision = "0017_grouped_statistics"
down_revision = "0016_execution_revisions"

DECISIONS = ("denied", "asked", "mocked", "changed", "continued")
COUNTS = ("count", "errors", *DECISIONS, "timeouts", "dropped", "shadow", *(f"shadow_{name}" for name in DECISIONS))


def upgrade() -> None:
    """Create the table; earlier executions are in no group."""
    op.create_table(
        "grouped_statistics",
        sa.Column("hook_id", sa.String(400), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("point", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("writer", sa.String(40), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in (*COUNTS, "shadow_failed")),
        sa.Column("durations", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hook_id", "kind", "start", "tenant_id", "point", "name", "writer"),
    )
    op.create_index("ix_grouped_statistics_start", "grouped_statistics", ["start"])


def downgrade() -> None:
    """Drop the table; the statistics by agent and by tool are lost."""
    op.drop_table("grouped_statistics")
