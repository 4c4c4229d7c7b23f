"""Add the index by which the operations that have changed are found."""

from alembic import op

revision = "0005_operation_changes"
down_revision = "0004_endpoint_secrets"


def upgrade() -> None:
    """Add the index. On PostgreSQL, operations are not written while it is built."""
    op.create_index("ix_operations_updated_at", "operations", ["updated_at"])


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_operations_updated_at", table_name="operations")
