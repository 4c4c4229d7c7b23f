"""Add to the relay the stream of the bus, what each name has heard of it, and what the bus has lost."""

import sqlalchemy as sa
from alembic import op

revision = "0020_relay_losses"
down_revision = "0019_definition_fences"

COLUMNS = {"stream": sa.String(80), "heard": sa.Text(), "lost": sa.Text()}


def upgrade() -> None:
    """Add the columns; the relay fills them within seconds."""
    for name, kind in COLUMNS.items():
        op.add_column("relays", sa.Column(name, kind))


def downgrade() -> None:
    """Drop the columns; a bus that loses its files is not noticed any more."""
    for name in COLUMNS:
        op.drop_column("relays", name)
