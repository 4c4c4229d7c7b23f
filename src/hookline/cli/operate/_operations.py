"""`hookline operations`, `approve` and `reject`: what runs, what has happened in it, and what waits for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
import typer

from hookline.cli.errors import NotWaitingError
from hookline.cli.operate._operate import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    ListsUnlessTold,
    StoreUrl,
    Tenant,
    actor,
    collected,
    known,
    operate,
)
from hookline.cli.operate._tables import Column, as_lines, copied, fields, listed, one_line, status, timed
from hookline.cli.operate._times import age, stamp
from hookline.errors import DecisionError, OperationNotFoundError
from hookline.events import CompletionReason
from hookline.runtime import DECIDED

if TYPE_CHECKING:
    from hookline.runtime import JournalEntry
    from hookline.server import Decided, MadeDecision
    from hookline.store import SqlStore, StoredOperation

__all__ = ["approve", "operations_app", "reject"]

STATUSES = ("running", *get_args(CompletionReason))

operations_app = typer.Typer(name="operations", cls=ListsUnlessTold, help="See what runs, and what has happened in it.")

OperationId = Annotated[str, typer.Argument(metavar="OPERATION", help="The id of the operation.")]
CallId = Annotated[
    str | None, typer.Argument(metavar="TOOL_CALL", help="The id of the call; may be left out where only one waits.")
]


@operations_app.command("list")
def list_operations(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    only: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(STATUSES)}.")
    ] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List operations, the newest first."""
    known("--status", only, STATUSES)

    async def look(store: SqlStore) -> Any:
        return await collected(
            lambda cursor, length: store.operations(tenant, only, cursor=cursor, limit=length), limit
        )

    found, more = operate(store, look)
    if as_json:
        as_lines(found)
    else:
        listed(found, _columns(), more=more, nothing="There are no such operations.")


