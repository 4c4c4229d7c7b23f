"""Add the counts of decisions to the statistics of hooks, and the table of what was found in them."""

import sqlalchemy as sa
from alembic import op

revision = "0013_decision_counts"
down_revision = "0012_budgets"

SHADOW = ("failed", "denied", "asked", "mocked", "changed", "continued")
COLUMNS = (
    *("revision", "asked", "mocked", "changed", "continued", "shadow"),
    *(f"shadow_{name}" for name in SHADOW),
)


def upgrade() -> None:
    """Add the columns, which are 0 for earlier executions, and the table of alerts."""
    for name in COLUMNS:
        op.add_column("statistics", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "policy_alerts",
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("id", sa.String(400), nullable=False),
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("until", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("alert", sa.LargeBinary(), nullable=False),
        sa.Column("sent", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", "revision", "until"),
    )
    op.create_index("ix_policy_alerts_created_at", "policy_alerts", ["created_at"])


def downgrade() -> None:
    """Drop the table and the columns; counts of decisions are lost."""
    op.drop_table("policy_alerts")
    for name in reversed(COLUMNS):
        op.drop_column("statistics", name)
