"""`hookline operations`: list and show operations and their events."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
import typer

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._terminal import (
    Column,
    format_age,
    format_clock_time,
    format_status,
    make_copyable,
    make_one_line,
    print_fields,
    print_list,
    print_result,
    time_field,
)
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    StoreUrl,
    Tenant,
    check_word,
    operate,
    read_pages,
)
from hookline.errors import OperationNotFoundError
from hookline.events import CompletionReason
from hookline.runtime import DECIDED

if TYPE_CHECKING:
    from hookline.runtime import JournalEntry
    from hookline.server import MadeDecision
    from hookline.store import SqlStore, StoredOperation

__all__ = ["OperationId", "find_operation", "operations_app", "read_waiting_calls"]

STATUSES = ("running", *get_args(CompletionReason))

operations_app = CommandApp(name="operations", cls=ListGroup, help="Show operations and their events.")

OperationId = Annotated[str, typer.Argument(metavar="OPERATION", help="The id of the operation.")]


@operations_app.command("list")
def list_operations(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    only: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help=f"Show one status: {', '.join(STATUSES)}.")
    ] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Only those with this tag.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List operations, the newest first."""
    check_word("--status", only, STATUSES)

    async def look(store: SqlStore) -> Any:
        return await read_pages(partial(store.operations, tenant, only, tag=tag), limit)

    found, more = operate(store, look)
    print_list(found, _columns(), as_json=as_json, nothing="No operations match.", more=more)


