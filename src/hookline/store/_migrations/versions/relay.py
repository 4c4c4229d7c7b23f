"""Add the queue of commits that a relay has yet to tell, the relay that tells them, and dead letters."""

import sqlalchemy as sa
from alembic import op

revision = "0018_relay"
down_revision = "0017_grouped_statistics"


def upgrade() -> None:
    """Create the tables. Operations that run already have nobody who hears them, so that the queue begins empty."""
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "relay_queue",
        sa.Column("seq", serial, nullable=False, autoincrement=True),
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("hearers", sa.Text(), nullable=False),
        sa.Column("replay", sa.String(40), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_relay_queue_operation_id", "relay_queue", ["operation_id"])
    op.create_table(
        "relays",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("owner", sa.String(80)),
        sa.Column("owned_until", sa.Float(), nullable=False),
        sa.Column("told", sa.BigInteger(), nullable=False),
        sa.Column("told_at", sa.Float()),
        sa.Column("problem", sa.Text()),
        sa.Column("depths", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("hearer", sa.String(400), nullable=False),
        sa.Column("hook_id", sa.String(400), nullable=False),
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_dead_letters_hearer_created_at", "dead_letters", ["hearer", "created_at"])
    op.create_index("ix_dead_letters_operation_id", "dead_letters", ["operation_id"])


def downgrade() -> None:
    """Drop the tables; commits that were not told are not told any more."""
    op.drop_table("dead_letters")
    op.drop_table("relays")
    op.drop_table("relay_queue")
