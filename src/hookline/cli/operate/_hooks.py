"""`hookline hooks`: list, show, import, enforce, enable, order, remove, revert, test and backtest definitions."""

from __future__ import annotations

import enum
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.text import Text

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._exit_codes import FAILED
from hookline.cli._terminal import (
    Column,
    format_full_time,
    format_status,
    make_copyable,
    make_one_line,
    parse_option,
    parse_time,
    print_json_lines,
    print_list,
    print_result,
    time_field,
)
from hookline.cli.errors import InputFileError
from hookline.cli.operate._backtest import BacktestProgress, print_backtest
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Fence,
    Files,
    Limit,
    Modules,
    Scripts,
    Since,
    StoreUrl,
    Tenant,
    Until,
    actor,
    check_point,
    check_store,
    find_modules,
    operate,
    read_pages,
    report_errors_only,
)

if TYPE_CHECKING:
    from hookline.registry import (
        Backtest,
        CallLabel,
        DefinitionRevision,
        DryRun,
        HookDefinition,
        HookFile,
        HostSettings,
        ImportedHook,
        Mode,
        PolicyAlert,
        Registry,
    )
    from hookline.store import SqlStore

__all__ = ["hooks_app", "read_hook_file", "state_of", "with_registry", "without_derived_id"]

T = TypeVar("T")

KEPT_CHOICES = (
    *("on_error", "priority", "inherit", "mode"),
    *("except_tenants", "tenants", "agents", "operation_tags", "environments", "percent"),
)
"""Fields of an imported definition that a second import leaves as they are."""
LARGEST_IMPORT = 100_000
"""Definitions among which those of an earlier import are looked for."""

hooks_app = CommandApp(name="hooks", cls=ListGroup, help="Manage hooks that are stored as data.")


class HostName(enum.StrEnum):
    """The coding agents whose settings can be imported."""

    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    COPILOT = "copilot"


HookId = Annotated[str, typer.Argument(metavar="ID", help="The definition, as `hookline hooks list` shows it.")]


