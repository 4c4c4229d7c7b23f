"""`hookline hooks serve`: decide about calls of runs in other processes, and observe them, over a bus."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookline.cli._exit_codes import run_until_stopped
from hookline.cli.operate._bus import BusCredentials, BusNkeySeed, BusPrefix, BusUrls, BusWait, make_bus
from hookline.cli.operate._hooks import hooks_app
from hookline.cli.operate._store import report_errors_only
from hookline.errors import HookUsageError

if TYPE_CHECKING:
    from hookline.bus import NatsBus
    from hookline.hooks import AnyHook

__all__ = ["serve_hooks"]


@hooks_app.command("serve")
def serve_hooks(
    target: Annotated[str, typer.Argument(metavar="HOOKS", help="The hooks, as package.module:name or file.py:name.")],
    bus: BusUrls = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name that runs ask for; by default the id of the bundle.")
    ] = None,
    revision: Annotated[
        str, typer.Option(metavar="TEXT", help="The version of the hooks, which each decision carries.")
    ] = "",
    bus_credentials: BusCredentials = None,
    bus_nkey_seed: BusNkeySeed = None,
    bus_prefix: BusPrefix = "hookline",
    bus_wait: BusWait = 0.0,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Observe only runs of these agents; repeatable.")
    ] = None,
    tenant: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Observe only runs of these tenants; repeatable.")
    ] = None,
    tries: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tries of an observer until its event is a dead letter.")
    ] = 5,
) -> None:
    """Decide about calls of runs in other processes, and observe them.

    At SIGTERM or Ctrl-C, questions and events under way are finished first.

    HOOKLINE_REMOTE_SECRET is the secret that signs; several, newest first, are separated by spaces.
    """
    if not bus:
        raise typer.BadParameter("Give the bus, such as --bus nats://localhost:4222.", param_hint="'--bus'")
    with report_errors_only():
        from hookline.bus import SECRET_VARIABLE, EventFilter
        from hookline.cli.chat import load_hooks

        hooks = load_hooks([target])
        made = make_bus(bus, credentials=bus_credentials, nkey_seed=bus_nkey_seed, prefix=bus_prefix, wait=bus_wait)
        options = {
            "name": name,
            "revision": revision,
            "secret": os.environ.get(SECRET_VARIABLE, "").split() or None,
            "where": EventFilter(agent_ids=agent or (), tenant_ids=tenant or ()),
            "tries": tries,
        }
        run_until_stopped(_serve(made, hooks, options))


async def _serve(bus: NatsBus, hooks: list[AnyHook], options: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bus)
        try:
            served = await stack.enter_async_context(bus.serve(hooks, **options))
        except HookUsageError as error:
            raise HookUsageError(str(error).replace("`name` is missing", "--name is missing")) from error
        typer.echo(f"hookline serves the hooks {served!r} on {bus.address}")
        await asyncio.Event().wait()
