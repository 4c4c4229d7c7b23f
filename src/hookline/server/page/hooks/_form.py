"""Views to make and edit a hook: a form that is drawn from the catalogue, with a dry run and the calls it is for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Response, get, post

from hookline.errors import HookUsageError
from hookline.registry import (
    POINTS,
    READ_ONLY,
    CallMatches,
    DefinitionConflictError,
    DefinitionError,
    DefinitionNotFoundError,
    DefinitionRevision,
    DryRun,
    FenceError,
    FieldChange,
    HookDefinition,
    QuotaError,
    list_field_changes,
)
from hookline.server._actors import describe_actors
from hookline.server._callers import Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._context import context_of
from hookline.server.page._forms import read_form
from hookline.server.page.hooks._fields import (
    MODULE,
    FieldGroup,
    FormProblems,
    draw_groups,
    place_problem,
    read_groups,
    write_values,
)
from hookline.server.page.hooks._samples import first_sample, parse_call, write_sample
from hookline.server.routes import (
    Id,
    NewHook,
    NewTrial,
    WholeHook,
    create_hook,
    match_new_hook,
    read_changeable,
    read_history,
    replace_hook,
    try_new_hook,
)

__all__ = ["FORM_ROUTES"]

CHANGES = {"scope": "hooks:manage"}
SHOWN_FIELDS = re.compile(r"[A-Za-z]+(?:\.[\w.-]+)?", re.ASCII)
OWN = {"do", "token", "sample", "samplePoint", "revision", "id", "fence"}
"""Fields of the form that are not the definition's."""
COUNTED = ("id", "tool", "exceptTenants", "tenantId", "tenants", "agents", "operationTags", "percent")
"""Fields that decide for which calls a definition is; of the id, the share of operations depends."""
UNCHOSEN = {"script": "none"}
LONGEST_HISTORY = 100


class HookForm(msgspec.Struct, kw_only=True):
    """The contents of a form for a hook.

    Attributes:
        values: The texts of its fields, by name.
        found: The stored definition that is edited; `None` for a new one.
        problems: What is wrong, by field; `""` is the form as a whole.
        sample: The sample of the dry run; `None` for one that is made up.
        tried: The result of the dry run.
        trial_problem: Why there is none.
        matches: The calls that the definition is for, as far as they were counted.
        conflict: What somebody else has changed meanwhile.
    """

    values: dict[str, str]
    found: HookDefinition | None = None
    problems: FormProblems = {}
    sample: str | None = None
    tried: DryRun | None = None
    trial_problem: str = ""
    matches: CallMatches | None = None
    conflict: HookConflict | None = None


class HookConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Two people have edited a definition at once.

    Attributes:
        theirs: What the other one has changed: the fields before and now.
        yours: What the form would change of what is stored now.
        change: The last change, if its revision is kept.
        who: Who made it.
        revision: The revision that is stored now.
        base: The revision that the form began with, if it is kept; else `""`.
    """

    theirs: list[FieldChange]
    yours: list[FieldChange]
    change: DefinitionRevision | None
    who: str
    revision: int
    base: str


@get("/hooks/new", opt=CHANGES)
async def show_new_hook(request: Req) -> Response[str]:
    """Show the form for a new hook. The address may fill in fields, such as the point or the tenant."""
    given = {name: value for name, value in request.query_params.items() if SHOWN_FIELDS.fullmatch(name)}
    values = {"point": "ToolCall.guard", "runs": "handler", "enabled": "yes", "id": _new_id()}
    values |= {name: value for name, value in given.items() if name not in OWN}
    return _render_form(request, HookForm(values=values))


@get("/hooks/{id:str}/edit", opt=CHANGES)
async def show_hook_form(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show the form with a stored definition."""
    registry = context_of(request).parts.registry
    found = await read_changeable(registry, caller_of(request), id, request.query_params.get("tenant"))
    _refuse_file(found)
    entry = registry.describe_handler(found.handler) if found.handler else None
    values = write_values(found, entry) | {"revision": str(found.revision)}
    if found.handler and entry is not None and entry.name not in {each.name for each in registry.handlers()}:
        values |= {"handler": MODULE, "function": found.handler}
    return _render_form(request, HookForm(values=values, found=found))


@post("/hooks/new", opt=CHANGES)
async def submit_new_hook(request: Req) -> Response[str]:
    """Draw the form anew, count calls, try the hook out, or store it."""
    values = await _read_values(request)
    return await _submit(request, HookForm(values=values, sample=values.get("sample")))


