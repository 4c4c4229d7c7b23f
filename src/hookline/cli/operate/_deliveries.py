"""`hookline deliveries`: list what was sent to webhooks and what was not, and send it again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
import typer

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._exit_codes import FAILED
from hookline.cli._terminal import (
    Column,
    format_age,
    format_status,
    make_copyable,
    make_one_line,
    parse_option,
    parse_time,
    print_list,
    print_result,
)
from hookline.cli.errors import NothingDoneError
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    Since,
    StoreUrl,
    Tenant,
    Until,
    actor,
    check_word,
    operate,
    read_pages,
)

if TYPE_CHECKING:
    from hookline.store import DeliveryFilter, SqlStore, StoredDelivery

__all__ = ["deliveries_app"]

Settled = Literal["delivered", "dead"]
Status = Literal["waiting", "pending", "delivered", "dead"]

deliveries_app = CommandApp(name="deliveries", cls=ListGroup, help="Show deliveries to webhooks, and send them again.")

Endpoint = Annotated[str | None, typer.Option(metavar="URL", help="Only to this URL.")]
Operation = Annotated[str | None, typer.Option(metavar="ID", help="Only of this operation.")]
HookId = Annotated[str | None, typer.Option("--hook", metavar="ID", help="Only of this hook.")]


@deliveries_app.command("list")
def list_deliveries(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    only: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Only this status: waiting, pending, delivered or dead."),
    ] = None,
    endpoint: Endpoint = None,
    operation: Operation = None,
    hook: HookId = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List deliveries, the newest first."""
    given = _filter_fields(
        tenant, check_word("--status", only, get_args(Status)), endpoint, operation, hook, since, until
    )

    async def look(store: SqlStore) -> Any:
        from hookline.store import DeliveryFilter, DeliveryLog

        return await read_pages(partial(DeliveryLog(store).page, DeliveryFilter(**given)), limit)

    found, more = operate(store, look)
    print_list(found, _columns(), as_json=as_json, nothing="No deliveries match.", more=more)


@deliveries_app.command("retry")
def retry(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The deliveries.")],
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Retry pending or dead deliveries now.

    Exits with 1 if one of them cannot be retried; the others are.
    """

    async def work(store: SqlStore) -> tuple[int, list[str]]:
        from hookline.server import write_audit_alone
        from hookline.store import DeliveryLog

        log = DeliveryLog(store)
        count, left = 0, []
        for id in dict.fromkeys(ids):  # noqa: A001
            found = await log.delivery(id)
            if found is None or tenant not in (None, found.tenant_id):
                left.append(f"there is no delivery {make_copyable(id)!r}")
            elif await log.retry([id], tenant_id=tenant):
                count += 1
                await write_audit_alone(store, found.tenant_id, actor(), "delivery.retry", id)
            else:
                left.append(f"{make_copyable(id)!r} is {_refusal(found)}")
        return count, left

    count, left = operate(store, work)
    if count or as_json:
        _print_count(count, "retried", as_json=as_json)
    if left:
        typer.echo(f"hookline: {NothingDoneError(left)}", err=True)
        raise typer.Exit(FAILED)


@deliveries_app.command("replay")
def replay(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    only: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="Only this status: delivered or dead.")
    ] = None,
    endpoint: Endpoint = None,
    operation: Operation = None,
    hook: HookId = None,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Send deliveries again, with the same ids and in the same order.

    Select delivered or dead deliveries by at least one option: receivers get each of them again.
    """
    given = _filter_fields(
        tenant, check_word("--status", only, get_args(Settled)), endpoint, operation, hook, since, until
    )
    if not given:
        raise typer.BadParameter(
            "Select deliveries by --status, --endpoint, --operation, --hook, --since, --until or --tenant."
        )

    async def work(store: SqlStore) -> int:
        from hookline.server import write_audit_alone
        from hookline.store import DeliveryFilter, DeliveryLog

        which = DeliveryFilter(**given)
        count = await DeliveryLog(store).replay(which)
        await write_audit_alone(
            store, tenant or "", actor(), "delivery.replay", str(count), detail=_audit_detail(which)
        )
        return count

    _print_count(operate(store, work), "sent again", as_json=as_json)


def _filter_fields(
    tenant: str | None,
    only: str | None,
    endpoint: str | None,
    operation: str | None,
    hook: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    """Return the fields of a `DeliveryFilter` for the options that are given."""
    found = {
        "tenant_id": tenant,
        "status": only,
        "endpoint": endpoint,
        "operation_id": operation,
        "hook_id": hook,
        "since": parse_option("--since", since, parse_time),
        "until": parse_option("--until", until, parse_time),
    }
    return {name: value for name, value in found.items() if value is not None}


def _audit_detail(which: DeliveryFilter) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(which)
    return {name: value for name, value in found.items() if value is not None}


def _refusal(found: StoredDelivery) -> str:
    if found.status == "delivered":
        return "already delivered; `hookline deliveries replay` sends it again"
    if found.status == "waiting":
        return f"behind another one to {make_one_line(found.endpoint)}"
    return "being sent at this moment"


def _print_count(count: int, done: str, *, as_json: bool) -> None:
    these = "delivery" if count == 1 else "deliveries"
    print_result({"count": count}, f"{count:,} {these} will be {done} by a process with an Outbox.", as_json=as_json)


def _columns() -> list[Column[StoredDelivery]]:
    return [
        Column("delivery", lambda each: each.id),
        Column("status", lambda each: format_status(each.status)),
        Column("tries", lambda each: str(each.attempts), rank=1, right=True),
        Column("age", lambda each: format_age(each.created_at), rank=1, right=True),
        Column("event", lambda each: each.type, rank=3),
        Column("endpoint", lambda each: each.endpoint, rank=2, cut=True),
        Column("last error", lambda each: each.last_error or "", rank=4, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=5),
        Column("hook", lambda each: each.hook_id, rank=6),
    ]
