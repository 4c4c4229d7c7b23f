"""Views of hook definitions: the list, a single one with its history, its switches, and its dry run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import Response, get, post

from hookline.errors import HookUsageError
from hookline.registry import (
    POINTS,
    Backtest,
    CallMatches,
    DefinitionConflictError,
    DefinitionError,
    DefinitionNotFoundError,
    DefinitionRevision,
    DryRun,
    FenceError,
    HookDefinition,
    PolicyAlert,
)
from hookline.server._actors import describe_actors
from hookline.server._backtests import ShownBacktest
from hookline.server._callers import Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._context import context_of
from hookline.server.page._forms import read_form
from hookline.server.page.hooks._fields import (
    POINT_GROUPS,
    FieldGroup,
    FormField,
    FormProblems,
    draw_scope,
    place_problem,
    read_groups,
    write_values,
)
from hookline.server.page.hooks._form import FORM_ROUTES
from hookline.server.page.hooks._order import ORDER_ROUTES
from hookline.server.page.hooks._samples import first_sample, parse_call, write_sample
from hookline.server.page.hooks._shadow_view import read_shadow_view
from hookline.server.routes import (
    BacktestBody,
    HookChanges,
    Id,
    Reverting,
    Switching,
    Trial,
    change_hook,
    delete_hook,
    list_deleted_hooks,
    list_hooks,
    match_hook,
    read_changeable,
    read_history,
    read_visible,
    revert_hook,
    start_visible_backtest,
    toggle_hook,
    try_hook,
)
from hookline.store import DAY, Page

__all__ = ["ROUTES"]

ROWS = 100
LONGEST_TEXT = 400
TRIES = 5
RECENT = 5
"""Revisions that the page of a hook shows."""
SHOWN_ALERTS = 5
"""Alerts that the page of a hook shows."""
MOST_ALERTS = 1000
"""Alerts in which the list looks for those of its hooks."""
BACKTEST_DAYS = {"1": "day", "7": "7 days", "30": "30 days"}
SHOWN_EXAMPLES = 5
BACKTEST_SECONDS = 20.0
AT_ONCE = 0.5
"""Seconds after which a page is shown although what it has begun goes on."""
READS, CHANGES = {"scope": "hooks:read"}, {"scope": "hooks:manage"}
ENABLED = {"yes": True, "no": False}
ACTIONS = {
    "keep": "oldest known version",
    "create": "created",
    "update": "changed",
    "enable": "enabled",
    "disable": "disabled",
    "reorder": "reordered",
    "revert": "restored",
    "delete": "deleted",
    "fallback": "put into shadow mode by its limits",
}
"""What was done, for people."""
DONE = {name: f"This hook was {words}" for name, words in ACTIONS.items()} | {
    "keep": "This hook was changed",
    "create": "This hook was created again",
    "reorder": "The order of this hook was changed",
    "revert": "An older revision of this hook was restored",
}
FENCED = (FenceError, HookUsageError)
"""Errors of a change with a fence that no process takes part in, or that some have not confirmed in time."""
STALE = (DefinitionConflictError, DefinitionNotFoundError, ApiError)
"""Errors of a change for which a definition is not as the form has shown it, or is gone."""


@get("/hooks", opt=READS)
async def show_hooks(request: Req) -> Response[str]:
    """Show the list of definitions, in the order of creation."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("text", "point", "enabled", "tenant", "cursor")}
    if asked["point"] not in POINTS:
        asked["point"] = None
    if len(asked["text"] or "") > LONGEST_TEXT:
        raise ApiError(422, "invalid", f"The text can have at most {LONGEST_TEXT} characters.")
    found = await list_hooks.fn(
        request,
        tenant_id=asked["tenant"],
        point=asked["point"],
        enabled=ENABLED.get(asked["enabled"] or ""),
        text=asked["text"],
        cursor=asked["cursor"],
        limit=ROWS,
    )
    registry = context.parts.registry
    return context.render_page(
        request,
        "hooks/hooks.html",
        page=found.content,
        asked=asked,
        points=POINT_GROUPS,
        back=context.current_place(request),
        is_filtered=any(asked[name] for name in ("text", "point", "enabled", "tenant")),
        tenants=registry.tenants() if caller.sees_all else [],
        alerts=await _read_alerts(request, caller.tenant(asked["tenant"])),
        problems=registry.problems if caller.sees_all else (),
    )