@post("/hooks/{id:str}/edit", opt=CHANGES)
async def submit_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Draw the form anew, count calls, try the changed hook out, or store it."""
    context, caller = context_of(request), caller_of(request)
    values = await _read_values(request)
    tenant = values.get("tenantId", "")
    try:
        found = await read_changeable(context.parts.registry, caller, id, tenant)
    except (DefinitionNotFoundError, ApiError) as error:
        # Whoever may see its history has edited a hook that somebody has deleted meanwhile.
        deleted = await _find_deletion(request, id, tenant)
        if deleted is None:
            raise error from None
        form = HookForm(values=values | {"id": id}, sample=values.get("sample"))
        form.problems = {"": "This hook was deleted in the meantime. If you save, it is made again from this form."}
        return _render_form(request, form, status=409)
    _refuse_file(found)
    return await _submit(request, HookForm(values=values, found=found, sample=values.get("sample")))


async def _read_values(request: Req) -> dict[str, str]:
    """Read the texts of a form. Browsers send lines with CR and LF, whatever was in the field."""
    given = await read_form(request)
    return {name: value.replace("\r\n", "\n") for name, value in given.items()}


async def _find_deletion(request: Req, id: str, tenant: str) -> DefinitionRevision | None:  # noqa: A002
    """Find the deletion of a hook that the caller might have edited."""
    try:
        page = await read_history(context_of(request).parts.registry, caller_of(request), id, tenant, limit=1)
    except (DefinitionNotFoundError, ApiError):
        return None
    return next((each for each in page.items if each.action == "delete"), None)


async def _submit(request: Req, form: HookForm) -> Response[str]:
    """Do what the pressed button says, with what was typed."""
    do = form.values.get("do", "save")
    groups = _draw(request, form)
    given, problems = read_groups(groups)
    names = [field.name for group in groups for field in group.fields]
    body = _identify(request, form, given)
    if do in ("next", "count"):
        await _count(request, form, body)
        return _render_form(request, form)
    form.problems = problems
    definition = None if problems else _convert(body, form, names)
    if do.startswith("try") and definition is not None:
        await _try(request, form, definition, do, names)
    elif (do == "save" or do.startswith("merge:")) and definition is not None:
        if do.startswith("merge:"):
            definition = await _merge(request, form, definition, do.removeprefix("merge:"))
        answer = await _save(request, form, definition, names)
        if answer is not None:
            return answer
    await _count(request, form, body)
    status = 409 if form.conflict is not None else 422 if form.problems or form.trial_problem else 200
    return _render_form(request, form, status=status)


def _identify(request: Req, form: HookForm, given: dict[str, Any]) -> dict[str, Any]:
    """Add the id and the tenant to the fields of a definition."""
    found, values = form.found, form.values
    if found is not None and found.webhook is not None and "webhook" in given:
        # The form does not draw them: only the operator of the system may set them.
        given["webhook"] |= {"key": found.webhook.key, "allowedEnvVars": found.webhook.allowed_env_vars}
    own = {"id": values.get("id", ""), "tenantId": values.get("tenantId", "").strip()}
    if found is not None:
        own = {"id": found.id, "tenantId": found.tenant_id}
    elif not caller_of(request).sees_all:
        own["tenantId"] = caller_of(request).tenant_id
    return given | {name: value for name, value in own.items() if value or name == "tenantId"}


def _convert(body: dict[str, Any], form: HookForm, names: list[str]) -> NewHook | None:
    """Convert the fields of a definition to the body of a request; note what is wrong with one."""
    try:
        return msgspec.convert(body, NewHook)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).rpartition(" - at `")
        _note(form, path.rstrip("`") if reason else "$", reason or str(error), names)
        return None


async def _save(request: Req, form: HookForm, definition: NewHook, names: list[str]) -> Response[str] | None:
    """Store the definition; or note why it cannot be stored, and return nothing."""
    context, found = context_of(request), form.found
    fence = form.values.get("fence") == "yes"
    try:
        if found is None:
            notice, stored = "created", await _create(request, definition, fence=fence)
        else:
            whole = msgspec.convert(msgspec.to_builtins(definition), WholeHook)
            tag = f'"{form.values.get("revision", "")}"'
            await replace_hook.fn(request, found.id, whole, tenant_id=found.tenant_id, if_match=tag, fence=fence)
            notice, stored = "saved", found.id
    except DefinitionError as error:
        _note(form, error.path, error.problem, names)
        return None
    except (QuotaError, FenceError, HookUsageError) as error:
        form.problems = {"": str(error)}
        return None
    except DefinitionConflictError as error:
        if found is None or error.revision is None:
            name = "name" if "name" in error.problem else ""
            form.problems = {name: f"{error.problem[:1].upper()}{error.problem[1:]}."}
        else:
            await _note_conflict(request, form, found, definition)
        if found is None or form.conflict is None or form.conflict.yours:
            return None
        notice, stored = "saved", found.id  # it was sent twice, or somebody else has done the same
    tenant = definition.tenant_id if isinstance(definition.tenant_id, str) else ""
    return context.redirect(request, f"/hooks/{stored}", notice=notice, tenant=tenant)


async def _merge(request: Req, form: HookForm, definition: NewHook, revision: str) -> NewHook:
    """Return the stored definition with what the form has changed since a revision; else the form's as it is."""
    found = form.found
    if found is None:
        return definition
    registry, caller = context_of(request).parts.registry, caller_of(request)
    history = (await read_history(registry, caller, found.id, found.tenant_id, limit=LONGEST_HISTORY)).items
    base = next((each.definition for each in history if str(each.revision) == revision), None)
    if base is None:
        return definition
    before, theirs, yours = (msgspec.to_builtins(each) for each in (base, found, _as_definition(definition)))
    merged = _merge_fields(before, theirs, yours)
    own = {name: value for name, value in merged.items() if name not in READ_ONLY or name in ("id", "tenantId")}
    return msgspec.convert(own, NewHook)


