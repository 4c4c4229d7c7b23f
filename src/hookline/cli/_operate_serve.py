"""`hookline serve`: the HTTP API and its web page, on a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hookline.cli._operate import DEFAULT_STORE, AsJson, Files, Modules, Scripts, StoreUrl, ending, find_modules
from hookline.cli._operate_tables import as_lines

if TYPE_CHECKING:
    from hookline.server import Server

__all__ = ["serve"]


def serve(
    store: StoreUrl = DEFAULT_STORE,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8430,
    files: Files = None,
    scripts: Scripts = None,
    modules: Modules = None,
    script_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A variable that scripts may see; may be repeated.")
    ] = None,
    webhook_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A variable that headers may name; may be repeated.")
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT",
            help="package.module:name or file.py:name, whose operations go on here when a person has decided; may be "
            "repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the HTTP API and its web page, until Ctrl-C. A store that is not there is made.

    The key of the first administrator is shown once, when there is none yet.
    """
    with ending():
        from hookline.cli._chat_agent import Wanted, agent_of
        from hookline.server import Server
        from hookline.server import serve as run

        find_modules(modules)
        agents = [agent_of(Wanted(target=each)) for each in agent or ()]
        made: list[Server] = []

        def make() -> Server:
            made.append(
                Server(
                    store,
                    host=host,
                    port=port,
                    files=files or (),
                    modules=modules or (),
                    scripts=scripts,
                    script_env=script_env or (),
                    webhook_env=webhook_env or (),
                    agents=agents,
                )
            )
            return made[0]

        def say(text: str) -> None:
            if not as_json:
                typer.echo(text)
            elif text.startswith("hookline listens"):
                key = made[0].first_key
                as_lines([{"address": made[0].address, "firstKey": None if key is None else key.key}])

        run(make, say=say)
