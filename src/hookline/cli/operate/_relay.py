"""`hookline relay`: deliver stored events to remote observers, and say how far the relay of a store is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from hookline.cli._commands import CommandApp
from hookline.cli._exit_codes import run_until_stopped
from hookline.cli._terminal import (
    Column,
    format_age,
    make_copyable,
    parse_option,
    parse_time,
    print_list,
    print_result,
    time_field,
)
from hookline.cli.operate._bus import BusCredentials, BusNkeySeed, BusPrefix, BusUrls, BusWait, make_bus
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    StoreUrl,
    Tenant,
    actor,
    check_store,
    operate,
    report_errors_only,
)

if TYPE_CHECKING:
    from hookline.bus import NatsBus
    from hookline.relay import DeadLetter, RelayStatus
    from hookline.store import SqlStore

__all__ = ["relay_app"]

relay_app = CommandApp(name="relay", help="Deliver stored events to remote observers.")

Hearer = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only of the observers of this name.")]


@relay_app.command("run")
def run_relay(
    store: StoreUrl = DEFAULT_STORE,
    bus: BusUrls = None,
    bus_credentials: BusCredentials = None,
    bus_nkey_seed: BusNkeySeed = None,
    bus_prefix: BusPrefix = "hookline",
    bus_wait: BusWait = 0.0,
    lease: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="Seconds after which another process follows a killed one."),
    ] = 15.0,
) -> None:
    """Deliver stored events to remote observers until Ctrl-C.

    `hookline serve` and `hookline worker` do so too if they have a bus. One process of a store does it at a time; the
    next one follows when it ends.
    """
    if not bus:
        raise typer.BadParameter("Give the bus, such as --bus nats://localhost:4222.", param_hint="'--bus'")
    with report_errors_only():
        check_store(store, creates=True)
        made = make_bus(bus, credentials=bus_credentials, nkey_seed=bus_nkey_seed, prefix=bus_prefix, wait=bus_wait)
        run_until_stopped(_relay(store, made, lease))


async def _relay(url: str, bus: NatsBus, lease: float) -> None:
    from hookline.relay import Relay
    from hookline.store import SqlStore

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(bus)
        store = await stack.enter_async_context(SqlStore(url, wakeups=bus))
        await stack.enter_async_context(Relay(store, bus, lease_seconds=lease))
        typer.echo(f"hookline relays the events of {store.name} to {bus.address}")
        await asyncio.Event().wait()


@relay_app.command("status")
def show_status(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show what waits, and how far each observer is behind."""

    async def look(store: SqlStore) -> RelayStatus:
        from hookline.relay import relay_status

        return await relay_status(store)

    found = operate(store, look)
    print_result(found, _fields(found), as_json=as_json)


@relay_app.command("dead-letters")
def show_dead_letters(
    store: StoreUrl = DEFAULT_STORE,
    name: Hearer = None,
    tenant: Tenant = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List events that observers could not handle, newest first."""

    async def look(store: SqlStore) -> list[DeadLetter]:
        from hookline.relay import list_dead_letters

        return await list_dead_letters(store, hearer=name, tenant_id=tenant, limit=limit + 1)

    found = operate(store, look)
    print_list(
        found[:limit], _columns(), as_json=as_json, nothing="There are no dead letters.", more=len(found) > limit
    )


@relay_app.command("retry")
def retry(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Dead letters, as `hookline relay dead-letters` shows them."),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    name: Hearer = None,
    as_json: AsJson = False,
) -> None:
    """Deliver the events of dead letters to their observers again."""
    if not ids and name is None:
        raise typer.BadParameter("Name dead letters, or all of one name with --name.", param_hint="'ID'")

    async def tell(store: SqlStore) -> int:
        from hookline.relay import retry_dead_letters
        from hookline.server import write_audit_alone

        count = await retry_dead_letters(store, ids or None, hearer=name)
        detail = {"ids": ids or [], "count": count}
        await write_audit_alone(store, "", actor(), "relay.retry", name or "dead letters", detail=detail)
        return count

    count = operate(store, tell)
    print_result({"told": count}, f"{count} dead letters are delivered again.", as_json=as_json)


@relay_app.command("replay")
def replay_stored(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name under which the observers are served.")],
    store: StoreUrl = DEFAULT_STORE,
    operation: Annotated[str | None, typer.Option(metavar="ID", help="Only events of this operation.")] = None,
    first: Annotated[int, typer.Option("--from", min=1, metavar="N", help="With --operation: from this event on.")] = 1,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From this time on: 30s, 10m, 2h or 7d (ago), or 2026-01-31T12:00."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Deliver stored events to the observers of one name again."""
    begin = parse_option("--since", since, parse_time)
    if operation is None and begin is None:
        raise typer.BadParameter("Say what to tell again: --operation ID or --since TIME.", param_hint="'NAME'")

    async def tell(store: SqlStore) -> int:
        from hookline.relay import replay
        from hookline.server import write_audit_alone

        count = await replay(store, name, operation_id=operation, first=first, since=begin)
        detail = {"operation": operation, "from": first, "since": begin, "count": count}
        await write_audit_alone(store, "", actor(), "relay.replay", name, detail=detail)
        return count

    count = operate(store, tell)
    print_result({"told": count}, f"{count} events are delivered to {make_copyable(name)} again.", as_json=as_json)


def _fields(status: RelayStatus) -> list[tuple[str, object]]:
    depths = [f"{name}: {count}" for name, count in sorted(status.depths.items())]
    dead = [f"{name}: {count}" for name, count in sorted(status.dead_letters.items())]
    lost = [f"hookline relay replay {name} --since {since:.0f}" for name, since in sorted(status.lost.items())]
    return [
        ("relay", status.owner or "none runs"),
        ("waiting", f"{status.waiting} commits"),
        ("oldest waits", f"{status.waiting_seconds:.0f} s" if status.waiting else ""),
        ("problem", status.problem or ""),
        ("lost by the bus", "; ".join(lost)),
        ("told", f"{status.told} commits"),
        time_field("last told", status.told_at),
        ("not heard yet", ", ".join(depths)),
        ("dead letters", ", ".join(dead) or "none"),
    ]


def _columns() -> list[Column[DeadLetter]]:
    return [
        Column("id", lambda each: each.id),
        Column("name", lambda each: each.hearer, rank=1),
        Column("observer", lambda each: each.hook_id, rank=1, cut=True),
        Column("operation", lambda each: each.operation_id, rank=2),
        Column("event", lambda each: str(each.number), right=True),
        Column("tries", lambda each: str(each.tries), rank=4, right=True),
        Column("error", lambda each: each.error, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=5),
        Column("given up", lambda each: format_age(each.created_at), rank=3, right=True),
    ]