def _merge_fields(before: dict[str, Any], theirs: dict[str, Any], yours: dict[str, Any]) -> dict[str, Any]:
    """Take the fields that you have changed, and theirs for all others; those of mappings one by one."""
    merged: dict[str, Any] = {}
    for name in {**theirs, **yours}:
        old, there, here = before.get(name), theirs.get(name), yours.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            merged[name] = _merge_fields(old if isinstance(old, dict) else {}, there, here)
        elif here != old and name in yours:
            merged[name] = here
        elif name in theirs and (name in yours or name not in before):
            merged[name] = there
    return merged


async def _create(request: Req, definition: NewHook, *, fence: bool) -> str:
    """Store a new definition, and return its id. A form that is sent twice stores it once."""
    registry, caller = context_of(request).parts.registry, caller_of(request)
    try:
        answer = await create_hook.fn(request, definition, fence=fence)
    except DefinitionConflictError:
        owner = definition.tenant_id if isinstance(definition.tenant_id, str) else caller.tenant_id
        if isinstance(definition.id, str):
            try:
                stored = await read_changeable(registry, caller, definition.id, owner)
            except (ApiError, DefinitionNotFoundError):
                stored = None
            if stored is not None and not list_field_changes(stored, _as_definition(definition)):
                return stored.id
        raise
    made: HookDefinition = msgspec.json.decode(answer.content, type=HookDefinition)
    return made.id


def _as_definition(body: NewHook) -> HookDefinition:
    return msgspec.convert(msgspec.to_builtins(body), HookDefinition)


async def _note_conflict(request: Req, form: HookForm, found: HookDefinition, definition: NewHook) -> None:
    """Note what somebody else has changed since the form was opened."""
    registry, caller = context_of(request).parts.registry, caller_of(request)
    history = (await read_history(registry, caller, found.id, found.tenant_id, limit=LONGEST_HISTORY)).items
    seen = form.values.get("revision", "")
    base = next((each.definition for each in history if str(each.revision) == seen), None)
    change = next((each for each in history if each.revision == found.revision), None)
    actor = "" if change is None else change.actor
    form.conflict = HookConflict(
        theirs=[] if base is None else list_field_changes(base, found),
        yours=list_field_changes(found, _as_definition(definition)),
        change=change,
        who=(await describe_actors(context_of(request).parts, caller, [actor]))[actor],
        revision=found.revision,
        base="" if base is None else seen,
    )


