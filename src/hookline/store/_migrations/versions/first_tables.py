"""Create the first version of the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    make_operations()
    make_decisions()
    make_deliveries()
    make_definitions()
    make_executions()
    make_administration()


def make_operations() -> None:
    """Create the tables of operations, their events, and the processes that run them."""
    op.create_table(
        "operations",
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("agent_id", sa.String(400), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("user_id", sa.String(400), nullable=False),
        sa.Column("parent_operation_id", sa.String(400)),
        sa.Column("status", sa.String(40), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("write_id", sa.String(40), nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("owner", sa.String(80)),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("llm_calls", sa.Integer(), nullable=False),
        sa.Column("tool_calls", sa.Integer(), nullable=False),
        sa.Column("total_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("failed_delivery", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("operation_id"),
    )
    op.create_index("ix_operations_created_at_operation_id", "operations", ["created_at", "operation_id"])
    op.create_index("ix_operations_parent_operation_id", "operations", ["parent_operation_id"])
    op.create_index("ix_operations_status_owner", "operations", ["status", "owner"])
    op.create_index(
        "ix_operations_tenant_id_created_at_operation_id", "operations", ["tenant_id", "created_at", "operation_id"]
    )
    op.create_table(
        "events",
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("type", sa.String(40), nullable=False),
        sa.Column("time_unix_nano", sa.BigInteger(), nullable=False),
        sa.Column("wire", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("operation_id", "number"),
    )
    op.create_index("ix_events_tenant_id_time_unix_nano", "events", ["tenant_id", "time_unix_nano"])
    op.create_table(
        "workers",
        sa.Column("worker_id", sa.String(80), nullable=False),
        sa.Column("alive_until", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id"),
    )


def make_decisions() -> None:
    """Create the table of decisions."""
    op.create_table(
        "decisions",
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("pause", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tool_call_id", sa.String(400), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("decision", sa.LargeBinary(), nullable=False),
        sa.Column("decided_by", sa.String(400), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("operation_id", "pause", "tool_call_id"),
    )


def make_deliveries() -> None:
    """Create the tables of deliveries, attempts and endpoints."""
    op.create_table(
        "deliveries",
        sa.Column("seq", serial, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("number", sa.BigInteger()),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("hook_id", sa.String(400), nullable=False),
        sa.Column("owner_id", sa.String(400), nullable=False),
        sa.Column("type", sa.String(40), nullable=False),
        sa.Column("hook", sa.LargeBinary(), nullable=False),
        sa.Column("endpoint", sa.String(2048), nullable=False),
        sa.Column("stream", sa.String(64), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.Float(), nullable=False),
        sa.Column("claimed_by", sa.String(80)),
        sa.Column("claimed_until", sa.Float()),
        sa.Column("last_status_code", sa.Integer()),
        sa.Column("last_error", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("settled_at", sa.Float()),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id", name="uq_deliveries_id"),
    )
    op.create_index("ix_deliveries_operation_id_seq", "deliveries", ["operation_id", "seq"])
    op.create_index(
        "ix_deliveries_status_tenant_id_endpoint_next_attempt_at_seq",
        "deliveries",
        ["status", "tenant_id", "endpoint", "next_attempt_at", "seq"],
    )
    op.create_index("ix_deliveries_stream_status_seq", "deliveries", ["stream", "status", "seq"])
    op.create_index("ix_deliveries_tenant_id_status_seq", "deliveries", ["tenant_id", "status", "seq"])
    op.create_table(
        "attempts",
        sa.Column("seq", serial, autoincrement=True, nullable=False),
        sa.Column("delivery_id", sa.String(80), nullable=False),
        sa.Column("nth", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("worker", sa.String(80), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_attempts_delivery_id_nth", "attempts", ["delivery_id", "nth"])
    op.create_table(
        "endpoints",
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("closed_until", sa.Float()),
        sa.Column("disabled_at", sa.Float()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("tenant_id", "url"),
    )


def make_definitions() -> None:
    """Create the tables of hook definitions."""
    op.create_table(
        "definitions",
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("id", sa.String(400), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("point", sa.String(40), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("definition", sa.LargeBinary(), nullable=False),
        sa.Column("source", sa.String(400), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    op.create_index("ix_definitions_id", "definitions", ["id"])
    op.create_index("ix_definitions_revision", "definitions", ["revision"])
    op.create_table(
        "revisions",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def make_executions() -> None:
    """Create the tables of hook executions and their statistics."""
    op.create_table(
        "executions",
        sa.Column("id", serial, autoincrement=False, nullable=False),
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("point", sa.String(40), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("wire", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "execution_hooks",
        sa.Column("hook_id", sa.String(400), nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("point", sa.String(40), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.PrimaryKeyConstraint("hook_id", "id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "statistics",
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("seconds", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hook_id", sa.String(400), nullable=False),
        sa.Column("point", sa.String(40), nullable=False),
        sa.Column("writer", sa.String(40), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("denied", sa.BigInteger(), nullable=False),
        sa.Column("timeouts", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.BigInteger(), nullable=False),
        sa.Column("durations", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "seconds", "start", "hook_id", "point", "writer"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_statistics_seconds_start", "statistics", ["seconds", "start"])
    make_execution_indexes()


def make_execution_indexes() -> None:
    """Create an index for each filter of executions, newest first."""
    op.create_index("ix_executions_operation_id_id", "executions", ["operation_id", "id"])
    op.create_index("ix_executions_point_id", "executions", ["point", "id"])
    op.create_index("ix_executions_tenant_id_id", "executions", ["tenant_id", "id"])
    op.create_index("ix_executions_tenant_id_point_id", "executions", ["tenant_id", "point", "id"])
    op.create_index("ix_execution_hooks_id", "execution_hooks", ["id"])
    op.create_index(
        "ix_execution_hooks_tenant_id_hook_id_id_point_status",
        "execution_hooks",
        ["tenant_id", "hook_id", "id", "point", "status"],
    )
    for table, columns in (
        ("executions", ["status", "id"]),
        ("executions", ["point", "status", "id"]),
        ("executions", ["tenant_id", "status", "id"]),
        ("executions", ["tenant_id", "point", "status", "id"]),
        ("execution_hooks", ["hook_id", "status", "id", "point"]),
        ("execution_hooks", ["tenant_id", "hook_id", "status", "id", "point"]),
    ):
        not_ok = sa.text("status <> 'ok'")
        name = f"ix_{table}_{'_'.join(columns)}"
        op.create_index(name, table, columns, sqlite_where=not_ok, postgresql_where=not_ok)


def make_administration() -> None:
    """Create the tables of API keys, sessions, the audit log and idempotency keys."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.String(128), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float()),
        sa.Column("revoked_at", sa.Float()),
        sa.Column("last_used_at", sa.Float()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash", name="uq_api_keys_hash"),
    )
    op.create_table(
        "ended_sessions",
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "audit",
        sa.Column("seq", serial, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("actor", sa.String(400), nullable=False),
        sa.Column("action", sa.String(80), nullable=False),
        sa.Column("target", sa.String(800), nullable=False),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_audit_tenant_id_seq", "audit", ["tenant_id", "seq"])
    op.create_table(
        "idempotency",
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key"),
    )
    op.create_index("ix_idempotency_created_at", "idempotency", ["created_at"])
