"""Add to operations the version of their agent, so that workers of another version leave them."""

import sqlalchemy as sa
from alembic import op

revision = "0014_agent_version"
down_revision = "0013_decision_counts"


def upgrade() -> None:
    """Add the column; present operations have no version, so that every worker runs them."""
    op.add_column("operations", sa.Column("agent_version", sa.String(400), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop the column; any worker then runs any operation of its agents."""
    op.drop_column("operations", "agent_version")
