"""Add the revisions of hook definitions, and keep each stored definition as its first one."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0010_definition_revisions"
down_revision = "0009_operation_lists"


def upgrade() -> None:
    """Create the table, and add a revision of each stored definition as it is now.

    It is one transaction: a migration that is cut off has changed nothing, and the next start begins it anew.
    """
    op.create_table(
        "definition_revisions",
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("id", sa.String(400), nullable=False),
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("action", sa.String(20), nullable=False),
        sa.Column("actor", sa.String(400), nullable=False),
        sa.Column("restored", sa.BigInteger()),
        sa.Column("definition", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", "revision"),
    )
    op.create_index("ix_definition_revisions_id", "definition_revisions", ["id"])
    is_deleted = sa.text("action = 'delete'")
    op.create_index(
        "ix_definition_revisions_deleted",
        "definition_revisions",
        ["tenant_id", "revision"],
        sqlite_where=is_deleted,
        postgresql_where=is_deleted,
    )
    op.execute(
        "INSERT INTO definition_revisions (tenant_id, id, revision, action, actor, definition, created_at) "
        "SELECT tenant_id, id, revision, 'keep', '', definition, updated_at FROM definitions WHERE source = 'api'"
    )


def downgrade() -> None:
    """Drop the table, and have system hooks apply to all tenants again: earlier versions cannot leave out tenants."""
    op.drop_table("definition_revisions")
    connection = op.get_bind()
    for tenant_id, id_, encoded in connection.execute(sa.text("SELECT tenant_id, id, definition FROM definitions")):
        if b'"exceptTenants"' not in bytes(encoded):
            continue
        kept = {name: value for name, value in json.loads(bytes(encoded)).items() if name != "exceptTenants"}
        change = sa.text("UPDATE definitions SET definition = :kept WHERE tenant_id = :tenant_id AND id = :id")
        body = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
        connection.execute(change, {"kept": body, "tenant_id": tenant_id, "id": id_})
