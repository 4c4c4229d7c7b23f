"""Options that `hookline serve` and `hookline worker` share, since both run operations of agents.

Typer reads the options of a command from the signature of its function, so that both list them.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AllowMissingHooks", "Environment", "Observers", "ScriptEnv", "WebhookEnv"]

AllowMissingHooks = Annotated[
    bool,
    typer.Option(
        "--allow-missing-hooks",
        help="Resume operations even without some of their interceptors. Otherwise they wait for a worker that has "
        "them.",
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(
        envvar="HOOKLINE_ENVIRONMENT",
        metavar="NAME",
        help="The environment of this process, such as production, which hook definitions may name.",
    ),
]
Observers = Annotated[bool, typer.Option("--observers/--no-observers", help="Log executions of observers too.")]
ScriptEnv = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="An environment variable that scripts see; repeatable.")
]
WebhookEnv = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="An environment variable that headers of webhooks may use; repeatable."),
]