async def _read_alerts(request: Req, tenant_id: str | None) -> dict[tuple[str, str], PolicyAlert]:
    """Read the newest alert of each definition in the last day, by its tenant and id."""
    parts = context_of(request).parts
    since = await parts.store.now() - DAY
    page = await parts.registry.alerts(tenant_id, since=since, limit=MOST_ALERTS)
    return {(each.alert.tenant_id, each.alert.definition_id): each for each in reversed(page.items)}


@get("/hooks/{id:str}", opt=READS)
async def show_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show one definition."""
    return await _render_hook(request, id, request.query_params.get("tenant"))


@get("/hooks/{id:str}/matches", opt=READS)
async def show_matches(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show how many calls of the last day a hook is for; the page of the hook loads this part by itself."""
    tenant = request.query_params.get("tenant")
    found: CallMatches = await match_hook.fn(request, id, tenant_id=tenant)
    return await _render_hook(request, id, tenant, matches=found)


@post("/hooks/{id:str}/switch", opt=CHANGES)
async def switch_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Switch a definition on or off."""
    context = context_of(request)
    fields = await read_form(request)
    enabled, tenant = fields.get("enabled") == "yes", fields.get("tenant")
    tag = f'"{fields.get("revision", "")}"'
    try:
        await toggle_hook.fn(
            request, id, Switching(enabled=enabled), tenant_id=tenant, if_match=tag, fence=_read_fence(fields)
        )
    except FENCED as error:
        return await _render_hook(request, id, tenant, unconfirmed=str(error))
    except STALE as error:
        found = await _find(request, id, tenant)
        if found is None or found.enabled != enabled:
            return await _render_stale(request, id, tenant, error)
    notice = "on" if enabled else "off"
    if fields.get("from") == "one":
        return context.redirect(request, f"/hooks/{id}", notice=notice, tenant=fields.get("tenant", ""))
    return context.redirect_back(request, fields.get("back", ""), "/hooks", notice=notice)


def _read_fence(fields: Mapping[str, str]) -> bool:
    """Return whether a change is to take effect in operations that are running."""
    return fields.get("fence") == "yes"


@post("/hooks/{id:str}/tenants", opt=CHANGES)
async def switch_hook_for_tenant(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Switch a system hook off for one tenant, or on again."""
    context = context_of(request)
    fields = await read_form(request)
    off, on = fields.get("off", "").strip(), fields.get("on", "")
    if not off and not on:
        return await _render_hook(request, id, "", tenant_problem="Name the tenant.")
    try:
        await _leave_out(request, id, off, on)
    except (DefinitionError, msgspec.ValidationError) as error:
        problem = error.problem if isinstance(error, DefinitionError) else "This is no id of a tenant."
        return await _render_hook(request, id, "", tenant_problem=problem, tenant_typed=off)
    return context.redirect(request, f"/hooks/{id}", notice="left_out" if off else "taken_in", tenant="")


async def _leave_out(request: Req, id: Id, off: str, on: str) -> None:  # noqa: A002
    """Leave one tenant out of a system hook, or take it in again, whatever else others change meanwhile.

    Raises:
        DefinitionConflictError: If it was changed again and again meanwhile.
    """
    registry, caller = context_of(request).parts.registry, caller_of(request)
    for tries_left in reversed(range(TRIES)):
        found = await read_changeable(registry, caller, id, "")
        left_out = [each for each in found.except_tenants if each != on]
        if off in left_out or (not off and left_out == found.except_tenants):
            return  # it was sent twice, or somebody else has done the same
        changes = msgspec.convert({"exceptTenants": [*left_out, *([off] if off else [])]}, HookChanges)
        try:
            await change_hook.fn(request, id, changes, tenant_id="", if_match=f'"{found.revision}"')
        except DefinitionConflictError:
            if not tries_left:
                raise
        else:
            return


