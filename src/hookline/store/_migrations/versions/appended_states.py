"""Store states as rows that are only added, keep model calls, and add to operations what lists and searches need."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006_appended_states"
down_revision = "0005_operation_changes"

BATCH_SIZE = 200
LONGEST_PREVIEW = 200
EMPTY: dict[str, Any] = {"messages": [], "outcomes": {}, "hooks": [], "interceptors": None}
"""What a state has in place of the parts that move to rows."""

operations = sa.table(
    "operations",
    *(sa.column(name) for name in ("operation_id", "state", "layout", "prompt", "duration_ms", "trace_id")),
)
state_rows = sa.table("state_rows", *(sa.column(name) for name in ("operation_id", "number", "kind", "body")))


def upgrade() -> None:
    """Add the tables and columns, and move the parts of each stored state to rows.

    It is one transaction: a migration that is cut off has changed nothing, and the next start begins it anew. On
    PostgreSQL, operations are not written meanwhile. It reads each state once: about 100,000 in a minute.
    """
    op.create_table(
        "state_rows",
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("operation_id", "number"),
    )
    op.create_table(
        "model_calls",
        sa.Column("operation_id", sa.String(400), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(400), nullable=False),
        sa.Column("step_index", sa.Integer(), nullable=False),
        sa.Column("provider", sa.String(400), nullable=False),
        sa.Column("model", sa.String(400), nullable=False),
        sa.Column("start_unix_nano", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("error_type", sa.String(400)),
        sa.PrimaryKeyConstraint("operation_id", "number"),
    )
    op.create_index("ix_model_calls_tenant_id_start_unix_nano", "model_calls", ["tenant_id", "start_unix_nano"])
    op.add_column("operations", sa.Column("layout", sa.LargeBinary()))
    op.add_column("operations", sa.Column("prompt", sa.Text(), nullable=False, server_default=""))
    op.add_column("operations", sa.Column("duration_ms", sa.Float(), nullable=False, server_default="0"))
    op.add_column("operations", sa.Column("trace_id", sa.String(32)))
    op.create_index("ix_operations_trace_id", "operations", ["trace_id"])
    move_states(split_state)


def downgrade() -> None:
    """Put the parts of each state back into one, and drop the tables and columns; model calls are lost."""
    move_states(join_state)
    op.drop_index("ix_operations_trace_id", table_name="operations")
    for name in ("trace_id", "duration_ms", "prompt", "layout"):
        op.drop_column("operations", name)
    op.drop_table("model_calls")
    op.drop_table("state_rows")


def move_states(move: Callable[[sa.Connection, Any], dict[str, Any] | None]) -> None:
    """Rewrite the row of each operation, in the order of their ids.

    Args:
        move: Returns the new columns of a row; `None` to leave it as it is.
    """
    connection = op.get_bind()
    its = operations.c.operation_id == sa.bindparam("its_id")
    for rows in read_batches(connection):
        changed = [{"its_id": row.operation_id, **new} for row in rows if (new := move(connection, row)) is not None]
        if changed:
            names = [name for name in changed[0] if name != "its_id"]
            connection.execute(
                sa.update(operations).where(its).values({name: sa.bindparam(name) for name in names}), changed
            )


def read_batches(connection: sa.Connection) -> Iterator[list[Any]]:
    """Read the operations in batches."""
    last = ""
    query = sa.select(operations.c.operation_id, operations.c.state, operations.c.layout)
    query = query.order_by(operations.c.operation_id).limit(BATCH_SIZE)
    while rows := list(connection.execute(query.where(operations.c.operation_id > last))):
        yield rows
        last = rows[-1].operation_id


def split_state(connection: sa.Connection, row: Any) -> dict[str, Any] | None:
    """Move the parts of a state to rows. One that is no JSON object is left as it is, for whoever can read it."""
    try:
        state = json.loads(row.state)
    except ValueError:
        return None
    if not isinstance(state, dict):
        return None
    new: list[dict[str, Any]] = []

    def add(kind: str, part: object) -> int:
        new.append({"operation_id": row.operation_id, "number": len(new) + 1, "kind": kind, "body": dump(part)})
        return len(new)

    messages = state.get("messages") or []
    for message in messages:
        add("message", message)
    said = [[1, len(messages)]] if messages else []
    outcomes = {name: [add("outcome", outcome), ""] for name, outcome in (state.get("outcomes") or {}).items()}
    fields = {name: [add("field", state[name]), ""] for name in ("hooks", "interceptors") if state.get(name)}
    if new:
        connection.execute(sa.insert(state_rows), new)
    head = {name: EMPTY[name] if name in EMPTY and value else value for name, value in state.items()}
    prompts = [message.get("content") or "" for message in messages if message.get("role") == "user"]
    return {
        "state": dump(head),
        "layout": dump([len(new), said, outcomes, fields, False, 0]),
        "prompt": preview_prompt(str(prompts[-1] if prompts else "")),
        "duration_ms": float(state.get("activeMs") or 0.0),
        "trace_id": find_trace_id(state),
    }


def preview_prompt(prompt: str) -> str:
    """Return the beginning of a prompt, without characters that the databases do not take."""
    return prompt[:LONGEST_PREVIEW].encode(errors="replace").decode().replace("\0", "?")


def find_trace_id(state: dict[str, Any]) -> str | None:
    """Return the id of the trace in the first `traceparent` of a state."""
    traceparents = state.get("traceparents") or [""]
    parts = str(traceparents[0]).split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None


def join_state(connection: sa.Connection, row: Any) -> dict[str, Any] | None:
    """Put the parts of a state back into one."""
    if row.layout is None:
        return None
    _, said, outcomes, fields, calls_said, *_ = json.loads(row.layout)
    query = sa.select(state_rows.c.number, state_rows.c.kind, state_rows.c.body)
    found = {
        number: (kind, json.loads(body))
        for number, kind, body in connection.execute(query.where(state_rows.c.operation_id == row.operation_id))
    }
    messages = [join_message(*found[number]) for first, last in said for number in range(first, last + 1)]
    state = {
        **json.loads(row.state),
        "messages": messages,
        "outcomes": {name: found[number][1] for name, (number, _) in outcomes.items()},
        **{name: found[number][1] for name, (number, _) in fields.items()},
    }
    if calls_said:
        state["openCalls"] = messages[-1].get("toolCalls") or []
    return {"state": dump(state)}


def join_message(kind: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return the message that a row holds, which may be the result of a call."""
    if kind == "message":
        return part
    return {"role": "tool", "content": part["content"], "toolCallId": part["toolCallId"]}


def dump(value: object) -> bytes:
    """Encode a value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
