"""`hookline hooks`: list, show, import, enable, disable, remove, revert and test hook definitions."""

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
    print_json_lines,
    print_list,
    print_result,
    time_field,
)
from hookline.cli.errors import InputFileError
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Files,
    Limit,
    Modules,
    Scripts,
    StoreUrl,
    Tenant,
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
        DefinitionRevision,
        DryRun,
        HookDefinition,
        HostSettings,
        ImportedHook,
        Registry,
    )
    from hookline.store import SqlStore

__all__ = ["hooks_app", "state_of", "with_registry"]

T = TypeVar("T")

KEPT_CHOICES = ("on_error", "priority", "inherit", "except_tenants")
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
        list[Path], typer.Argument(metavar="FILE...", help="Settings of a coding agent: .claude/settings.json.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    tenant: Annotated[str, typer.Option(metavar="ID", help="The tenant that owns them; the system by default.")] = "",
    host: Annotated[
        HostName | None, typer.Option(help="The coding agent; found by the file's folder and events by default.")
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
    removed = [each for each in earlier.values() if each.id not in kept and each.source == "api"]
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
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Enable a hook in all processes, from their next run on."""
    _switch_hook(id, store, tenant, (files, modules, scripts), enabled=True, as_json=as_json)


@hooks_app.command("disable")
def disable_hook(
    id: HookId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Disable a hook in all processes, from their next run on."""
    _switch_hook(id, store, tenant, (files, modules, scripts), enabled=False, as_json=as_json)


def _switch_hook(
    id: str,  # noqa: A002
    url: str,
    tenant: str | None,
    sources: tuple[list[Path] | None, list[str] | None, Path | None],
    *,
    enabled: bool,
    as_json: bool,
) -> None:
    async def switch(registry: Registry) -> HookDefinition:
        before = await registry.get(id, tenant)
        owner = before.tenant_id if tenant is None else tenant
        return await registry.set_enabled(id, enabled, tenant_id=owner, actor=actor())

    found = operate(url, with_registry(switch, *sources))
    state = "on" if found.enabled else "off"
    print_result(found, f"{make_copyable(found.id)} is {state}: {make_one_line(found.name)}", as_json=as_json)


@hooks_app.command("remove")
def remove_hook(
    id: HookId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Delete a hook definition."""

    async def remove(registry: Registry) -> HookDefinition:
        found = await registry.get(id, tenant)
        await registry.delete(id, tenant_id=found.tenant_id if tenant is None else tenant, actor=actor())
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


@hooks_app.command("revert")
def revert_hook(
    id: HookId,  # noqa: A002
    revision: Annotated[
        int, typer.Argument(min=0, metavar="REVISION", help="One that `hookline hooks history` shows.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Go back to a revision of a hook definition.

    This is a new revision. A definition that was removed is brought back.
    """

    async def revert(registry: Registry) -> HookDefinition:
        found = await registry.revisions(id, tenant, limit=1)
        owner = found.items[0].tenant_id if tenant is None and found.items else tenant
        return await registry.revert(id, revision, tenant_id=owner, actor=actor())

    found = operate(store, with_registry(revert, None, modules, scripts))
    told = f"{make_copyable(found.id)} is again what it was at revision {revision}: {make_one_line(found.name)}"
    print_result(found, told, as_json=as_json)


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
            store, files=files or (), modules=modules or (), scripts=scripts, endpoint_secrets=signed
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
    webhook = definition.webhook
    return definition.handler or definition.script or ("" if webhook is None else webhook.url)


def _columns() -> list[Column[HookDefinition]]:
    return [
        Column("id", lambda each: each.id),
        Column("state", lambda each: format_status(state_of(each))),
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


def _print_definition(found: HookDefinition, *, as_json: bool) -> None:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    apart = {"id", "enabled", "problem", "createdAt", "updatedAt", "webhook"}
    shown = [
        ("id", found.id),
        ("state", format_status(state_of(found))),
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
