"""`hookline hooks serve`: decide about calls of runs in other processes, and observe them, over a bus."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    bus: Annotated[
        list[str],
        typer.Option("--bus", metavar="URL", help="A NATS server: nats://host:4222; repeatable, for a cluster."),
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name that runs ask for; by default the id of the bundle.")
    ] = None,
    revision: Annotated[
        str, typer.Option(metavar="TEXT", help="The version of the hooks, which each decision carries.")
    ] = "",
    credentials: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The JWT and the seed of a user of the server (.creds).")
    ] = None,
    nkey_seed: Annotated[Path | None, typer.Option(metavar="FILE", help="The seed of an nkey.")] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="First part of all subjects.")] = "hookline",
    wait: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Seconds to wait for a server that is away at the start.")
    ] = 0.0,
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
    with report_errors_only():
        from hookline.bus import SECRET_VARIABLE, EventFilter, NatsBus
        from hookline.cli.chat import load_hooks

        hooks = load_hooks([target])
        made = NatsBus(bus, credentials=credentials, nkey_seed=nkey_seed, prefix=prefix, wait=wait)
        options = {
            "name": name,
            "revision": revision,
            "secret": os.environ.get(SECRET_VARIABLE, "").split() or None,
            "where": EventFilter(agent_ids=agent or (), tenant_ids=tenant or ()),
            "tries": tries,
        }
        asyncio.run(_serve(made, hooks, options))


async def _serve(bus: NatsBus, hooks: list[AnyHook], options: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bus)
        try:
            served = await stack.enter_async_context(bus.serve(hooks, **options))
        except HookUsageError as error:
            raise HookUsageError(str(error).replace("`name` is missing", "--name is missing")) from error
        typer.echo(f"hookline serves the hooks {served!r} on {bus.address}")
        await asyncio.Event().wait()