@post("/hooks/{id:str}/rollout", opt=CHANGES)
async def roll_out_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Have a definition decide, or only record what it would decide, for the operations that the form names."""
    context = context_of(request)
    fields = {name: value.replace("\r\n", "\n") for name, value in (await read_form(request)).items()}
    tenant, mode = fields.get("tenant"), fields.get("mode")
    found = await read_changeable(context.parts.registry, caller_of(request), id, tenant)
    drawn = _fill_scope(request, found, fields)
    given, problems = read_groups([FieldGroup(title="", fields=drawn)])
    unset: dict[str, Any] = {each.name: 100 if each.name == "percent" else [] for each in drawn}
    if not problems:
        try:
            changes = msgspec.convert(unset | given | {"mode": mode}, HookChanges)
            tag = f'"{fields.get("revision", "")}"'
            await change_hook.fn(
                request, id, changes, tenant_id=found.tenant_id, if_match=tag, fence=_read_fence(fields)
            )
        except FENCED as error:
            return await _render_hook(request, id, tenant, scope=drawn, unconfirmed=str(error))
        except (DefinitionError, msgspec.ValidationError) as error:
            problems = _place_problem(error, [each.name for each in drawn])
        except STALE as error:
            now = msgspec.to_builtins(await _find(request, id, tenant))
            wanted: dict[str, Any] = msgspec.to_builtins(changes)
            if now is None or any(now[name] != value for name, value in wanted.items()):
                return await _render_stale(request, id, tenant, error)  # else it was sent twice
    if problems:
        drawn = [msgspec.structs.replace(each, problem=problems.get(each.name, "")) for each in drawn]
        return await _render_hook(request, id, tenant, scope=drawn, stale=problems.get("", ""))
    notice = "enforced" if mode == "enforce" else "shadowed"
    return context.redirect(request, f"/hooks/{id}", notice=notice, tenant=found.tenant_id)


def _fill_scope(request: Req, definition: HookDefinition, values: Mapping[str, str]) -> list[FormField]:
    """Draw the fields that say for which operations a hook is, with their texts."""
    caller = caller_of(request)
    owner = {"point": definition.point, "tenantId": definition.tenant_id}
    tenants = context_of(request).parts.registry.tenants() if caller.sees_all else None
    return [msgspec.structs.replace(each, value=values.get(each.name, "")) for each in draw_scope(owner, tenants)]


def _place_problem(error: DefinitionError | msgspec.ValidationError, names: Sequence[str]) -> FormProblems:
    """Return what is wrong with a field of the rollout; `""` is the form as a whole."""
    if isinstance(error, DefinitionError):
        path, problem = error.path, error.problem
    else:
        problem, _, path = str(error).rpartition(" - at `")
        problem, path = problem or str(error), path.rstrip("`")
    name = place_problem(path, problem, names)
    return {name: f"{problem[:1].upper()}{problem[1:]}."}


@get("/hooks/{id:str}/delete", opt=CHANGES)
async def ask_to_delete(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Ask whether a definition is to be deleted."""
    context = context_of(request)
    found = await read_changeable(context.parts.registry, caller_of(request), id, request.query_params.get("tenant"))
    return context.render_page(request, "hooks/delete.html", definition=found, problem="")


