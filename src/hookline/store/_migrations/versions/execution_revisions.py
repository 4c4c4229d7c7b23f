"""Add to the hooks of the execution log the revision of their definition, to filter by it."""

import sqlalchemy as sa
from alembic import op

revision = "0016_execution_revisions"
down_revision = "0015_operation_tags"

INDEXES = {
    "ix_execution_hooks_revision_id": ["revision", "id"],
    "ix_execution_hooks_tenant_id_revision_id": ["tenant_id", "revision", "id"],
}


def upgrade() -> None:
    """Add the column and its indexes; present rows have no revision in it."""
    op.add_column("execution_hooks", sa.Column("revision", sa.BigInteger(), nullable=False, server_default="0"))
    of_definition = sa.text("revision <> 0")
    for name, columns in INDEXES.items():
        op.create_index(name, "execution_hooks", columns, sqlite_where=of_definition, postgresql_where=of_definition)


def downgrade() -> None:
    """Drop them; the rows of the log keep the revisions in their JSON."""
    for name in INDEXES:
        op.drop_index(name, table_name="execution_hooks")
    op.drop_column("execution_hooks", "revision")