@hooks_app.command("list")
def list_hooks(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Annotated[
        str | None, typer.Option(metavar="ID", help="Only hooks in this tenant's runs: its own and the system's.")
    ] = None,
    point: Annotated[str | None, typer.Option(metavar="POINT", help="Only at this point: ToolCall.guard.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Only enabled hooks, or only disabled ones.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Only with all of these words: --text 'refund shop'.")
    ] = None,
    limit: Limit = 50,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """List hook definitions: the system's first, then those of tenants."""
    check_point(point)

    async def look(registry: Registry) -> tuple[Sequence[HookDefinition], bool]:
        return await read_pages(partial(registry.list, tenant, point=point, enabled=enabled, text=text), limit)

    found, more = operate(store, with_registry(look, files, modules, scripts))
    print_list(found, _columns(), as_json=as_json, nothing="There are no hook definitions.", more=more)


@hooks_app.command("show")
def show_hook(
    id: HookId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Show a hook definition in full."""
    found = operate(store, with_registry(lambda registry: registry.get(id, tenant), files, modules, scripts))
    _print_definition(found, as_json=as_json)


@hooks_app.command("import")
def import_hooks(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Settings of a coding agent: .claude/settings.json.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    tenant: Annotated[str, typer.Option(metavar="ID", help="The tenant that owns them; the system by default.")] = "",
    host: Annotated[
        HostName | None,
        typer.Option(
            metavar="HOST",
            help="The coding agent: claude, codex, gemini or copilot. By default, the file's folder and events tell.",
        ),
    ] = None,
    project: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", exists=True, file_okay=False, help="Where commands run; the file's project by default."
        ),
    ] = None,
    scripts: Scripts = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be stored; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store the hooks that coding agents have in their settings.

    Reads settings of Claude Code, Codex, Gemini CLI and Copilot CLI. Each command becomes a script in the folder of
    scripts, each HTTP hook a webhook. Stderr says what cannot be taken over, and why. Hooks that an earlier import of
    the same file has stored, and that are not in it any more, are removed; others keep their onError and priority.
    """
    from hookline.registry import read_host_settings

    with report_errors_only():
        read = [read_host_settings(file, host=host and host.value, project=project, tenant_id=tenant) for file in files]
    skipped = [str(each) for settings in read for each in settings.skipped]
    imported = [(file, hook) for file, settings in zip(files, read, strict=True) for hook in settings.hooks]
    definitions = [hook.definition for _, hook in imported]
    removed: list[HookDefinition] = []
    if not dry_run and (imported or check_store(store, creates=True)):
        if any(hook.script for _, hook in imported):
            if scripts is None:
                raise typer.BadParameter(
                    "The commands of these settings become scripts; say in which folder.", param_hint="'--scripts'"
                )
            with report_errors_only():
                _write_scripts(read, scripts)

        async def store_all(registry: Registry) -> tuple[list[HookDefinition], list[HookDefinition]]:
            return await _store_imported(registry, imported, skipped, {settings.tag for settings in read}, tenant)

        definitions, removed = operate(store, with_registry(store_all, None, None, scripts), creates=True)
    for each in skipped:
        typer.echo(f"Not taken over: {make_one_line(each)}", err=True)
    if as_json:
        print_json_lines(definitions)
        return
    if not definitions:
        typer.echo("There are no hooks to import.", err=True)
    for definition in definitions:
        did = "Would store" if dry_run else "Stored"
        told = f"{make_one_line(definition.name)} at {definition.point}, {state_of(definition)}"
        typer.echo(f"{did} {make_copyable(definition.id)}: {told}.")
    for definition in removed:
        typer.echo(f"Removed {make_copyable(definition.id)}: {make_one_line(definition.name)}")


async def _store_imported(
    registry: Registry, imported: list[tuple[Path, ImportedHook]], skipped: list[str], tags: set[str], tenant: str
) -> tuple[list[HookDefinition], list[HookDefinition]]:
    """Store imported hooks, and delete those that an earlier import of the same files has stored.

    Args:
        registry: The registry.
        imported: The hooks with their files; those that the registry refuses are taken out.
        skipped: Gets the refused ones, with the reason.
        tags: The tags of the files.
        tenant: The tenant that owns the definitions.

    Returns:
        The stored definitions, and the deleted ones.
    """
    from hookline.registry import DefinitionError

    found, _ = await read_pages(partial(registry.list, tenant), LARGEST_IMPORT)
    earlier = {each.id: each for each in found if each.tenant_id == tenant and tags & set(each.tags)}
    while True:
        try:
            left = [_keep_choices(hook.definition, earlier.get(hook.definition.id)) for _, hook in imported]
            stored = await registry.apply(left, tenant_id=tenant, actor=actor())
            break
        except DefinitionError as error:
            nth, _, path = error.path.removeprefix("$[").partition("]")
            if not nth.isdigit():
                raise
            file, hook = imported.pop(int(nth))
            place = f"{file}, line {hook.line}: {hook.definition.name}"
            skipped.append(f"{place}: {error.problem}, at ${path}")
    kept = {each.id for each in stored}
    removed = [each for each in earlier.values() if each.id not in kept and each.is_stored]
    for definition in removed:
        await registry.delete(definition.id, tenant_id=tenant, actor=actor())
    return stored, removed


def _keep_choices(new: HookDefinition, old: HookDefinition | None) -> HookDefinition:
    """Return an imported definition with what was set for it since an earlier import, and no settings file has."""
    if old is None:
        return new
    changes: dict[str, Any] = {name: getattr(old, name) for name in KEPT_CHOICES}
    if new.webhook is not None and old.webhook is not None:
        changes["webhook"] = msgspec.structs.replace(new.webhook, on_error=old.webhook.on_error)
    return msgspec.structs.replace(new, **changes)


def _write_scripts(read: Sequence[HostSettings], folder: Path) -> None:
    """Write the scripts of imported hooks.

    Raises:
        InputFileError: If one cannot be written.
    """
    try:
        for settings in read:
            settings.write_scripts(folder)
    except OSError as error:
        raise InputFileError(str(folder), f"no script can be written to it ({error.strerror or error})") from None


@hooks_app.command("enable")
def enable_hook(
    id: HookId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    fence: Fence = False,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Enable a hook in all processes, from their next run on."""
    _switch_hook(id, store, tenant, (files, modules, scripts), enabled=True, fence=fence, as_json=as_json)


@hooks_app.command("disable")
def disable_hook(
    id: HookId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    fence: Fence = False,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Disable a hook in all processes, from their next run on."""
    _switch_hook(id, store, tenant, (files, modules, scripts), enabled=False, fence=fence, as_json=as_json)


def _switch_hook(
    id: str,  # noqa: A002
    url: str,
    tenant: str | None,
    sources: tuple[list[Path] | None, list[str] | None, Path | None],
    *,
    enabled: bool,
    fence: bool,
    as_json: bool,
) -> None:
    async def switch(registry: Registry) -> HookDefinition:
        before = await registry.get(id, tenant)
        owner = before.tenant_id if tenant is None else tenant
        return await registry.set_enabled(id, enabled, tenant_id=owner, actor=actor(), fence=fence)

    found = operate(url, with_registry(switch, *sources))
    state = "on" if found.enabled else "off"
    print_result(found, f"{make_copyable(found.id)} is {state}: {make_one_line(found.name)}", as_json=as_json)


Percent = Annotated[
    float | None,
    typer.Option(metavar="PERCENT", help="For this share of operations, 0 to 100, such as 0.01; as before by default."),
]
ForAgents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="GLOB", help="Only for agents of this id, such as refund*; repeatable."),
]
ForTags = Annotated[
    list[str] | None,
    typer.Option(
        "--operation-tag", metavar="GLOB", help="Only for operations with this tag, such as vip*; repeatable."
    ),
]
ForTenants = Annotated[
    list[str] | None, typer.Option("--for-tenant", metavar="ID", help="Only for this tenant; repeatable.")
]
ForEnvironments = Annotated[
    list[str] | None,
    typer.Option("--environment", metavar="NAME", help="Only in this environment; repeatable."),
]
Everywhere = Annotated[
    bool, typer.Option("--everywhere", help="For all agents, tags, tenants and environments that are not named.")
]


@hooks_app.command("enforce")
def enforce_hook(
    id: HookId,  # noqa: A002
    percent: Percent = None,
    agent: ForAgents = None,
    operation_tag: ForTags = None,
    for_tenant: ForTenants = None,
    environment: ForEnvironments = None,
    everywhere: Everywhere = False,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    fence: Fence = False,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Have a hook decide from now on, for some or all operations.

    The next run follows. What is not named stays as it is. `hookline hooks revert ID` takes it back.
    """
    scope = _read_scope(percent, agent, operation_tag, for_tenant, environment, everywhere=everywhere)
    _set_mode(id, "enforce", scope, store, tenant, (modules, scripts), fence=fence, as_json=as_json)


@hooks_app.command("shadow")
def shadow_hook(
    id: HookId,  # noqa: A002
    percent: Percent = None,
    agent: ForAgents = None,
    operation_tag: ForTags = None,
    for_tenant: ForTenants = None,
    environment: ForEnvironments = None,
    everywhere: Everywhere = False,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    fence: Fence = False,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Only record what a hook would decide from now on.

    The next run follows. What is not named stays as it is. `hookline hooks revert ID` takes it back.
    """
    scope = _read_scope(percent, agent, operation_tag, for_tenant, environment, everywhere=everywhere)
    _set_mode(id, "shadow", scope, store, tenant, (modules, scripts), fence=fence, as_json=as_json)


def _read_scope(
    percent: float | None,
    agents: list[str] | None,
    tags: list[str] | None,
    tenants: list[str] | None,
    environments: list[str] | None,
    *,
    everywhere: bool,
) -> dict[str, Any]:
    """Return the fields of a definition that options about its operations set."""
    named = {"agents": agents, "operation_tags": tags, "tenants": tenants, "environments": environments}
    scope: dict[str, Any] = {name: given or [] for name, given in named.items() if given or everywhere}
    return scope if percent is None else scope | {"percent": percent}


def _set_mode(
    id: str,  # noqa: A002
    mode: Mode,
    scope: dict[str, Any],
    url: str,
    tenant: str | None,
    sources: tuple[list[str] | None, Path | None],
    *,
    fence: bool,
    as_json: bool,
) -> None:
    async def change(registry: Registry) -> HookDefinition:
        before = await registry.get(id, tenant)
        owner = before.tenant_id if tenant is None else tenant
        changes = {"mode": mode} | scope
        return await registry.update(
            id, changes, tenant_id=owner, if_revision=before.revision, actor=actor(), fence=fence
        )

    found = operate(url, with_registry(change, None, *sources))
    whom = found.describe_scope() or "all operations"
    does = "is enforced" if mode == "enforce" else "is in shadow"
    off = "" if found.enabled else ", as soon as it is enabled"
    told = f"{make_copyable(found.id)} {does} for {make_one_line(whom)}{off}: {make_one_line(found.name)}"
    print_result(found, told, as_json=as_json)


@hooks_app.command("order")
def order_hooks(
    point: Annotated[str, typer.Argument(metavar="POINT", help="The point: ToolCall.guard.")],
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="All definitions of the owner at that point.")],
    store: StoreUrl = DEFAULT_STORE,
    tenant: Annotated[str, typer.Option(metavar="ID", help="The owner; the system by default.")] = "",
    fence: Fence = False,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Have the hooks at a point run in the given order.

    The first one is outermost. As few priorities as possible change, all at once.
    """
    check_point(point)

    async def order(registry: Registry) -> Sequence[HookDefinition]:
        return await registry.reorder(point, ids, tenant_id=tenant, actor=actor(), fence=fence)

    found = operate(store, with_registry(order, files, modules, scripts))
    print_list(found, _columns(), as_json=as_json, nothing="There are no hook definitions.")


@hooks_app.command("remove")
def remove_hook(
    id: HookId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    fence: Fence = False,
    as_json: AsJson = False,
) -> None:
    """Delete a hook definition."""

    async def remove(registry: Registry) -> HookDefinition:
        found = await registry.get(id, tenant)
        owner = found.tenant_id if tenant is None else tenant
        await registry.delete(id, tenant_id=owner, actor=actor(), fence=fence)
        return found

    found = operate(store, with_registry(remove, None, None, None))
    print_result(found, f"Removed {make_copyable(found.id)}: {make_one_line(found.name)}", as_json=as_json)


@hooks_app.command("history")
def show_history(
    id: HookId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the changes of a hook definition, newest first.

    The newest 100 of each definition are kept, also after it was removed. `hookline hooks revert` goes back to one.
    """

    async def look(registry: Registry) -> tuple[Sequence[DefinitionRevision], bool]:
        return await read_pages(partial(registry.revisions, id, tenant), limit)

    found, more = operate(store, with_registry(look, None, None, None))
    print_list(found, _revision_columns(), as_json=as_json, nothing="There are no revisions of it.", more=more)


@hooks_app.command("alerts")
def list_alerts(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="Only alerts of this definition.")] = None,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    since: Since = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the alerts of policies, newest first.

    A hook was put into shadow mode by its limits (fallback), or would deny more or fewer calls than before (rate).
    Alerts are kept for 30 days.
    """
    begin = parse_option("--since", since, parse_time)

    async def look(registry: Registry) -> tuple[Sequence[PolicyAlert], bool]:
        return await read_pages(partial(registry.alerts, tenant, hook_id=id, since=begin), limit)

    found, more = operate(store, with_registry(look, None, None, None))
    print_list(found, _alert_columns(), as_json=as_json, nothing="There are no alerts.", more=more)


@hooks_app.command("revert")
def revert_hook(
    id: HookId,  # noqa: A002
    revision: Annotated[
        int | None,
        typer.Argument(
            min=0, metavar="REVISION", help="One that `hookline hooks history` shows; by default, the one before."
        ),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    fence: Fence = False,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Go back to a revision of a hook definition.

    By default, this takes back the last change. It is a new revision. A definition that was removed is brought back.
    """

    async def revert(registry: Registry) -> tuple[HookDefinition, int]:
        history = (await registry.revisions(id, tenant, limit=2)).items
        owner = history[0].tenant_id if tenant is None and history else tenant
        wanted = _find_step_back(history) if revision is None else revision
        return await registry.revert(id, wanted, tenant_id=owner, actor=actor(), fence=fence), wanted

    found, wanted = operate(store, with_registry(revert, None, modules, scripts))
    told = f"{make_copyable(found.id)} is again what it was at revision {wanted}: {make_one_line(found.name)}"
    print_result(found, told, as_json=as_json)