@operations_app.command("show")
def show_operation(
    id: OperationId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show an operation, the calls that wait and the decisions."""

    async def look(store: SqlStore) -> tuple[StoredOperation, list[Any], list[MadeDecision]]:
        found = await find_operation(store, id, tenant)
        waiting = await read_waiting_calls(store, id) if found.status == "waiting_for_human" else []
        return found, waiting, await _decisions(store, id)

    found, waiting, made = operate(store, look)
    plain: dict[str, Any] = msgspec.to_builtins(found)
    apart = {"operationId", "status", "missingHooks", "createdAt", "updatedAt", "tags"}
    shown = [
        ("operationId", make_copyable(found.operation_id)),
        ("status", format_status(found.status)),
        ("waiting for hooks", make_one_line(", ".join(found.missing_hooks))),
        *((name, value) for name, value in plain.items() if name not in apart),
        ("tags", make_one_line(", ".join(found.tags))),
        time_field("created", found.created_at),
        time_field("updated", found.updated_at),
    ]
    print_result({**plain, "pending": waiting, "decisions": made}, shown, as_json=as_json)
    if as_json:
        return
    for fields in (*map(_decision_fields, made), *map(_waiting_fields, waiting)):
        typer.echo()
        print_fields(fields)
    if waiting:
        its = f"{make_copyable(id)} {make_copyable(waiting[0].tool_call_id)}"
        typer.echo(f"\nApprove:             hookline approvals approve {its}")
        typer.echo(f"Reject and continue: hookline approvals reject {its} --continue")
        typer.echo(f"Reject and stop:     hookline approvals reject {its} --stop")
    elif found.missing_hooks:
        typer.echo("\nNo worker that tried to resume it has these hooks. Start a worker that has them.")
    elif found.status == "waiting_for_human":
        typer.echo("\nAll calls are decided. It resumes when a worker with its agent takes it.")


@operations_app.command("events")
def show_events(
    id: OperationId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    after: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Only events with a greater number.")] = 0,
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """Show the events of an operation, in order.

    With --json, each line is an event in its wire form, for `hookline trace FILE`.
    """

    async def look(store: SqlStore) -> tuple[list[JournalEntry], bool, dict[int | None, str]]:
        found = await _read_events(store, id, after, limit + 1)
        if tenant is not None or not found:
            await _check_events(store, id, tenant, found)
        deciders = {each.event_number: each.decided_by for each in await store.decisions_of(id)}
        return found[:limit], len(found) > limit, deciders

    found, more, deciders = operate(store, look)
    if as_json:
        for entry in found:
            typer.echo(entry.wire)
        return
    rows = [(entry, msgspec.json.decode(entry.wire), deciders.get(entry.number, "")) for entry in found]
    print_list(rows, _event_columns(), as_json=False, nothing="This operation has no stored events.", more=more)


def _decision_fields(made: MadeDecision) -> list[tuple[str, object]]:
    """Return what was decided about a call, and by whom."""
    from hookline.server import describe_decider

    return [
        ("toolCallId", make_copyable(made.tool_call_id)),
        ("tool", f"{made.toolset}/{made.tool_name}" if made.tool_name else ""),
        ("args", made.args or "{}"),
        ("decision", DECIDED[made.decision]),
        ("reason", made.reason),
        ("decidedBy", describe_decider(made)),
        time_field("decided", made.decided_at),
    ]


def _waiting_fields(call: Any) -> list[tuple[str, object]]:
    """Return what a person has to know of a call that waits for a decision."""
    return [
        ("toolCallId", make_copyable(call.tool_call_id)),
        ("tool", f"{call.toolset}/{call.tool_name}"),
        ("args", call.args or "{}"),
        ("prompt", call.prompt),
    ]


async def _decisions(store: SqlStore, id: str) -> list[MadeDecision]:  # noqa: A002
    """List the decisions about an operation, with the names of those who made them."""
    from hookline.server import Caller, ServerParts, find_decisions

    # The command reads the database itself, so no scope of a key limits what it shows.
    everybody = Caller(key_id="", tenant_id="", scopes=frozenset({"hooks:admin"}))
    return await find_decisions(ServerParts(store), everybody, id)


async def find_operation(store: SqlStore, id: str, tenant: str | None) -> StoredOperation:  # noqa: A002
    """Return an operation, if it is there and the tenant's.

    Raises:
        OperationNotFoundError: If not.
    """
    found = await store.operation(id)
    if found is None or tenant not in (None, found.tenant_id):
        raise OperationNotFoundError(id)
    return found


async def read_waiting_calls(store: SqlStore, id: str) -> list[Any]:  # noqa: A002
    """List the calls of an operation that still wait for a decision."""
    state = await store.load(id)
    if state is None or state.status != "waiting_for_human":
        return []
    pause = str(state.waiting_since_unix_nano or 0)
    decided = {*state.decisions, *(each.tool_call_id for each in await store.decisions_of(id) if each.pause == pause)}
    return [call for call in state.pending if call.tool_call_id not in decided]


async def _read_events(store: SqlStore, id: str, after: int, count: int) -> list[JournalEntry]:  # noqa: A002
    found: list[JournalEntry] = []
    while len(found) < count:
        part = await store.events_of(id, after=after, limit=min(count - len(found), 10_000))
        found += part
        if not part:
            break
        after = part[-1].number
    return found


async def _check_events(store: SqlStore, id: str, tenant: str | None, found: list[JournalEntry]) -> None:  # noqa: A002
    """Refuse events of another tenant, also where the store has nothing of a run but its events.

    Raises:
        OperationNotFoundError: If there are none for this tenant.
    """
    if not found or await store.operation(id) is not None:
        await find_operation(store, id, tenant)
    elif msgspec.json.decode(found[0].wire).get("tenantId", "") != tenant:
        raise OperationNotFoundError(id)


def _columns() -> list[Column[StoredOperation]]:
    return [
        Column("operation", lambda each: each.operation_id),
        Column("status", lambda each: format_status(each.status)),
        Column("waiting for hooks", lambda each: ", ".join(each.missing_hooks), rank=1, cut=True),
        Column("age", lambda each: format_age(each.created_at), rank=1, right=True),
        Column("agent", lambda each: each.agent_id, rank=2, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=3),
        Column("tags", lambda each: ", ".join(each.tags), rank=4, cut=True),
        Column("steps", lambda each: str(each.steps), rank=5, right=True),
        Column("calls", lambda each: str(each.tool_calls), rank=6, right=True),
        Column("USD", lambda each: f"{each.cost_usd:.4f}", rank=7, right=True),
        Column("failed delivery", lambda each: each.failed_delivery or "", rank=4, cut=True),
    ]


def _event_columns() -> list[Column[tuple[JournalEntry, dict[str, Any], str]]]:
    return [
        Column("no.", lambda each: str(each[0].number), right=True),
        Column("time", lambda each: format_clock_time(each[0].time_unix_nano / 1e9), rank=1),
        Column("event", lambda each: str(each[0].type.value)),
        Column("step", lambda each: str(each[1].get("stepIndex", "")), rank=3, right=True),
        Column("what", lambda each: _describe_event(each[1], each[2]), rank=2, cut=True),
    ]


def _describe_event(event: dict[str, Any], decider: str) -> str:
    """Describe an event in a few words: its tool, its error, or the decision and who made it."""
    if "action" in event:
        made = f"{event.get('toolCallId') or ''} {DECIDED[event['action']]}"
        return f"{made} by {decider}" if decider else made
    tool = "/".join(str(event[name]) for name in ("identifier", "apiName") if name in event)
    pending = ", ".join(str(call.get("apiName", "")) for call in event.get("pendingTools", ()))
    said = next((str(event[name]) for name in ("error", "reason", "calleeId") if event.get(name)), "")
    return " ".join(part for part in (tool, pending, said) if part)