@post("/hooks/{id:str}/delete", opt=CHANGES)
async def delete_one(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Delete a definition, which can be brought back."""
    context = context_of(request)
    fields = await read_form(request)
    tag, tenant = f'"{fields.get("revision", "")}"', fields.get("tenant")
    try:
        await delete_hook.fn(request, id, tenant_id=tenant, if_match=tag, fence=_read_fence(fields))
    except FenceError as error:
        return await _render_history(request, id, tenant, stale=str(error))
    except HookUsageError as error:
        found = await read_changeable(context.parts.registry, caller_of(request), id, tenant)
        return context.render_page(request, "hooks/delete.html", status=422, definition=found, problem=str(error))
    except STALE as error:
        return await _render_stale(request, id, tenant, error)
    return context.redirect(request, "/hooks/deleted", notice="deleted")


@get("/hooks/deleted", opt=READS)
async def show_deleted(request: Req) -> Response[str]:
    """Show the definitions that were deleted and can be brought back."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("tenant", "cursor")}
    found = await list_deleted_hooks.fn(request, tenant_id=asked["tenant"], cursor=asked["cursor"], limit=ROWS)
    page: Page[DefinitionRevision] = found.content
    names = await describe_actors(context.parts, caller, [each.actor for each in page.items])
    return context.render_page(request, "hooks/deleted.html", page=page, asked=asked, names=names)


@get("/hooks/{id:str}/history", opt=READS)
async def show_history(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show the revisions of a definition, also of one that was deleted."""
    return await _render_history(request, id, request.query_params.get("tenant"), request.query_params.get("cursor"))


async def _render_history(
    request: Req,
    id: Id,  # noqa: A002
    tenant: str | None,
    cursor: str | None = None,
    *,
    stale: str = "",
) -> Response[str]:
    context, caller = context_of(request), caller_of(request)
    page = await read_history(context.parts.registry, caller, id, tenant, cursor=cursor, limit=ROWS)
    names = await describe_actors(context.parts, caller, [each.actor for each in page.items])
    newest = page.items[0] if page.items and cursor is None else None
    return context.render_page(
        request,
        "hooks/history.html",
        status=409 if stale else 200,
        stale=stale,
        page=page,
        id=id,
        asked={"tenant": tenant, "cursor": cursor},
        names=names,
        actions=ACTIONS,
        newest=newest,
    )


@post("/hooks/{id:str}/revert", opt=CHANGES)
async def go_back(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Go back to a revision of a definition, which is a new revision."""
    context = context_of(request)
    fields = await read_form(request)
    tenant = fields.get("tenant", "")
    try:
        body = msgspec.convert({"revision": fields.get("to", "")}, Reverting, strict=False)
    except msgspec.ValidationError:
        raise ApiError(422, "invalid", "Choose one of the revisions that are listed.") from None
    now = fields.get("revision", "")
    try:
        found = None if now else await _find(request, id, tenant)
        if found is not None:
            raise DefinitionConflictError(id, "it was brought back in the meantime", found.revision)
        await revert_hook.fn(request, id, body, tenant_id=tenant, if_match=f'"{now}"' if now else None)
    except STALE as error:
        return await _render_stale(request, id, tenant, error)
    return context.redirect(request, f"/hooks/{id}", notice="reverted", tenant=tenant)


@post("/hooks/{id:str}/try", opt=CHANGES)
async def dry_run_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Try a definition out on a sample, or on a stored call, which then becomes the sample."""
    context = context_of(request)
    fields = await read_form(request)
    sample, tenant = fields.get("sample", ""), fields.get("tenant")
    try:
        if fields.get("call"):
            found = await read_changeable(context.parts.registry, caller_of(request), id, tenant)
            sample = await write_sample(request, found, parse_call(fields["call"]))
        given = msgspec.json.decode(sample or "{}", type=dict[str, Any])
        tried = await try_hook.fn(request, id, Trial(sample=given), tenant_id=tenant)
    except (DefinitionError, HookUsageError) as error:
        return await _render_hook(request, id, tenant, sample=sample, problem=str(error))
    except msgspec.MsgspecError as error:
        return await _render_hook(
            request, id, tenant, sample=sample, problem=f"The sample is not a JSON object: {error}"
        )
    return await _render_hook(request, id, tenant, sample=sample, tried=tried)


@post("/hooks/{id:str}/backtest", opt=CHANGES)
async def judge_the_past(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Begin to judge stored calls with a definition, or stop that."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    tenant, days = fields.get("tenant"), fields.get("days", "")
    if days not in BACKTEST_DAYS:
        raise ApiError(422, "invalid", "Choose one of the times that are listed.")
    definition = await read_changeable(context.parts.registry, caller, id, tenant)
    if "stop" in fields:
        shown = context.parts.backtests.find(fields["stop"], caller.key_id, definition.id)
        if shown is not None:
            shown.scope.cancel()
    else:
        since = await context.parts.store.now() - int(days) * DAY
        body = BacktestBody(since=since, examples=SHOWN_EXAMPLES, timeout=BACKTEST_SECONDS)
        shown = await start_visible_backtest(request, definition, body)
    if shown is not None and shown.task is not None:
        await asyncio.wait([shown.task], timeout=AT_ONCE)
    return await _render_backtest(request, id, tenant, shown, days)


@get("/hooks/{id:str}/backtest", opt=CHANGES)
async def show_backtest(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show how far the judging of stored calls has come."""
    context, caller = context_of(request), caller_of(request)
    asked = request.query_params
    tenant, run, days = asked.get("tenant"), asked.get("run", ""), asked.get("days", "")
    definition = await read_changeable(context.parts.registry, caller, id, tenant)
    shown = context.parts.backtests.find(run, caller.key_id, definition.id)
    return await _render_backtest(request, id, tenant, shown, days if days in BACKTEST_DAYS else "7")


async def _render_backtest(
    request: Req,
    id: Id,  # noqa: A002
    tenant: str | None,
    shown: ShownBacktest | None,
    days: str,
) -> Response[str]:
    """Show a backtest that runs or has ended; `None` if it is not known here.

    Raises:
        Exception: What it has raised, unless that is about the definition.
    """
    if shown is None:
        return await _render_hook(request, id, tenant, backtest_days=days, backtest_gone=True)
    if isinstance(shown.error, DefinitionError):
        return await _render_hook(request, id, tenant, backtest_days=days, backtest_problem=shown.error.problem)
    if shown.error is not None:
        raise shown.error
    running = shown.id if shown.ended_at is None else ""
    return await _render_hook(request, id, tenant, backtest=shown.found, backtest_days=days, backtest_run=running)


async def _render_hook(
    request: Req,
    id: Id,  # noqa: A002
    tenant: str | None,
    *,
    sample: str | None = None,
    tried: DryRun | None = None,
    problem: str = "",
    matches: CallMatches | None = None,
    tenant_problem: str = "",
    tenant_typed: str = "",
    stale: str = "",
    unconfirmed: str = "",
    scope: Sequence[FormField] | None = None,
    backtest: Backtest | None = None,
    backtest_days: str = "7",
    backtest_problem: str = "",
    backtest_run: str = "",
    backtest_gone: bool = False,
) -> Response[str]:
    context, caller = context_of(request), caller_of(request)
    registry = context.parts.registry
    definition = await read_visible(registry, caller, id, tenant)
    if sample is None:
        sample = msgspec.json.format(msgspec.json.encode(first_sample(definition)), indent=2).decode()
    history = await _read_recent(request, definition)
    refused = problem or tenant_problem or backtest_problem or unconfirmed or scope is not None
    return context.render_page(
        request,
        "hooks/hook.html",
        status=409 if stale and scope is None else 422 if refused else 200,
        stale=stale,
        unconfirmed=unconfirmed,
        definition=definition,
        observes=POINTS[definition.point].event is not None and not (definition.webhook and definition.webhook.control),
        sample=sample,
        tried=tried,
        problem=problem,
        matches=matches,
        history=history,
        names=await describe_actors(context.parts, caller, [each.actor for each in history.items]),
        actions=ACTIONS,
        tenants=registry.tenants() if caller.sees_all else [],
        tenant_problem=tenant_problem,
        tenant_typed=tenant_typed,
        scope=_draw_rollout(request, definition) if scope is None else scope,
        shadow=await read_shadow_view(context.parts, caller, definition),
        backtest=backtest,
        backtest_days=backtest_days,
        backtest_choices=BACKTEST_DAYS,
        backtest_problem=backtest_problem,
        alerts=await registry.alerts(definition.tenant_id, hook_id=definition.id, limit=SHOWN_ALERTS),
        backtest_run=backtest_run,
        backtest_gone=backtest_gone,
    )


def _draw_rollout(request: Req, definition: HookDefinition) -> Sequence[FormField]:
    """Draw the small form that enforces a hook; nothing for a hook that the caller cannot change, or that observes."""
    caller = caller_of(request)
    changes = "hooks:manage" in caller.scopes and (definition.tenant_id or caller.sees_all)
    if not definition.decides or not changes or not definition.is_stored:
        return ()
    return _fill_scope(request, definition, write_values(definition, None))


async def _find(request: Req, id: Id, tenant: str | None) -> HookDefinition | None:  # noqa: A002
    """Find a definition that the caller may see."""
    try:
        return await read_visible(context_of(request).parts.registry, caller_of(request), id, tenant)
    except (ApiError, DefinitionNotFoundError):
        return None


async def _render_stale(request: Req, id: Id, tenant: str | None, error: Exception) -> Response[str]:  # noqa: A002
    """Say who has done what with a definition since a form was shown, and show the definition as it is now.

    Raises:
        Exception: The given error, if nothing was done with it.
    """
    context, caller = context_of(request), caller_of(request)
    if isinstance(error, ApiError) and error.status != 404:
        raise error
    try:
        history = (await read_history(context.parts.registry, caller, id, tenant, limit=1)).items
    except (ApiError, DefinitionNotFoundError):
        history = []
    last = next(iter(history), None)
    if last is None or (last.action != "delete" and not isinstance(error, DefinitionConflictError)):
        raise error
    who = (await describe_actors(context.parts, caller, [last.actor]))[last.actor]
    stale = f"{DONE[last.action]} by {who} since the page showed it. Nothing of yours was stored."
    if last.action == "delete":
        return await _render_history(request, id, tenant, stale=stale)
    return await _render_hook(request, id, tenant, stale=stale)


async def _read_recent(request: Req, definition: HookDefinition) -> Page[DefinitionRevision]:
    """Read the newest revisions of a definition; a definition in a file has none."""
    if not definition.is_stored:
        return Page(items=[])
    registry, caller = context_of(request).parts.registry, caller_of(request)
    return await read_history(registry, caller, definition.id, definition.tenant_id, limit=RECENT)


ROUTES = [
    show_hooks,
    show_deleted,
    show_hook,
    show_matches,
    switch_hook,
    switch_hook_for_tenant,
    roll_out_hook,
    ask_to_delete,
    delete_one,
    show_history,
    go_back,
    dry_run_hook,
    judge_the_past,
    show_backtest,
    *FORM_ROUTES,
    *ORDER_ROUTES,
]
