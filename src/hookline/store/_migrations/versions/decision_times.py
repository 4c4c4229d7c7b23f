"""Add the indexes by which the newest decisions are found."""

from alembic import op

revision = "0011_decision_times"
down_revision = "0010_definition_revisions"


def upgrade() -> None:
    """Add the indexes. On PostgreSQL, decisions are not written while they are built."""
    op.create_index("ix_decisions_created_at", "decisions", ["created_at"])
    op.create_index("ix_decisions_tenant_id_created_at", "decisions", ["tenant_id", "created_at"])


def downgrade() -> None:
    """Drop the indexes."""
    op.drop_index("ix_decisions_tenant_id_created_at", table_name="decisions")
    op.drop_index("ix_decisions_created_at", table_name="decisions")
