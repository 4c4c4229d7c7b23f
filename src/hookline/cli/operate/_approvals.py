"""`hookline approvals`: list the tool calls that wait for a person, and decide about them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._terminal import (
    Column,
    format_age,
    make_copyable,
    make_one_line,
    print_json_lines,
    print_list,
)
from hookline.cli.errors import NotWaitingError
from hookline.cli.operate._operations import OperationId, find_operation, read_waiting_calls
from hookline.cli.operate._store import DEFAULT_STORE, AsJson, Limit, StoreUrl, Tenant, actor, operate, read_pages
from hookline.errors import DecisionError
from hookline.runtime import DECIDED

if TYPE_CHECKING:
    from hookline.server import Decided, PendingApproval
    from hookline.store import SqlStore

__all__ = ["approvals_app"]

approvals_app = CommandApp(
    name="approvals", cls=ListGroup, help="List tool calls that wait for a person, and decide about them."
)

CallId = Annotated[
    str | None, typer.Argument(metavar="TOOL_CALL", help="The id of the call; not needed if only one waits.")
]


@approvals_app.command("list")
def list_approvals(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Only calls of this agent.")] = None,
    tool: Annotated[str | None, typer.Option(metavar="GLOB", help="Only calls of these tools: pay, bank/*.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the tool calls that wait for a person.

    Calls of the newest operations come first. Decide with `hookline approvals approve` or `reject`.
    """

    async def look(store: SqlStore) -> Any:
        from hookline.server import ApprovalFilter, ServerParts, find_pending_approvals

        wanted = ApprovalFilter(tenant_id=tenant, agent_id=agent, tool=tool)
        return await read_pages(partial(find_pending_approvals, ServerParts(store), wanted), limit)

    found, more = operate(store, look)
    more = more or len(found) > limit  # a page holds whole operations, which may have several calls
    print_list(found[:limit], _columns(), as_json=as_json, nothing="No call waits for a person.", more=more)


@approvals_app.command("approve")
def approve_call(
    operation: OperationId,
    tool_call: CallId = None,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Approve a tool call that waits for a person.

    The call runs once a worker resumes the operation.
    """
    _decide_call(store, operation, tool_call, "approve", "", tenant=tenant, as_json=as_json)


@approvals_app.command("reject")
def reject_call(
    operation: OperationId,
    tool_call: CallId = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the model is told.")] = "",
    goes_on: Annotated[
        bool,
        typer.Option(
            "--continue/--stop",
            help="Continue the run, or stop it (the default).",
            show_default=False,
        ),
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Reject a tool call, and stop the run or --continue it.

    Reject and stop: the run ends. Reject and continue: the model is told, and the run goes on.
    """
    decision = "rejectAndContinue" if goes_on else "reject"
    _decide_call(store, operation, tool_call, decision, reason, tenant=tenant, as_json=as_json)


def _decide_call(
    url: str, operation: str, tool_call: str | None, decision: str, reason: str, *, tenant: str | None, as_json: bool
) -> None:
    async def work(store: SqlStore) -> tuple[Decided, Any, str]:
        from hookline.server import DecisionBody, ServerParts, store_decision
        from hookline.store import make_seen_token

        found = await find_operation(store, operation, tenant)
        if found.status != "waiting_for_human":
            raise NotWaitingError(operation, found.status)
        waiting = await read_waiting_calls(store, operation)
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
        print_json_lines([decided])
        return
    tool = make_one_line(f"{call.toolset}/{call.tool_name}") if call is not None else ""
    its = f"{make_copyable(decided.tool_call_id)} ({tool}) of {make_copyable(operation)}"
    typer.echo(f"{DECIDED[decision].capitalize()} {its}{f', tenant {make_copyable(owner)}' if owner else ''}.")
    if call is not None:
        typer.echo(f"Its arguments: {make_one_line(msgspec.json.encode(call.args).decode())}")
    if decision == "reject":
        typer.echo("The operation stops when a worker with its agent takes it.")
    elif decided.pending:
        typer.echo(f"It waits for {', '.join(make_copyable(each) for each in decided.pending)} still.")
    else:
        typer.echo("The operation resumes when a worker with its agent takes it.")


def _columns() -> list[Column[PendingApproval]]:
    return [
        Column("operation", lambda each: each.operation_id),
        Column("call", lambda each: each.tool_call_id),
        Column("tool", lambda each: f"{each.toolset}/{each.tool_name}", rank=1, cut=True),
        Column("arguments", lambda each: msgspec.json.encode(each.args).decode(), rank=2, cut=True),
        Column("waits", lambda each: format_age(each.waiting_since), rank=3, right=True),
        Column("tenant", lambda each: each.tenant_id, rank=4),
        Column("prompt", lambda each: each.prompt, rank=5, cut=True),
        Column("agent", lambda each: each.agent_id, rank=6, cut=True),
    ]