def _find_step_back(history: Sequence[DefinitionRevision]) -> int:
    """Return the revision before the last change; that of a deletion has the definition as it was.

    Raises:
        DefinitionError: If there is none.
    """
    from hookline.registry import DefinitionError

    if history and history[0].action == "delete":
        return history[0].revision
    if len(history) < 2:
        raise DefinitionError("invalid", "$.revision", "it was never changed, so there is no revision to go back to")
    return history[1].revision


@hooks_app.command("test")
def try_hook(
    id: HookId,  # noqa: A002
    call: Annotated[
        str, typer.Option(metavar="JSON", help="Fields of the call or event to try it on; - reads them from stdin.")
    ] = "{}",
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long it may take.")] = 5.0,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Test a hook on a sample call.

    Nothing is logged, counted or stored. Exits with 1 if the hook fails. A hook that denies has not failed.
    """
    sample = _parse_sample(call)

    async def attempt(registry: Registry) -> DryRun:
        from hookline.registry import DefinitionError

        try:
            return await registry.dry_run(id, sample, tenant_id=tenant, timeout=timeout)
        except DefinitionError as error:
            if not error.path.startswith("$.sample"):
                raise
            raise typer.BadParameter(f"{error.problem}, at {error.path}", param_hint="'--call'") from None

    found = operate(store, with_registry(attempt, files, modules, scripts))
    _print_dry_run(found, as_json=as_json)
    if found.outcome == "failed":
        raise typer.Exit(FAILED)


@hooks_app.command("backtest")
def backtest_hook(
    id: Annotated[  # noqa: A002
        str | None, typer.Argument(metavar="ID", help="The definition, by id; with --file by id or name.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the definition from this file: TOML, YAML or JSON. It is not stored."),
    ] = None,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Only calls of this agent.")] = None,
    tool: Annotated[str | None, typer.Option(metavar="GLOB", help="Count only calls of these tools: 'bank/*'.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="People's labels: a .csv or .jsonl file with operation, call and label (allow, deny)."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Judge this many calls at most.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECONDS", help="How long the whole may take.")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, metavar="N", help="Show this many examples of each kind.")] = 5,
    allow_webhooks: Annotated[
        bool, typer.Option("--allow-webhooks", help="Ask the receiver of a control webhook about each stored call.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Judge stored calls with a hook, and say what it would have done.

    The result has the calls that it would have denied, changed or asked about. The calls of each operation are judged
    in order, the newest operation first. No tool runs, nothing is stored, and nobody is asked. False alarms and misses
    are counted where people have decided about calls, or have labelled them.
    """
    begin, end = parse_option("--since", since, parse_time), parse_option("--until", until, parse_time)
    judged: str | HookDefinition
    with report_errors_only():
        judged = _choose_definition(id, file)
        known = [] if labels is None else _read_labels(labels)

    async def judge(registry: Registry) -> Backtest:
        with BacktestProgress() as progress:
            return await registry.backtest(
                judged,
                tenant_id=tenant,
                agent_id=agent,
                tool=tool,
                since=begin,
                until=end,
                limit=limit,
                timeout=timeout,
                labels=known,
                examples=examples,
                allow_webhooks=allow_webhooks,
                on_progress=progress,
            )

    print_backtest(operate(store, with_registry(judge, files, modules, scripts)), as_json=as_json)


def _choose_definition(id: str | None, file: Path | None) -> str | HookDefinition:  # noqa: A002
    """Return the id of a stored definition, or the definition of a file that has it by id or name."""
    if file is None:
        if id is None:
            raise typer.BadParameter("Name a definition, or a file with --file.", param_hint="'ID'")
        return id
    found = [without_derived_id(each) for each in read_hook_file(file).definitions]
    chosen = found if id is None else [each for each in found if id in (each.id, each.name)]
    if len(chosen) != 1:
        names = ", ".join(each.name for each in found) or "none"
        problem = "Say which one" if chosen else f"There is no {id!r}"
        raise typer.BadParameter(f"{problem}; the definitions of {file} are: {names}.", param_hint="'ID'")
    return chosen[0]


def read_hook_file(file: Path) -> HookFile:
    """Read a file of definitions once, so that what is shown is what is stored.

    Raises:
        HooklineError: If it cannot be read.
    """
    from hookline.registry import load_hook_file, parse_hook_file

    if str(file) == "-":
        return parse_hook_file("stdin", sys.stdin.read().encode(errors="surrogateescape"), suffix=".json")
    return load_hook_file(file)


def without_derived_id(definition: HookDefinition) -> HookDefinition:
    """Return a definition without an id that was only made from its name, so that its name finds the stored one."""
    from hookline.registry import derive_id

    made = derive_id(definition.tenant_id, definition.point, definition.name)
    return msgspec.structs.replace(definition, id="") if definition.id == made else definition


def _read_labels(file: Path) -> list[CallLabel]:
    from hookline.registry import read_call_labels

    return list(read_call_labels(file))


def with_registry(
    work: Callable[[Registry], Awaitable[T]],
    files: list[Path] | None,
    modules: list[str] | None,
    scripts: Path | None,
) -> Callable[[SqlStore], Awaitable[T]]:
    """Return work for `operate` that opens the registry of a store and passes it on."""

    async def workwith_registry(store: SqlStore) -> T:
        from hookline.delivery import EndpointSecrets, KeyRing
        from hookline.registry import Registry

        find_modules(modules)
        signed = not await EndpointSecrets(store, None, environment=KeyRing()).is_fresh()
        async with Registry(
            store, files=files or (), modules=modules or (), scripts=scripts, endpoint_secrets=signed, needs_bus=False
        ) as registry:
            return await work(registry)

    return workwith_registry


def _parse_sample(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(sys.stdin.read() if text == "-" else text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"It is not JSON: {error}", param_hint="'--call'") from None
    if not isinstance(found, dict):
        raise typer.BadParameter('It must be an object, such as {"apiName": "pay"}.', param_hint="'--call'")
    return found


def state_of(definition: HookDefinition) -> str:
    """Return whether a hook takes part in runs; `"not here"` if this process lacks what it names."""
    if not definition.enabled:
        return "off"
    return "not here" if definition.problem else "shadow" if definition.mode == "shadow" else "on"


def _target(definition: HookDefinition) -> str:
    return definition.target


def _columns() -> list[Column[HookDefinition]]:
    return [
        Column("id", lambda each: each.id),
        Column("state", lambda each: format_status(state_of(each))),
        Column("for", lambda each: each.describe_scope(), rank=2, cut=True),
        Column("point", lambda each: each.point, rank=1),
        Column("name", lambda each: each.name, rank=2, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=3),
        Column("runs", _target, rank=4, cut=True),
        Column("prio", lambda each: str(each.priority), rank=5, right=True),
        Column("source", lambda each: each.source.removeprefix("api"), rank=6, cut=True),
        Column("problem", lambda each: Text(make_one_line(each.problem), style="red"), rank=7, cut=True),
    ]


def _revision_columns() -> list[Column[DefinitionRevision]]:
    return [
        Column("revision", lambda each: str(each.revision), right=True),
        Column("when", lambda each: format_full_time(each.created_at)),
        Column("action", lambda each: each.action),
        Column("by", lambda each: each.actor, rank=1),
        Column("changed", lambda each: ", ".join(change.field for change in each.changes), rank=2, cut=True),
    ]


def _alert_columns() -> list[Column[PolicyAlert]]:
    return [
        Column("when", lambda each: format_full_time(each.created_at)),
        Column("kind", lambda each: each.kind),
        Column("hook", lambda each: each.alert.definition_id),
        Column("revision", lambda each: str(each.alert.revision), rank=2, right=True),
        Column("what", lambda each: each.message, rank=1, cut=True),
        Column("tenant", lambda each: each.alert.tenant_id, rank=3),
    ]


def _print_definition(found: HookDefinition, *, as_json: bool) -> None:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    apart = {"id", "enabled", "problem", "createdAt", "updatedAt", "webhook"}
    shown = [
        ("id", found.id),
        ("state", format_status(state_of(found))),
        ("for", found.describe_scope() or "all operations"),
        ("problem", found.problem),
        *((name, value) for name, value in plain.items() if name not in apart),
        *((f"webhook.{name}", value) for name, value in (plain["webhook"] or {}).items()),
        time_field("created", found.created_at or None),
        time_field("updated", found.updated_at or None),
    ]
    print_result(found, shown, as_json=as_json)


def _print_dry_run(found: DryRun, *, as_json: bool) -> None:
    shown = [
        ("hook", found.hook_id),
        ("point", found.point),
        ("outcome", format_status(found.outcome)),
        ("reason", found.reason),
        ("error", found.error),
        ("call", found.call),
        ("result", found.result),
        ("payload", found.payload),
        ("context", found.context or ""),
        ("took", f"{found.duration_ms:.2f} ms"),
    ]
    print_result(found, shown, as_json=as_json)
