"""Add the tags of operations, by which lists find them."""

import sqlalchemy as sa
from alembic import op

revision = "0015_operation_tags"
down_revision = "0014_agent_version"


def upgrade() -> None:
    """Add the column and the table; present operations have no tags."""
    op.add_column("operations", sa.Column("tags", sa.Text()))
    op.create_table(
        "operation_tags",
        sa.Column("operation_id", sa.String(400), primary_key=True),
        sa.Column("tag", sa.String(100), primary_key=True),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    for columns in (["tag", "created_at", "operation_id"], ["tag", "tenant_id", "created_at", "operation_id"]):
        op.create_index(f"ix_operation_tags_{'_'.join(columns)}", "operation_tags", columns)


def downgrade() -> None:
    """Drop both; the states of operations keep their tags."""
    op.drop_table("operation_tags")
    op.drop_column("operations", "tags")
