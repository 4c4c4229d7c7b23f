"""The tables of a store, the same in both databases. Times are seconds since 1970, by the clock of the database.

On PostgreSQL, some tables are partitioned by day, and their keys contain the column `day`; see `_partitions`.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

__all__ = [
    "HAS_ENDED",
    "api_keys",
    "attempts",
    "audit",
    "budget_reservations",
    "budget_windows",
    "dead_letters",
    "decisions",
    "definition_fences",
    "definition_revisions",
    "definitions",
    "deliveries",
    "ended_sessions",
    "endpoint_secrets",
    "endpoints",
    "events",
    "execution_hooks",
    "executions",
    "grouped_statistics",
    "idempotency",
    "master_keys",
    "metadata",
    "model_calls",
    "operation_tags",
    "operations",
    "policy_alerts",
    "registry_members",
    "relay_queue",
    "relays",
    "revisions",
    "state_rows",
    "statistics",
    "workers",
]

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "uq": "uq_%(table_name)s_%(column_0_N_name)s"}
)
Serial = BigInteger().with_variant(Integer, "sqlite")
"""An auto-incremented key, in both databases."""


def _id(name: str, *, primary_key: bool = False) -> Column[str]:
    return Column(name, String(400), nullable=False, primary_key=primary_key)


_waiting_for_hooks: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("missing_hooks IS NOT NULL")
)
_interrupt_asked: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("interrupt_asked_at IS NOT NULL")
)
_is_retry: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), text("retry_of IS NOT NULL"))
HAS_ENDED = "status NOT IN ('running', 'waiting_for_human')"
"""The condition of the indexes of ended operations. SQLite uses them only for queries that contain it word by word."""
_has_ended = text(HAS_ENDED)
# What lists filter and sort by; see the migration `operation_lists`.
_listed = (
    *("operation_id", "status", "agent_id", "user_id", "updated_at"),
    *("duration_ms", "cost_usd", "total_tokens", "steps"),
)
_in_a_day: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), text("day <> 0"))


def _day() -> Column[int]:
    """Return the column by which PostgreSQL partitions a table; on SQLite it is always 0. See `_partitions`."""
    return Column("day", Integer, nullable=False, server_default="0")


operations = Table(
    "operations",
    metadata,
    _id("operation_id", primary_key=True),
    _id("agent_id"),
    _id("tenant_id"),
    _id("user_id"),
    Column("parent_operation_id", String(400)),
    Column("status", String(40), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("write_id", String(40), nullable=False),
    Column("format", Integer, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("layout", LargeBinary),
    Column("owner", String(80)),
    Column("steps", Integer, nullable=False),
    Column("llm_calls", Integer, nullable=False),
    Column("tool_calls", Integer, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("prompt", Text, nullable=False, server_default=""),
    Column("duration_ms", Float, nullable=False, server_default="0"),
    Column("trace_id", String(32)),
    Column("failed_delivery", Text),
    Column("missing_hooks", Text),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    _day(),
    Column("interrupt_asked_at", Float),
    Column("interrupt_asked_by", String(400)),
    Column("retry_of", String(400)),
    Column("agent_version", String(400), nullable=False, server_default=""),
    Column("tags", Text),
    Index("ix_operations_day", "day", **_in_a_day),
    Index(None, "tenant_id", "created_at", "operation_id"),
    Index(None, "created_at", "operation_id"),
    Index(None, "status", "owner"),
    Index(None, "updated_at"),
    Index(None, "parent_operation_id"),
    Index(None, "trace_id"),
    # A partial index, since few operations wait for hooks and every readiness check asks for them.
    Index("ix_operations_missing_hooks", "operation_id", **_waiting_for_hooks),
    # Each process looks for the interrupted operations among its own whenever it is woken.
    Index("ix_operations_interrupts", "status", "owner", **_interrupt_asked),
    Index("ix_operations_retry_of", "retry_of", **_is_retry),
    Index("ix_operations_ended", "created_at", *_listed, "tenant_id", sqlite_where=_has_ended).ddl_if("sqlite"),
    Index("ix_operations_ended_of_tenant", "tenant_id", "created_at", *_listed, sqlite_where=_has_ended).ddl_if(
        "sqlite"
    ),
)

# By tag, in the order of their start, so that a page of the operations with a tag reads only these.
operation_tags = Table(
    "operation_tags",
    metadata,
    _id("operation_id", primary_key=True),
    Column("tag", String(100), primary_key=True),
    _id("tenant_id"),
    Column("created_at", Float, nullable=False),
    Index(None, "tag", "created_at", "operation_id"),
    Index(None, "tag", "tenant_id", "created_at", "operation_id"),
)

# The messages, outcomes and long fields of states. Rows are only added, until the state no longer needs them.
state_rows = Table(
    "state_rows",
    metadata,
    _id("operation_id", primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(10), nullable=False),
    Column("body", LargeBinary, nullable=False),
)

model_calls = Table(
    "model_calls",
    metadata,
    _id("operation_id", primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _id("tenant_id"),
    Column("step_index", Integer, nullable=False),
    Column("provider", String(400), nullable=False),
    Column("model", String(400), nullable=False),
    Column("start_unix_nano", BigInteger, nullable=False),
    Column("duration_ms", Float, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("error_type", String(400)),
    Index(None, "tenant_id", "start_unix_nano"),
)

events = Table(
    "events",
    metadata,
    _id("operation_id", primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    _id("tenant_id"),
    Column("type", String(40), nullable=False),
    Column("time_unix_nano", BigInteger, nullable=False),
    Column("wire", LargeBinary, nullable=False),
    _day(),
    Index(None, "tenant_id", "time_unix_nano"),
)

# A partial index, since workers poll for decisions without an event, while decisions with one pile up.
_untold: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), text("event_number IS NULL"))

decisions = Table(
    "decisions",
    metadata,
    _id("operation_id", primary_key=True),
    Column("pause", BigInteger, primary_key=True, autoincrement=False),
    _id("tool_call_id", primary_key=True),
    _id("tenant_id"),
    Column("decision", LargeBinary, nullable=False),
    _id("decided_by"),
    Column("created_at", Float, nullable=False),
    Column("call", LargeBinary),
    Column("event_number", BigInteger),
    Index(None, "operation_id", **_untold),
    Index(None, "created_at"),
    Index(None, "tenant_id", "created_at"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("id", String(80), nullable=False),
    _id("operation_id"),
    Column("number", BigInteger),
    _id("tenant_id"),
    _id("hook_id"),
    _id("owner_id"),
    Column("type", String(40), nullable=False),
    Column("hook", LargeBinary, nullable=False),
    Column("endpoint", String(2048), nullable=False),
    Column("stream", String(64), nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("status", String(20), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", Float, nullable=False),
    Column("claimed_by", String(80)),
    Column("claimed_until", Float),
    Column("last_status_code", Integer),
    Column("last_error", Text),
    Column("created_at", Float, nullable=False),
    Column("settled_at", Float),
    _day(),
    UniqueConstraint("id"),
    Index(None, "status", "tenant_id", "endpoint", "next_attempt_at", "seq"),
    Index(None, "stream", "status", "seq"),
    Index(None, "tenant_id", "status", "seq"),
    Index(None, "operation_id", "seq"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("delivery_id", String(80), nullable=False),
    Column("nth", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("duration_ms", Float, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
    Column("worker", String(80), nullable=False),
    _day(),
    Index(None, "delivery_id", "nth"),
)

endpoints = Table(
    "endpoints",
    metadata,
    _id("tenant_id", primary_key=True),
    Column("url", String(2048), primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("closed_until", Float),
    Column("disabled_at", Float),
    Column("reason", Text),
)

endpoint_secrets = Table(
    "endpoint_secrets",
    metadata,
    Column("id", String(40), primary_key=True),
    _id("tenant_id"),
    Column("endpoint", String(2100), nullable=False),
    Column("key_id", String(40), nullable=False),
    Column("sealed", LargeBinary),
    Column("shown", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Index(None, "tenant_id", "endpoint"),
)

master_keys = Table(
    "master_keys",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("key_id", String(40), nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", String(80), primary_key=True),
    Column("alive_until", Float, nullable=False),
    Column("started_at", Float, nullable=False),
)

definitions = Table(
    "definitions",
    metadata,
    _id("tenant_id", primary_key=True),
    _id("id", primary_key=True),
    Column("name", Text, nullable=False),
    Column("point", String(40), nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("definition", LargeBinary, nullable=False),
    Column("source", String(400), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Index(None, "id"),
    Index(None, "revision"),
)

_deleted: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), text("action = 'delete'"))

definition_revisions = Table(
    "definition_revisions",
    metadata,
    _id("tenant_id", primary_key=True),
    _id("id", primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("action", String(20), nullable=False),
    Column("actor", String(400), nullable=False),
    Column("restored", BigInteger),
    Column("definition", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "id"),
    # A partial index, since the list of deleted definitions asks for these only.
    Index("ix_definition_revisions_deleted", "tenant_id", "revision", **_deleted),
)

revisions = Table(
    "revisions",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

# The key of an execution contains the time of its end, so that one index serves a filter, a time range and the order.
# Most executions are ok, and a search for these needs no index of the status.
_not_ok: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), text("status <> 'ok'"))

# Partial indexes, since hooks that no definition made have no revision.
_of_definition: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), text("revision <> 0"))

executions = Table(
    "executions",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=False),
    _id("operation_id"),
    _id("tenant_id"),
    Column("point", String(40), nullable=False),
    Column("status", String(20), nullable=False),
    Column("wire", LargeBinary, nullable=False),
    Index(None, "operation_id", "id"),
    Index(None, "point", "id"),
    Index(None, "tenant_id", "id"),
    Index(None, "tenant_id", "point", "id"),
    Index(None, "status", "id", **_not_ok),
    Index(None, "point", "status", "id", **_not_ok),
    Index(None, "tenant_id", "status", "id", **_not_ok),
    Index(None, "tenant_id", "point", "status", "id", **_not_ok),
)

execution_hooks = Table(
    "execution_hooks",
    metadata,
    _id("hook_id", primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    _id("tenant_id"),
    Column("point", String(40), nullable=False),
    Column("status", String(20), nullable=False),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Index(None, "id"),
    # The index covers whole rows; otherwise SQLite prefers the primary key, and reads the rows of all tenants.
    Index(None, "tenant_id", "hook_id", "id", "point", "status"),
    Index(None, "hook_id", "status", "id", "point", **_not_ok),
    Index(None, "tenant_id", "hook_id", "status", "id", "point", **_not_ok),
    Index(None, "revision", "id", **_of_definition),
    Index(None, "tenant_id", "revision", "id", **_of_definition),
    sqlite_with_rowid=False,
)

statistics = Table(
    "statistics",
    metadata,
    _id("tenant_id", primary_key=True),
    Column("seconds", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    _id("hook_id", primary_key=True),
    Column("point", String(40), primary_key=True),
    Column("writer", String(40), primary_key=True),
    Column("count", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
    Column("denied", BigInteger, nullable=False),
    Column("timeouts", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),
    Column("durations", LargeBinary, nullable=False),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in ("asked", "mocked", "changed")),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in ("continued", "shadow")),
    *(
        Column(f"shadow_{name}", BigInteger, nullable=False, server_default="0")
        for name in ("failed", "denied", "asked", "mocked", "changed", "continued")
    ),
    Index(None, "seconds", "start"),
    sqlite_with_rowid=False,
)

# The same counts by agent, by tool and by pairs of them, for whole hours only: a minute each would be sixty times the
# rows.
grouped_statistics = Table(
    "grouped_statistics",
    metadata,
    _id("hook_id", primary_key=True),
    Column("kind", String(10), primary_key=True),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    _id("tenant_id", primary_key=True),
    Column("point", String(40), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("writer", String(40), primary_key=True),
    *(
        Column(name, BigInteger, nullable=False)
        for name in (
            *("count", "errors", "denied", "asked", "mocked", "changed", "continued", "timeouts", "dropped", "shadow"),
            *("shadow_denied", "shadow_asked", "shadow_mocked", "shadow_changed", "shadow_continued", "shadow_failed"),
        )
    ),
    Column("durations", LargeBinary, nullable=False),
    Index(None, "start"),
)

# What was found in the statistics of shadow policies and fallbacks; a process with an address for alerts sends it once.
policy_alerts = Table(
    "policy_alerts",
    metadata,
    _id("tenant_id", primary_key=True),
    _id("id", primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("until", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),
    Column("alert", LargeBinary, nullable=False),
    Column("sent", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "created_at"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(40), primary_key=True),
    _id("tenant_id"),
    Column("name", Text, nullable=False),
    Column("hash", String(128), nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
    Column("last_used_at", Float),
    UniqueConstraint("hash"),
)

ended_sessions = Table(
    "ended_sessions",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("until", Float, nullable=False),
)

definition_fences = Table(
    "definition_fences",
    metadata,
    _id("tenant_id", primary_key=True),
    _id("id", primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Index(None, "revision"),
)

registry_members = Table(
    "registry_members",
    metadata,
    Column("member_id", String(80), primary_key=True),
    Column("lease_seconds", Float, nullable=False),
    Column("renewals", BigInteger, nullable=False),
    Column("confirmed", BigInteger, nullable=False),
    Column("started_at", Float, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    _id("tenant_id"),
    Column("actor", String(400), nullable=False),
    Column("action", String(80), nullable=False),
    Column("target", String(800), nullable=False),
    Column("detail", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "tenant_id", "seq"),
)

idempotency = Table(
    "idempotency",
    metadata,
    _id("tenant_id", primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("status_code", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "created_at"),
)

# Budgets. Their amounts are whole numbers, so that sums are exact; see `hookline.budgets.Amounts`.
AMOUNTS = ("nano_usd", "tokens", "calls")

budget_windows = Table(
    "budget_windows",
    metadata,
    Column("id", String(40), primary_key=True),
    _id("tenant_id"),
    _id("budget_id"),
    Column("per", String(20), nullable=False),
    Column("key", Text, nullable=False),
    Column("window_kind", String(20)),
    Column("window_start", Float, nullable=False),
    Column("window_end", Float),
    *(
        Column(f"{count}_{amount}", BigInteger, nullable=False)
        for count in ("limit", "used", "reserved", "overrun", "allowed")
        for amount in AMOUNTS
    ),
    Column("closed", Boolean, nullable=False),
    Column("warned", Boolean, nullable=False),
    Column("updated_at", Float, nullable=False),
    Index(None, "updated_at"),
    Index(None, "tenant_id", "updated_at"),
)

budget_reservations = Table(
    "budget_reservations",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("window_id", String(40), nullable=False),
    Column("operation_id", Text, nullable=False),
    *(Column(amount, BigInteger, nullable=False) for amount in AMOUNTS),
    Column("created_at", Float, nullable=False),
    Column("lease_until", Float, nullable=False),
    Index(None, "window_id"),
)

# Commits that a relay has yet to tell. A row is written with its commit, so that none can be passed over.
relay_queue = Table(
    "relay_queue",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    _id("operation_id"),
    Column("first", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    _id("tenant_id"),
    Column("hearers", Text, nullable=False),
    Column("replay", String(40), nullable=False),
    Column("created_at", Float, nullable=False),
    _day(),
    Index(None, "operation_id"),
    sqlite_autoincrement=True,
)

relays = Table(
    "relays",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("owner", String(80)),
    Column("owned_until", Float, nullable=False),
    Column("told", BigInteger, nullable=False),
    Column("told_at", Float),
    Column("problem", Text),
    Column("depths", Text, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("stream", String(80)),
    Column("heard", Text),
    Column("lost", Text),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", String(64), primary_key=True),
    _id("hearer"),
    _id("hook_id"),
    _id("operation_id"),
    Column("number", BigInteger, nullable=False),
    _id("tenant_id"),
    Column("tries", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "hearer", "created_at"),
    Index(None, "operation_id"),
)
