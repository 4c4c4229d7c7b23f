"""Add the windows of budgets, and the reservations of calls that are running."""

import sqlalchemy as sa
from alembic import op

revision = "0012_budgets"
down_revision = "0011_decision_times"

COUNTS = ("limit", "used", "reserved", "overrun", "allowed")
AMOUNTS = ("nano_usd", "tokens", "calls")


def upgrade() -> None:
    """Create the tables."""
    counts = [sa.Column(f"{count}_{amount}", sa.BigInteger(), nullable=False) for count in COUNTS for amount in AMOUNTS]
    op.create_table(
        "budget_windows",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("budget_id", sa.String(400), nullable=False),
        sa.Column("per", sa.String(20), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("window_kind", sa.String(20)),
        sa.Column("window_start", sa.Float(), nullable=False),
        sa.Column("window_end", sa.Float()),
        *counts,
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("warned", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_budget_windows_updated_at", "budget_windows", ["updated_at"])
    op.create_index("ix_budget_windows_tenant_id_updated_at", "budget_windows", ["tenant_id", "updated_at"])
    op.create_table(
        "budget_reservations",
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("window_id", sa.String(40), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        *(sa.Column(amount, sa.BigInteger(), nullable=False) for amount in AMOUNTS),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_budget_reservations_window_id", "budget_reservations", ["window_id"])


def downgrade() -> None:
    """Drop the tables; budgets start again from zero."""
    op.drop_table("budget_reservations")
    op.drop_table("budget_windows")
