"""`hookline host`: install the hook of a coding agent, take it out, see its resident process, and ask it by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hookline.cli._commands import CommandApp
from hookline.cli._exit_codes import FAILED
from hookline.cli._terminal import (
    Column,
    format_clock_time,
    make_one_line,
    print_fields,
    print_json_lines,
    print_list,
)
from hookline.cli.operate._store import AsJson, Files, Modules, Scripts, report_errors_only

if TYPE_CHECKING:
    from hookline.hosts import HostDecision, Installation, ResidentStatus

__all__ = ["host_app"]

NAMES = ("claude", "codex", "gemini", "cursor", "copilot")

host_app = CommandApp(name="host", help="Run your hooks in coding agents such as Claude Code.")

HostName = Annotated[str, typer.Argument(metavar="HOST", help=f"The coding agent: {', '.join(NAMES)}.")]
User = Annotated[
    bool, typer.Option("--user", help="The settings of this user, for all projects, instead of one project's.")
]
Project = Annotated[
    Path, typer.Option(metavar="DIR", exists=True, file_okay=False, help="The project; the current folder by default.")
]
Ours = Annotated[
    list[str] | None,
    typer.Option("--hooks", metavar="PATH", help="Hooks: package.module:name or file.py:name; repeatable."),
]
OwnStore = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="HOOKLINE_STORE",
        help="Keep operations in this store, and ask its hook definitions too: sqlite:///FILE or postgresql://HOST/DATABASE",
    ),
]
Codex = Annotated[str, typer.Option(metavar="PROGRAM", help="The program that is asked to trust the hook of Codex.")]


@host_app.command("install")
def install(
    host: HostName,
    hooks: Ours = None,
    store: OwnStore = "",
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    user: User = False,
    project: Project = Path(),
    tenant: Annotated[str, typer.Option(metavar="ID", help="The tenant of the operations.")] = "",
    timeout: Annotated[
        float, typer.Option(min=0.5, max=600, metavar="SECONDS", help="Seconds that hooks may take for an answer.")
    ] = 20.0,
    ask_timeout: Annotated[
        float,
        typer.Option(min=0, max=86400, metavar="SECONDS", help="Seconds to wait, besides, for a person's approval."),
    ] = 0.0,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An environment variable that hooks see; repeatable.")
    ] = None,
    otlp_endpoint: Annotated[
        str, typer.Option(metavar="URL", envvar="OTEL_EXPORTER_OTLP_ENDPOINT", help="Send spans by OTLP/HTTP.")
    ] = "",
    codex: Codex = "codex",
    yes: Annotated[bool, typer.Option("--yes", help="Trust the hook in Codex without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Install hookline as the hook of a coding agent.

    Its tool calls, prompts and sub-agents then run through your hooks. A hook that fails or hangs denies the call.
    Installing again replaces what was installed. Entries of others, and comments, stay.

    Exits with 1 if Codex does not trust the hook: it would skip it.
    """
    with report_errors_only():
        from hookline.hosts import HOSTS, Scope, install_hook, make_installation

        if not (hooks or store or files):
            raise typer.BadParameter(
                "Say which hooks: --hooks file.py:name, --store URL or --files PATH.", param_hint="'--hooks'"
            )
        made = make_installation(
            host,
            scope=Scope.USER if user else Scope.PROJECT,
            project=project,
            hooks=hooks or (),
            store=store,
            files=files or (),
            modules=modules or (),
            scripts=scripts,
            tenant_id=tenant,
            seconds=timeout,
            ask_seconds=ask_timeout,
            environment=env or (),
            otlp_endpoint=otlp_endpoint,
        )
        events = install_hook(made)
        if as_json:
            print_json_lines([made])
        else:
            typer.echo(f"Installed the hook of {HOSTS[host].title} for {len(events)} events in {made.settings}.")
            typer.echo(HOSTS[host].restart)
        if host == "codex":
            _trust(made, codex, asked=yes, quiet=as_json)


def _trust(made: Installation, program: str, *, asked: bool, quiet: bool) -> None:
    """Have Codex trust the hook, with the person's consent, and check that it does."""
    from hookline.hosts import trust_codex_hooks

    if not asked and not typer.confirm(
        "Codex runs only hooks that you trust. Trust this one?", default=False, err=True
    ):
        typer.echo("Codex does not run the hook, and says nothing about that, until you trust it.", err=True)
        raise typer.Exit(FAILED)
    hooks = trust_codex_hooks(Path(made.folder), str(made.path), program)
    missing = [each.key for each in hooks if not each.trusted]
    if missing or not hooks:
        what = f"does not trust {', '.join(missing)}" if hooks else "does not see the hook"
        more = (
            "" if hooks else " It reads the hooks of a project only if the project is trusted: run `codex` in it once."
        )
        typer.echo(f"Codex {what}, so it skips it.{more}", err=True)
        raise typer.Exit(FAILED)
    if not quiet:
        typer.echo(f"Codex trusts the hook for {len(hooks)} events.")


@host_app.command("uninstall")
def uninstall(host: HostName, user: User = False, project: Project = Path()) -> None:
    """Remove the hook from the settings of a coding agent.

    Its resident process ends. Entries of others, and comments, stay.
    """
    with report_errors_only():
        from hookline.hosts import HOSTS, uninstall_hook

        made = _find(host, user, project)
        if uninstall_hook(made):
            typer.echo(f"The hook of {HOSTS[host].title} is no longer in {made.settings}.")
        else:
            typer.echo(f"The hook of {HOSTS[host].title} was not in {made.settings}.")


