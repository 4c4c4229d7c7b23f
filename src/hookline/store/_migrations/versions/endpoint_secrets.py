"""Add the signing secrets of endpoints, and the id of the master key that encrypts them.

Deliveries that were signed with the unnamed key of the environment so far are signed with it too for another month, so
that receivers can change over to secrets of their own.
"""

import json
import os
import time
from urllib.parse import urlsplit

import sqlalchemy as sa
from alembic import op

revision = "0004_endpoint_secrets"
down_revision = "0003_missing_hooks"

OVERLAP_SECONDS = 30 * 86_400.0
DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def upgrade() -> None:
    """Create the tables, and add the existing endpoints of tenants."""
    secrets = op.create_table(
        "endpoint_secrets",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("endpoint", sa.String(2100), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("sealed", sa.LargeBinary()),
        sa.Column("shown", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_endpoint_secrets_tenant_id_endpoint", "endpoint_secrets", ["tenant_id", "endpoint"])
    op.create_table(
        "master_keys",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    now = time.time()
    rows = [
        {
            "id": f"sec_{os.urandom(12).hex()}",
            "tenant_id": tenant_id,
            "endpoint": endpoint,
            "key_id": "environment",
            "sealed": None,
            "shown": True,
            "created_at": now,
            "expires_at": now + OVERLAP_SECONDS,
        }
        for tenant_id, endpoint in sorted(find_tenant_endpoints())
    ]
    if rows:
        op.bulk_insert(secrets, rows)


def find_tenant_endpoints() -> set[tuple[str, str]]:
    """Find the endpoints of tenants with deliveries or definitions that use the unnamed key."""
    found: set[tuple[str, str]] = set()
    connection = op.get_bind()
    for table, owner, column in (("deliveries", "owner_id", "hook"), ("definitions", "tenant_id", "definition")):
        rows = connection.execute(sa.text(f"SELECT DISTINCT {owner}, {column} FROM {table} WHERE {owner} <> ''"))
        for tenant_id, encoded in rows:
            try:
                webhook = json.loads(bytes(encoded)).get("webhook") or {}
                url = webhook.get("url") or ""
                if not webhook.get("key") and urlsplit(url).scheme in DEFAULT_PORTS:
                    found.add((tenant_id, normalize(url)))
            except (ValueError, AttributeError, TypeError):  # an unreadable hook delivers nothing
                continue
    return found


def normalize(url: str) -> str:
    """Normalize an address as `hookline.delivery` did when this migration was written."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    place = parts.netloc.lower().removesuffix(DEFAULT_PORTS.get(scheme, ":"))
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{place}{parts.path or '/'}{query}"