@operations_app.command("show")
def show_operation(
    id: OperationId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show what is known of an operation, the calls of it that wait for a person, and who decided about others."""

    async def look(store: SqlStore) -> tuple[StoredOperation, list[Any], list[MadeDecision]]:
        found = await _operation(store, id, tenant)
        waiting = await _waiting(store, id) if found.status == "waiting_for_human" else []
        return found, waiting, await _decisions(store, id)

    found, waiting, made = operate(store, look)
    if as_json:
        as_lines([{**msgspec.to_builtins(found), "pending": waiting, "decisions": made}])
        return
    plain: dict[str, Any] = msgspec.to_builtins(found)
    apart = {"operationId", "status", "missingHooks", "createdAt", "updatedAt"}
    fields(
        [
            ("operationId", copied(found.operation_id)),
            ("status", status(found.status)),
            ("waiting for hooks", one_line(", ".join(found.missing_hooks))),
            *((name, value) for name, value in plain.items() if name not in apart),
            timed("created", found.created_at),
            timed("updated", found.updated_at),
        ]
    )
    for each in made:
        typer.echo()
        _show_decision(each)
    for call in waiting:
        typer.echo()
        fields(
            [
                ("toolCallId", copied(call.tool_call_id)),
                ("tool", f"{call.toolset}/{call.tool_name}"),
                ("args", call.args or "{}"),
                ("prompt", call.prompt),
            ]
        )
    if waiting:
        its = f"{copied(id)} {copied(waiting[0].tool_call_id)}"
        typer.echo(f"\nApprove:             hookline approve {its}")
        typer.echo(f"Reject and continue: hookline reject {its} --continue")
        typer.echo(f"Reject and stop:     hookline reject {its} --stop")
    elif found.missing_hooks:
        typer.echo("\nNo worker that wanted to go on with it has these hooks. Start one that gives them.")
    elif found.status == "waiting_for_human":
        typer.echo("\nAll that it waits for is decided; now a worker that has its agent is to take it.")


@operations_app.command("events")
def show_events(
    id: OperationId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    after: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Only those with a greater number.")] = 0,
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """Show the events of an operation, in order.

    With --json, each line is an event as it was, so that the whole can be given to `hookline trace FILE`.
    """

    async def look(store: SqlStore) -> tuple[list[JournalEntry], bool, dict[int | None, str]]:
        found = await _events(store, id, after, limit + 1)
        if tenant is not None or not found:
            await _check_events(store, id, tenant, found)
        deciders = {each.event_number: each.decided_by for each in await store.decisions_of(id)}
        return found[:limit], len(found) > limit, deciders

    found, more, deciders = operate(store, look)
    if as_json:
        for entry in found:
            typer.echo(entry.wire)
    else:
        listed(
            [(entry, msgspec.json.decode(entry.wire), deciders.get(entry.number, "")) for entry in found],
            _event_columns(),
            more=more,
            nothing="There are no events of it.",
        )


def approve(
    operation: OperationId,
    tool_call: CallId = None,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Approve a tool call that waits for a person: it runs once a worker goes on with the operation."""
    _decide(store, operation, tool_call, "approve", "", tenant=tenant, as_json=as_json)


def reject(
    operation: OperationId,
    tool_call: CallId = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the model is told.")] = "",
    goes_on: Annotated[
        bool,
        typer.Option(
            "--continue/--stop",
            help="Reject and continue: the model is told, and the run goes on. Reject and stop: the run ends.",
        ),
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Reject a tool call that waits for a person, and stop the run; with --continue, reject it and continue."""
    decision = "rejectAndContinue" if goes_on else "reject"
    _decide(store, operation, tool_call, decision, reason, tenant=tenant, as_json=as_json)


def _decide(
    url: str, operation: str, tool_call: str | None, decision: str, reason: str, *, tenant: str | None, as_json: bool
) -> None:
    async def work(store: SqlStore) -> tuple[Decided, Any, str]:
        from hookline.server import DecisionBody, ServerParts, store_decision
        from hookline.store import make_seen_token

        found = await _operation(store, operation, tenant)
        if found.status != "waiting_for_human":
            raise NotWaitingError(operation, found.status)
        waiting = await _waiting(store, operation)
        wanted = [call for call in waiting if tool_call in (None, call.tool_call_id)]
        if tool_call is None and len(wanted) != 1:
            problem = "several calls wait; name one" if wanted else "all calls are decided"
            raise DecisionError(operation, problem, [call.tool_call_id for call in wanted])
        state = await store.load(operation)
        body = {"toolCallId": tool_call or wanted[0].tool_call_id, "decision": decision, "reason": reason}
        if wanted and state is not None:
            body["seen"] = make_seen_token(state, wanted[0])  # so that what is printed is what was decided about
        try:
            checked = msgspec.convert(body, DecisionBody)
        except msgspec.ValidationError as error:
            raise typer.BadParameter(str(error)) from None
        decided = await store_decision(ServerParts(store), operation, checked, tenant_id=tenant, actor=actor())
        return decided, wanted[0] if wanted else None, found.tenant_id

    decided, call, owner = operate(url, work)
    if as_json:
        as_lines([decided])
        return
    tool = one_line(f"{call.toolset}/{call.tool_name}") if call is not None else ""
    its = f"{copied(decided.tool_call_id)} ({tool}) of {copied(operation)}"
    typer.echo(f"{DECIDED[decision].capitalize()} {its}{f', tenant {copied(owner)}' if owner else ''}.")
    if call is not None:
        typer.echo(f"Its arguments: {one_line(msgspec.json.encode(call.args).decode())}")
    if decision == "reject":
        typer.echo("The operation stops, once a worker that has its agent takes it.")
    elif decided.pending:
        typer.echo(f"It waits for {', '.join(copied(each) for each in decided.pending)} still.")
    else:
        typer.echo("The operation goes on, once a worker that has its agent takes it.")


def _show_decision(made: MadeDecision) -> None:
    """Show what was decided about a call, and by whom."""
    from hookline.server import describe_decider

    fields(
        [
            ("toolCallId", copied(made.tool_call_id)),
            ("tool", f"{made.toolset}/{made.tool_name}" if made.tool_name else ""),
            ("args", made.args or "{}"),
            ("decision", DECIDED[made.decision]),
            ("reason", made.reason),
            ("decidedBy", describe_decider(made)),
            timed("decided", made.decided_at),
        ]
    )


async def _decisions(store: SqlStore, id: str) -> list[MadeDecision]:  # noqa: A002
    """List the decisions about an operation, with the names of those who made them."""
    from hookline.server import Caller, ServerParts, find_decisions

    # Who has the database sees all of it.
    everybody = Caller(key_id="", tenant_id="", scopes=frozenset({"hooks:admin"}))
    return await find_decisions(ServerParts(store), everybody, id)


async def _operation(store: SqlStore, id: str, tenant: str | None) -> StoredOperation:  # noqa: A002
    """An operation, if there is one that a tenant sees.

    Raises:
        OperationNotFoundError: If not.
    """
    found = await store.operation(id)
    if found is None or tenant not in (None, found.tenant_id):
        raise OperationNotFoundError(id)
    return found


async def _waiting(store: SqlStore, id: str) -> list[Any]:  # noqa: A002
    """The calls of an operation that wait, and about which nobody has decided."""
    from sqlalchemy import select

    from hookline.store import decisions

    state = await store.load(id)
    if state is None or state.status != "waiting_for_human":
        return []
    its = (decisions.c.operation_id == id) & (decisions.c.pause == (state.waiting_since_unix_nano or 0))
    async with store.reading() as connection:
        decided = {*state.decisions, *(await connection.execute(select(decisions.c.tool_call_id).where(its))).scalars()}
    return [call for call in state.pending if call.tool_call_id not in decided]


async def _events(store: SqlStore, id: str, after: int, count: int) -> list[JournalEntry]:  # noqa: A002
    found: list[JournalEntry] = []
    while len(found) < count:
        part = await store.events_of(id, after=after, limit=min(count - len(found), 10_000))
        found += part
        if not part:
            break
        after = part[-1].number
    return found


async def _check_events(store: SqlStore, id: str, tenant: str | None, found: list[JournalEntry]) -> None:  # noqa: A002
    """Refuse events of another tenant; also of runs of which the store has nothing but the events.

    Raises:
        OperationNotFoundError: If there are none for this tenant.
    """
    if not found or await store.operation(id) is not None:
        await _operation(store, id, tenant)
    elif msgspec.json.decode(found[0].wire).get("tenantId", "") != tenant:
        raise OperationNotFoundError(id)


def _columns() -> list[Column[StoredOperation]]:
    return [
        Column(name="operation", cell=lambda each: copied(each.operation_id)),
        Column(name="status", cell=lambda each: status(each.status)),
        Column(name="waiting for hooks", cell=lambda each: one_line(", ".join(each.missing_hooks)), rank=1, cut=True),
        Column(name="age", cell=lambda each: age(each.created_at), rank=1, right=True),
        Column(name="agent", cell=lambda each: one_line(each.agent_id), rank=2, cut=True),
        Column(name="tenant", cell=lambda each: copied(each.tenant_id), rank=3),
        Column(name="steps", cell=lambda each: str(each.steps), rank=5, right=True),
        Column(name="calls", cell=lambda each: str(each.tool_calls), rank=6, right=True),
        Column(name="USD", cell=lambda each: f"{each.cost_usd:.4f}", rank=7, right=True),
        Column(name="failed delivery", cell=lambda each: one_line(each.failed_delivery or ""), rank=4, cut=True),
    ]


def _event_columns() -> list[Column[tuple[JournalEntry, dict[str, Any], str]]]:
    return [
        Column(name="no.", cell=lambda each: str(each[0].number), right=True),
        Column(name="time", cell=lambda each: stamp(each[0].time_unix_nano / 1e9), rank=1),
        Column(name="event", cell=lambda each: str(each[0].type.value)),
        Column(name="step", cell=lambda each: str(each[1].get("stepIndex", "")), rank=3, right=True),
        Column(name="what", cell=lambda each: one_line(_what(each[1], each[2])), rank=2, cut=True),
    ]


def _what(event: dict[str, Any], decider: str) -> str:
    """What an event is about, in a few words; of a decision, who made it."""
    if "action" in event:
        made = f"{event.get('toolCallId') or ''} {DECIDED[event['action']]}"
        return f"{made} by {decider}" if decider else made
    tool = "/".join(str(event[name]) for name in ("identifier", "apiName") if name in event)
    pending = ", ".join(str(call.get("apiName", "")) for call in event.get("pendingTools", ()))
    said = next((str(event[name]) for name in ("error", "reason", "calleeId") if event.get(name)), "")
    return " ".join(part for part in (tool, pending, said) if part)