@host_app.command("status")
def status(
    host: Annotated[str | None, typer.Argument(metavar="HOST", help="Only this coding agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=50, metavar="N", help="Show this many decisions at most.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what is installed, and its last decisions.

    It shows the resident process of each hook, and where its log is.

    Exits with 1 if a resident process does not answer, or if settings do not name the hook as it was installed.
    """
    with report_errors_only():
        from hookline.hosts import HOSTS, list_installations

        if host is not None and host not in HOSTS:
            raise typer.BadParameter(f"{host!r} is not one of {', '.join(HOSTS)}.", param_hint="HOST")
        found = [each for each in list_installations() if host in (None, each.host)]
        rows = [_look(each) for each in found]
    if as_json:
        print_json_lines(rows)
    elif not rows:
        typer.echo("No hook of a coding agent is installed. See `hookline host install --help`.", err=True)
    for nth, (made, row) in enumerate(zip(found, rows, strict=True)):
        if not as_json:
            if nth:
                typer.echo()
            _show(made, row, limit)
    if any(row.process in ("not answering", "broken") or row.problem for row in rows):
        raise typer.Exit(FAILED)


class HostRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An installation and its resident process, as `hookline host status` shows them.

    Attributes:
        host: The coding agent.
        settings: The file that names the hook.
        events: The events that the settings name.
        problem: What is wrong with the settings; `""` if nothing is.
        process: `"running"`, `"not started"`, `"not answering"` or `"broken"`.
        log: The log of the resident process.
        status: What the resident process says.
    """

    host: str
    settings: str
    events: list[str]
    problem: str
    process: str
    log: str
    status: Any = None


def _look(made: Installation) -> HostRow:
    from hookline.hosts import HOSTS, InstallationError, ResidentError, SettingsError, ask_status, find_hook

    problem, process, found = "", "not started", None
    events: list[str] = []
    try:
        events = find_hook(made)
        missing = [each for each in HOSTS[made.host].installed if each not in events] if made.host in HOSTS else []
        if missing:
            problem = f"the settings do not name the hook for {', '.join(missing)}: install it again"
    except (SettingsError, InstallationError) as error:
        problem = str(error)
    try:
        found = ask_status(made)
        process = "running" if found is not None else "not started"
    except TimeoutError:
        process = "not answering"
    except ResidentError as error:
        process, problem = "broken", problem or str(error)
    return HostRow(
        host=made.host,
        settings=made.settings,
        events=events,
        problem=problem,
        process=process,
        log=f"{made.sockets}/{made.key}.log",
        status=found,
    )


def _show(made: Installation, row: HostRow, limit: int) -> None:
    status: ResidentStatus | None = row.status
    fields: list[tuple[str, object]] = [
        ("coding agent", row.host),
        ("settings", row.settings),
        ("problem", row.problem),
        ("hooks", ", ".join((*made.hooks, *made.files)) or "those of the store"),
        ("store", made.store),
        ("process", row.process if status is None else f"{row.process}, {status.pid}, version {status.version}"),
        ("log", row.log),
    ]
    if status is not None:
        fields += [
            ("questions", str(status.questions)),
            ("sessions", ", ".join(f"{each.session} ({each.operation_id})" for each in status.sessions)),
            ("unknown events", ", ".join(f"{name} ({count})" for name, count in status.unknown_events.items())),
            ("unknown fields", ", ".join(f"{name} ({count})" for name, count in status.unknown_fields.items())),
        ]
    print_fields(fields)
    if status is not None and status.decisions:
        typer.echo()
        print_list(status.decisions[-limit:], _columns(), as_json=False, nothing="")


def _columns() -> list[Column[HostDecision]]:
    return [
        Column("time", lambda each: format_clock_time(each.time)),
        Column("event", lambda each: each.event),
        Column("tool", lambda each: each.tool),
        Column("decision", lambda each: each.decision or "-"),
        Column("ms", lambda each: f"{each.duration_ms:.1f}", rank=1, right=True),
        Column("reason", lambda each: make_one_line(each.reason), rank=2, cut=True),
    ]


@host_app.command("stop")
def stop(host: HostName, user: User = False, project: Project = Path()) -> None:
    """End the resident process; another question starts it."""
    with report_errors_only():
        from hookline.hosts import stop_resident

        typer.echo("It ends." if stop_resident(_find(host, user, project)) else "There was none that answered.")


def _find(host: str, user: bool, project: Path) -> Installation:
    from hookline.errors import HookUsageError
    from hookline.hosts import Scope, find_installation

    found = find_installation(host, Scope.USER if user else Scope.PROJECT, project)
    if found is None:
        where = "for this user" if user else f"in {project.absolute()}"
        raise HookUsageError(f"The hook of {host} is not installed {where}. See `hookline host status`.")
    return found


def _make_asker(host: str) -> Callable[..., None]:
    """Make the command that asks the hook of one coding agent by hand."""

    def ask(
        event: Annotated[
            str, typer.Argument(metavar="EVENT", help="The event, as the coding agent calls it: PreToolUse.")
        ],
        user: User = False,
        project: Project = Path(),
    ) -> None:
        with report_errors_only():
            words = _find(host, user, project).command_words(event)
        sys.stdout.flush()
        os.execv(words[0], words)

    ask.__doc__ = f"""Answer one event of {host}, whose JSON is on stdin.

    The answer on stdout is in the words of {host}: it does exactly what the installed command does, for trying hooks
    by hand.

    Exits with 2 for a call that is denied because the hook failed.
    """
    return ask


for _name in NAMES:
    host_app.command(_name, rich_help_panel="By hand")(_make_asker(_name))
