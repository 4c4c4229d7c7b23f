"""Views of hook definitions: those that there are, one of them, its switch, and its dry run."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get, post

from hookline.registry import POINTS, DefinitionError, DryRun
from hookline.server._access import Req, caller_of
from hookline.server._hook_bodies import Switching, Trial
from hookline.server._hook_routes import list_hooks, toggle_hook, try_hook, visible
from hookline.server._page_frame import frame_of
from hookline.server._page_samples import first_sample
from hookline.server._routing import Id

__all__ = ["ROUTES"]

ROWS = 100
READS, CHANGES = {"scope": "hooks:read"}, {"scope": "hooks:manage"}
ENABLED = {"yes": True, "no": False}


@get("/hooks", opt=READS)
async def shown(request: Req) -> Response[str]:
    """Definitions in the order of their creation."""
    frame, caller = frame_of(request), caller_of(request)
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
    problems = frame.parts.registry.problems if caller.sees_all else ()
    return frame.page(request, "hooks.html", page=found.content, asked=asked, points=list(POINTS), problems=problems)


@get("/hooks/{id:str}", opt=READS)
async def one(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """One definition."""
    return await _one(request, id, request.query_params.get("tenant"))


@post("/hooks/{id:str}/switch", opt=CHANGES)
async def switch(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Switch a definition on or off."""
    frame = frame_of(request)
    fields = await frame.fields(request)
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
        return frame.to(request, f"/hooks/{id}", notice=notice, tenant=fields.get("tenant", ""))
    return frame.to(request, "/hooks", notice=notice)


@post("/hooks/{id:str}/try", opt=CHANGES)
async def dry_run(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Try a definition out on a sample."""
    fields = await frame_of(request).fields(request)
    sample, tenant = fields.get("sample", ""), fields.get("tenant")
    try:
        given = msgspec.json.decode(sample or "{}", type=dict[str, Any])
        tried = await try_hook.fn(request, id, Trial(sample=given), tenant_id=tenant)
    except DefinitionError as error:
        return await _one(request, id, tenant, sample=sample, problem=str(error))
    except msgspec.MsgspecError as error:
        return await _one(request, id, tenant, sample=sample, problem=f"The sample is no JSON object: {error}")
    return await _one(request, id, tenant, sample=sample, tried=tried)


async def _one(
    request: Req,
    id: Id,  # noqa: A002
    tenant: str | None,
    *,
    sample: str | None = None,
    tried: DryRun | None = None,
    problem: str = "",
) -> Response[str]:
    frame = frame_of(request)
    definition = await visible(frame.parts.registry, caller_of(request), id, tenant)
    if sample is None:
        sample = msgspec.json.format(msgspec.json.encode(first_sample(definition)), indent=2).decode()
    return frame.page(
        request,
        "hook.html",
        status=422 if problem else 200,
        definition=definition,
        observes=POINTS[definition.point].event is not None and not (definition.webhook and definition.webhook.control),
        sample=sample,
        tried=tried,
        problem=problem,
    )


ROUTES = [shown, one, switch, dry_run]
