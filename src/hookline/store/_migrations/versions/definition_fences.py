"""Add the fenced changes of definitions, and the processes that take part in them."""

import sqlalchemy as sa
from alembic import op

revision = "0019_definition_fences"
down_revision = "0018_relay"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "definition_fences",
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("id", sa.String(400), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_definition_fences_revision", "definition_fences", ["revision"])
    op.create_table(
        "registry_members",
        sa.Column("member_id", sa.String(80), nullable=False),
        sa.Column("lease_seconds", sa.Float(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("confirmed", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("member_id"),
    )


def downgrade() -> None:
    """Drop the tables; processes of earlier versions keep the definitions that their operations began with."""
    op.drop_table("registry_members")
    op.drop_table("definition_fences")
