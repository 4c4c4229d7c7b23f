"""Views of hook definitions: the list, a single one with its switch, and its dry run."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from litestar import Response, get, post

from hookline._checks import tool_matcher
from hookline.registry import POINTS, DefinitionError, DryRun, HookDefinition, build_sample
from hookline.server._callers import Req, caller_of
from hookline.server.page._context import context_of
from hookline.server.routes import Id, Switching, Trial, list_hooks, read_visible, toggle_hook, try_hook
from hookline.webhooks import to_camel

__all__ = ["ROUTES", "first_sample"]

FILLED_IN = {"type", "operationId", "timeUnixNano", "agentId", "userId", "tenantId", "parentOperationId", "metadata"}
"""Fields of every event or call that are left out of a sample."""
TOOL = ("local", "search")
SET = re.compile(r"\[(?!!)(.)[^\]]*\]")


def first_sample(definition: HookDefinition) -> dict[str, Any]:
    """Return the fields of a sample for a definition, under their wire names, for people to edit.

    Args:
        definition: The definition to try out.
    """
    point = POINTS[definition.point]
    sample = build_sample(point, {}, definition.tenant_id)
    fields = _visible_fields(sample.subject)
    if point.has_tool:
        fields["identifier"], fields["apiName"] = _example_tool(definition.tool)
    if point.name.endswith(".after"):
        fields["result"] = _visible_fields(sample.result)
    return fields


def _visible_fields(subject: object) -> dict[str, Any]:
    fields = {to_camel(name): value for name, value in msgspec.to_builtins(subject).items()}
    return {name: value for name, value in fields.items() if name not in FILLED_IN and value is not None}


def _example_tool(pattern: str | None) -> tuple[str, str]:
    """Return toolset and name of a tool that a glob matches, if one can be derived from it."""
    matches = tool_matcher(pattern)
    if pattern is None or matches is None:
        return TOOL
    text = SET.sub(r"\1", pattern).replace("?", "x")
    first, _, second = (part.replace("*", "") for part in text.partition("/"))
    for toolset, name in ((first, second), (TOOL[0], first), (first, TOOL[1])):
        tool = (toolset or TOOL[0], name or TOOL[1])
        if matches("/".join(tool)):
            return tool
    return TOOL


ROWS = 100
READS, CHANGES = {"scope": "hooks:read"}, {"scope": "hooks:manage"}
ENABLED = {"yes": True, "no": False}


@get("/hooks", opt=READS)
async def show_hooks(request: Req) -> Response[str]:
    """Show the list of definitions, in the order of creation."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("point", "enabled", "tenant", "cursor")}
    if asked["point"] not in POINTS:
        asked["point"] = None
    found = await list_hooks.fn(
        request,
        tenant_id=asked["tenant"],
        point=asked["point"],
        enabled=ENABLED.get(asked["enabled"] or ""),
        cursor=asked["cursor"],
        limit=ROWS,
    )
    problems = context.parts.registry.problems if caller.sees_all else ()
    return context.render_page(
        request, "hooks.html", page=found.content, asked=asked, points=list(POINTS), problems=problems
    )


@get("/hooks/{id:str}", opt=READS)
async def show_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show one definition."""
    return await _render_hook(request, id, request.query_params.get("tenant"))


@post("/hooks/{id:str}/switch", opt=CHANGES)
async def switch_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Switch a definition on or off."""
    context = context_of(request)
    fields = await context.read_form(request)
    enabled = fields.get("enabled") == "yes"
    await toggle_hook.fn(
        request,
        id,
        Switching(enabled=enabled),
        tenant_id=fields.get("tenant"),
        if_match=f'"{fields.get("revision", "")}"',
    )
    notice = "on" if enabled else "off"
    if fields.get("from") == "one":
        return context.redirect(request, f"/hooks/{id}", notice=notice, tenant=fields.get("tenant", ""))
    return context.redirect(request, "/hooks", notice=notice)


@post("/hooks/{id:str}/try", opt=CHANGES)
async def dry_run_hook(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Try a definition out on a sample."""
    fields = await context_of(request).read_form(request)
    sample, tenant = fields.get("sample", ""), fields.get("tenant")
    try:
        given = msgspec.json.decode(sample or "{}", type=dict[str, Any])
        tried = await try_hook.fn(request, id, Trial(sample=given), tenant_id=tenant)
    except DefinitionError as error:
        return await _render_hook(request, id, tenant, sample=sample, problem=str(error))
    except msgspec.MsgspecError as error:
        return await _render_hook(
            request, id, tenant, sample=sample, problem=f"The sample is not a JSON object: {error}"
        )
    return await _render_hook(request, id, tenant, sample=sample, tried=tried)


async def _render_hook(
    request: Req,
    id: Id,  # noqa: A002
    tenant: str | None,
    *,
    sample: str | None = None,
    tried: DryRun | None = None,
    problem: str = "",
) -> Response[str]:
    context = context_of(request)
    definition = await read_visible(context.parts.registry, caller_of(request), id, tenant)
    if sample is None:
        sample = msgspec.json.format(msgspec.json.encode(first_sample(definition)), indent=2).decode()
    return context.render_page(
        request,
        "hook.html",
        status=422 if problem else 200,
        definition=definition,
        observes=POINTS[definition.point].event is not None and not (definition.webhook and definition.webhook.control),
        sample=sample,
        tried=tried,
        problem=problem,
    )


ROUTES = [show_hooks, show_hook, switch_hook, dry_run_hook]
