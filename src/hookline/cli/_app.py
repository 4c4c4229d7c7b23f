"""The `hookline` command: its options, and the table of its commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hookline.cli._commands import CommandApp, CommandGroup, DeferredCommand
from hookline.cli._exit_codes import MEANINGS, MISUSED

__all__ = ["app"]

EXIT_CODES = "\n".join(["Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in MEANINGS.items())])

OVERVIEW = """\
hookline: lifecycle hooks for AI agents. See, steer and test every run.

  Start            demo, init, doctor
  Run agents       chat, eval, trace, host
  Operate a store  serve, worker, hooks, approvals, operations,
                   executions, budgets, deliveries, endpoints, relay, keys, audit

hookline demo shows what hookline does, in a minute, without a model.
hookline --help describes every command, hookline COMMAND --help one of them."""

START, RUN, OPERATE = "Start", "Run agents", "Operate a store"
"""Topics under which the help lists commands."""

COMMANDS = (
    DeferredCommand(
        "demo",
        "hookline.cli._demo:demo",
        topic=START,
        summary="Show six short runs with hooks, then run an agent suite twice.",
    ),
    DeferredCommand(
        "init",
        "hookline.cli.init:init",
        topic=START,
        summary="Create a project: an agent, a hook, a test and a suite.",
    ),
    DeferredCommand(
        "doctor",
        "hookline.cli.operate:doctor",
        topic=START,
        summary="Check the installation and the store, and say what to fix.",
    ),
    DeferredCommand(
        "chat",
        "hookline.cli.chat:chat",
        topic=RUN,
        summary="Talk to an agent in the terminal, and approve its tool calls.",
    ),
    DeferredCommand(
        "trace",
        "hookline.cli._trace_command:trace",
        topic=RUN,
        summary="Show a run as a tree of spans.",
    ),
    DeferredCommand(
        "eval",
        "hookline.cli.eval:eval_app",
        topic=RUN,
        summary="Run the tasks of a suite, or compare two runs.",
    ),
    DeferredCommand(
        "host",
        "hookline.cli.operate:host_app",
        topic=RUN,
        summary="Run your hooks in coding agents such as Claude Code.",
    ),
    DeferredCommand(
        "serve",
        "hookline.cli.operate:serve",
        topic=OPERATE,
        summary="Serve the HTTP API and its web page until Ctrl-C.",
    ),
    DeferredCommand(
        "worker",
        "hookline.cli.operate:run_worker",
        topic=OPERATE,
        summary="Run operations of agents until Ctrl-C.",
    ),
    DeferredCommand(
        "hooks",
        "hookline.cli.operate:hooks_app",
        topic=OPERATE,
        summary="Manage hooks that are stored as data.",
    ),
    DeferredCommand(
        "approvals",
        "hookline.cli.operate:approvals_app",
        topic=OPERATE,
        summary="List tool calls that wait for a person, and decide about them.",
    ),
    DeferredCommand(
        "operations",
        "hookline.cli.operate:operations_app",
        topic=OPERATE,
        summary="Show operations and their events.",
    ),
    DeferredCommand(
        "executions",
        "hookline.cli.operate:executions_app",
        topic=OPERATE,
        summary="List, follow and summarize executions of hooks.",
    ),
    DeferredCommand(
        "budgets",
        "hookline.cli.operate:budgets_app",
        topic=OPERATE,
        summary="Show what budgets have counted, and reset them.",
    ),
    DeferredCommand(
        "deliveries",
        "hookline.cli.operate:deliveries_app",
        topic=OPERATE,
        summary="Show deliveries to webhooks, and send them again.",
    ),
    DeferredCommand(
        "endpoints",
        "hookline.cli.operate:endpoints_app",
        topic=OPERATE,
        summary="Manage the secrets that sign deliveries to webhooks.",
    ),
    DeferredCommand(
        "relay",
        "hookline.cli.operate:relay_app",
        topic=OPERATE,
        summary="Deliver stored events to remote observers.",
    ),
    DeferredCommand(
        "keys",
        "hookline.cli.operate:keys_app",
        topic=OPERATE,
        summary="Manage API keys, and the master key of secrets.",
    ),
    DeferredCommand(
        "audit",
        "hookline.cli.operate:audit_app",
        topic=OPERATE,
        summary="List and export who changed what.",
    ),
)
"""The commands in the order of the help. The module of a command is imported when the command is called."""


class HooklineGroup(CommandGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in COMMANDS:
            self.add_command(command)


app = CommandApp(
    name="hookline",
    cls=HooklineGroup,
    epilog=EXIT_CODES,
    help="Lifecycle hooks for AI agents: see, steer and test every run.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    """Show the version and exit, before a command is looked for."""
    if wanted:
        import importlib.metadata

        typer.echo(f"hookline {importlib.metadata.version('hookline')}")
        raise typer.Exit


@app.callback()
def hookline(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Lifecycle hooks for AI agents: see, steer and test every run."""
    if context.invoked_subcommand is None:
        typer.echo(OVERVIEW)
        raise typer.Exit(MISUSED)