async def _try(request: Req, form: HookForm, definition: NewHook, do: str, names: list[str]) -> None:
    """Try the definition out on the sample, or on a stored call, which then becomes the sample."""
    try:
        if do != "try":
            call = parse_call(do.removeprefix("try:"))
            form.sample = await write_sample(request, _as_definition(definition), call)
        sample = msgspec.json.decode(form.sample or "{}", type=dict[str, Any])
        form.tried = await try_new_hook.fn(request, NewTrial(definition=definition, sample=sample))
    except msgspec.MsgspecError as error:
        form.trial_problem = f"The sample is not a JSON object: {error}"
    except HookUsageError as error:
        form.trial_problem = str(error)
    except DefinitionError as error:
        if error.path.startswith(("$.sample", "$.call")):
            form.trial_problem = str(error)
        else:
            _note(form, error.path, error.problem, names)


async def _count(request: Req, form: HookForm, body: dict[str, Any]) -> None:
    """Count the calls that the definition is for, whatever else is missing in it."""
    point = POINTS.get(body.get("point", ""))
    if point is None:
        return
    about = {name: body[name] for name in COUNTED if name in body and body[name] not in ("", [])}
    if not point.has_tool:
        about.pop("tool", None)
    if about.get("tenantId"):
        about = {name: about[name] for name in about if name not in ("exceptTenants", "tenants")}
    try:
        # Only its point, tools and scope matter: a handler may not be chosen yet.
        runner = {"handler": body["handler"], "config": body.get("config", {})} if body.get("handler") else UNCHOSEN
        wanted = msgspec.convert({"name": "new", "point": point.name, **runner, **about}, NewHook)
        form.matches = await match_new_hook.fn(request, wanted)
    except (msgspec.ValidationError, DefinitionError):
        form.matches = None


def _note(form: HookForm, path: str, problem: str, names: list[str]) -> None:
    name = place_problem(path, problem, names)
    text = f"{problem[:1].upper()}{problem[1:]}"
    form.problems = form.problems | {name: text if text.endswith((".", "?")) else f"{text}."}


def _draw(request: Req, form: HookForm) -> list[FieldGroup]:
    """Draw the fields of a form."""
    registry, caller, values = context_of(request).parts.registry, caller_of(request), form.values
    handler = values.get("handler", "")
    if handler == MODULE:
        handler = values.get("function", "").strip()
    owner = values | {"tenantId": form.found.tenant_id} if form.found is not None else values
    return draw_groups(
        owner,
        handlers=registry.handlers(),
        entry=registry.describe_handler(handler) if handler else None,
        tenants=registry.tenants() if caller.sees_all else None,
        is_new=form.found is None,
    )


def _render_form(request: Req, form: HookForm, *, status: int = 200) -> Response[str]:
    groups = [
        msgspec.structs.replace(
            group,
            fields=[msgspec.structs.replace(each, problem=form.problems.get(each.name, "")) for each in group.fields],
        )
        for group in _draw(request, form)
    ]
    drawn = {field.name for group in groups for field in group.fields}
    # Typed for another point or handler: kept, in case the choice is taken back.
    kept = {
        name: value for name, value in form.values.items() if name not in drawn | OWN and SHOWN_FIELDS.fullmatch(name)
    }
    point = form.values.get("point", "")
    sample = form.sample if form.values.get("samplePoint") == point else None
    if sample is None and point in POINTS:
        tool = form.values.get("tool", "")[:300] or None
        handler, tools = form.values.get("handler", ""), form.values.get("config.tools", "").split("\n")
        made_up = HookDefinition(
            name="new",
            point=point,
            handler=handler or "none",
            config={"tools": [each.strip() for each in tools], "tool": form.values.get("config.tool", "")},
            tenant_id=form.values.get("tenantId", ""),
            tool=tool if POINTS[point].has_tool else None,
        )
        sample = _pretty(first_sample(made_up))
    return context_of(request).render_page(
        request,
        "hooks/form.html",
        status=status,
        form=form,
        groups=groups,
        kept=kept,
        sample=sample or "",
        top=form.problems.get("", ""),
        problems=[(field, field.problem) for group in groups for field in group.fields if field.problem],
    )


def _pretty(value: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _refuse_file(found: HookDefinition) -> None:
    """Refuse to edit a definition that is in a file.

    Raises:
        ApiError: 409, if it is.
    """
    if not found.is_stored:
        raise ApiError(409, "read_only", f"This hook is defined in {found.source}. Change it there.")


def _new_id() -> str:
    return f"hook_{os.urandom(6).hex()}"


FORM_ROUTES = [show_new_hook, show_hook_form, submit_new_hook, submit_hook]
