"""Routes of hook definitions: list, create, change, switch, order, delete, revert, try out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

import anyio
import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from hookline.registry import (
    Backtest,
    CallMatches,
    DefinitionConflictError,
    DefinitionRevision,
    DryRun,
    HandlerEntry,
    HookDefinition,
    PolicyAlert,
    Registry,
)
from hookline.server._backtests import ShownBacktest
from hookline.server._callers import Caller, Req, caller_of, not_found_error
from hookline.server._parts import parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._hook_bodies import (
    BacktestBody,
    HookChanges,
    HookOrder,
    NewBacktest,
    NewHook,
    NewTrial,
    Reverting,
    Switching,
    Trial,
    WholeHook,
    build_changes,
    build_definition,
)
from hookline.server.routes._shared import (
    VISIBLE,
    Cursor,
    HookId,
    Id,
    IfMatch,
    IfNoneMatch,
    Limit,
    PointName,
    Since,
    TenantId,
    page_response,
    route,
    tagged_response,
)
from hookline.store import Page

__all__ = ["HOOK_ROUTES"]

Answer = TypeVar("Answer", covariant=True)
TAG = re.compile(r'"(\d{1,18})(?:-[0-9a-f]+)?"')
AT_ONCE = 1000
BACKTEST_SECONDS = 7 * 86_400.0
"""How far a backtest looks back by default."""

Point = Annotated[PointName | None, QueryParameter(description="Return only definitions at this point.")]
Enabled = Annotated[bool | None, QueryParameter(description="Return only enabled, or only disabled definitions.")]
Words = Annotated[
    str | None,
    QueryParameter(
        max_length=400,
        pattern=VISIBLE,
        description="Return only definitions with all of these words in their name, id, description, tags, tools, or "
        "handler, script, URL or remote name.",
    ),
]
Fence = Annotated[
    bool,
    QueryParameter(
        description="Whether the change takes effect in running operations, too: the response comes when no process "
        "judges a call by the old revision. 422 if no process takes part; 504 if some did not confirm it in time, "
        "although the change is stored."
    ),
]


@route("GET", "/v1/hooks", scope="hooks:read", summary="List hook definitions", errors=[404])
async def list_hooks(
    request: Req,
    tenant_id: TenantId = None,
    point: Point = None,
    enabled: Enabled = None,
    text: Words = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response[Page[HookDefinition]]:
    """List definitions by tenant, each tenant's oldest first. A key of a tenant sees only the tenant's own."""
    registry, caller = parts_of(request).registry, caller_of(request)
    tenant = caller.tenant(tenant_id)
    if caller.sees_all:
        page = await registry.list(tenant, cursor=cursor, limit=limit, point=point, enabled=enabled, text=text)
        return page_response(request, page)
    found: list[HookDefinition] = []
    while True:
        page = await registry.list(
            tenant, cursor=cursor, limit=limit - len(found), point=point, enabled=enabled, text=text
        )
        found += [each for each in page.items if each.tenant_id == tenant]
        cursor = page.cursor
        if cursor is None or len(found) == limit:
            return page_response(request, Page(items=found, cursor=cursor))


@route(
    "POST",
    "/v1/hooks",
    scope="hooks:manage",
    summary="Create a hook definition",
    errors=[404, 409, 504],
    status_code=201,
)
async def create_hook(request: Req, data: JSONBody[NewHook], fence: Fence = False) -> Response[HookDefinition]:
    """Create a definition. Within one second, new runs in all processes use it."""
    registry, caller = parts_of(request).registry, caller_of(request)
    owner = caller.own(None if data.tenant_id is msgspec.UNSET else data.tenant_id)
    made = await registry.create(build_definition(data, owner), actor=caller.actor, fence=fence)
    where = f"{request.scope['state']['hookline_root']}/v1/hooks/{made.id}"
    answer = tagged_response(made, made.revision)
    answer.headers["Location"] = where
    return answer


@route("GET", "/v1/hooks/handlers", scope="hooks:read", summary="List handlers")
async def list_handlers(request: Req) -> list[HandlerEntry]:
    """List the installed handlers that definitions can name, without those in modules that the operator allows."""
    return parts_of(request).registry.handlers()


@route("GET", "/v1/hooks/deleted", scope="hooks:read", summary="List deleted hooks", errors=[404])
async def list_deleted_hooks(
    request: Req, tenant_id: TenantId = None, cursor: Cursor = None, limit: Limit = 50
) -> Response[Page[DefinitionRevision]]:
    """List definitions that were deleted, the last first. `POST /v1/hooks/{id}/revert` brings one back."""
    registry, caller = parts_of(request).registry, caller_of(request)
    return page_response(request, await registry.deleted(caller.tenant(tenant_id), cursor=cursor, limit=limit))


@route("GET", "/v1/hooks/alerts", scope="hooks:read", summary="List alerts of policies", errors=[404])
async def list_hook_alerts(
    request: Req,
    tenant_id: TenantId = None,
    hook_id: HookId = None,
    since: Since = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response[Page[PolicyAlert]]:
    """List alerts, newest first: hooks that their limits put into shadow mode, and changed rates of denials."""
    registry, tenant = parts_of(request).registry, caller_of(request).tenant(tenant_id)
    return page_response(
        request, await registry.alerts(tenant, hook_id=hook_id, since=since, cursor=cursor, limit=limit)
    )


@route(
    "PUT", "/v1/hooks/order", scope="hooks:manage", summary="Order the hooks at a point", errors=[404, 409, 412, 504]
)
async def order_hooks(request: Req, data: JSONBody[HookOrder], fence: Fence = False) -> list[HookDefinition]:
    """Have the hooks of an owner at a point run in an order. As few priorities as possible change, all at once."""
    registry, caller = parts_of(request).registry, caller_of(request)
    owner = caller.own(None if data.tenant_id is msgspec.UNSET else data.tenant_id)
    return await registry.reorder(
        data.point,
        [each.id for each in data.hooks],
        tenant_id=owner,
        if_revisions={each.id: each.revision for each in data.hooks if each.revision is not msgspec.UNSET},
        actor=caller.actor,
        fence=fence,
    )


@route("POST", "/v1/hooks/test", scope="hooks:manage", summary="Try a definition that is not stored", errors=[404])
async def try_new_hook(request: Req, data: JSONBody[NewTrial]) -> DryRun:
    """Run a hook that is not stored on a sample or on a stored call. Nothing is logged, counted, stored or sent."""
    caller = caller_of(request)
    owner = caller.own(None if data.definition.tenant_id is msgspec.UNSET else data.definition.tenant_id)
    return await run_trial(request, build_definition(data.definition, owner), data)


@route("POST", "/v1/hooks/matches", scope="hooks:manage", summary="Count calls for a new definition", errors=[404])
async def match_new_hook(request: Req, data: JSONBody[NewHook]) -> CallMatches:
    """Count the calls of the last day that a definition, which is not stored, is for."""
    caller = caller_of(request)
    owner = caller.own(None if data.tenant_id is msgspec.UNSET else data.tenant_id)
    return await find_visible_matches(request, build_definition(data, owner))


@route("POST", "/v1/hooks/backtest", scope="hooks:manage", summary="Test a new hook on past calls", errors=[404, 429])
async def backtest_new_hook(request: Req, data: JSONBody[NewBacktest]) -> Backtest:
    """Run a hook that is not stored over stored calls, as for a stored one."""
    caller = caller_of(request)
    owner = caller.own(None if data.definition.tenant_id is msgspec.UNSET else data.definition.tenant_id)
    return await run_visible_backtest(request, build_definition(data.definition, owner), data)


@route("GET", "/v1/hooks/{id:str}", scope="hooks:read", summary="Read a hook definition", errors=[409], unchanged=True)
async def read_hook(
    request: Req,
    id: Id,  # noqa: A002
    tenant_id: TenantId = None,
    if_none_match: IfNoneMatch = None,
) -> Response[HookDefinition]:
    """Read a definition. The response has an `ETag`, which you can send as `If-Match` with a change."""
    caller = caller_of(request)
    found = await read_visible(parts_of(request).registry, caller, id, tenant_id)
    return tagged_response(found, found.revision, if_none_match)


@route("PUT", "/v1/hooks/{id:str}", scope="hooks:manage", summary="Replace a hook definition", errors=[409, 412, 504])
async def replace_hook(
    request: Req,
    id: Id,  # noqa: A002
    data: JSONBody[WholeHook],
    tenant_id: TenantId = None,
    if_match: IfMatch = None,
    fence: Fence = False,
) -> Response[HookDefinition]:
    """Replace a definition. Omitted fields get their defaults. You can send back the body of a GET."""
    found = await read_changeable(parts_of(request).registry, caller_of(request), id, tenant_id)
    return await apply_changes(request, found, if_match, build_changes(data, found), fence=fence)


@route("PATCH", "/v1/hooks/{id:str}", scope="hooks:manage", summary="Change a hook definition", errors=[409, 412, 504])
async def change_hook(
    request: Req,
    id: Id,  # noqa: A002
    data: JSONBody[HookChanges],
    tenant_id: TenantId = None,
    if_match: IfMatch = None,
    fence: Fence = False,
) -> Response[HookDefinition]:
    """Change fields of a definition. Omitted fields keep their values."""
    found = await read_changeable(parts_of(request).registry, caller_of(request), id, tenant_id)
    return await apply_changes(request, found, if_match, msgspec.to_builtins(data), fence=fence)


@route(
    "PUT", "/v1/hooks/{id:str}/toggle", scope="hooks:manage", summary="Enable or disable a hook", errors=[409, 412, 504]
)
async def toggle_hook(
    request: Req,
    id: Id,  # noqa: A002
    data: JSONBody[Switching],
    tenant_id: TenantId = None,
    if_match: IfMatch = None,
    fence: Fence = False,
) -> Response[HookDefinition]:
    """Enable or disable a definition, also one that is in a file."""
    registry, caller = parts_of(request).registry, caller_of(request)
    found = await read_changeable(registry, caller, id, tenant_id)
    switch = partial(registry.set_enabled, id, data.enabled, tenant_id=found.tenant_id, actor=caller.actor, fence=fence)
    stored = await change_if_match(if_match, switch)
    return tagged_response(stored, stored.revision)


@route(
    "DELETE",
    "/v1/hooks/{id:str}",
    scope="hooks:manage",
    summary="Delete a hook definition",
    errors=[409, 412, 504],
    status_code=204,
)
async def delete_hook(
    request: Req,
    id: Id,  # noqa: A002
    tenant_id: TenantId = None,
    if_match: IfMatch = None,
    fence: Fence = False,
) -> None:
    """Delete a definition. A definition that is in a file can only be disabled."""
    registry, caller = parts_of(request).registry, caller_of(request)
    found = await read_changeable(registry, caller, id, tenant_id)
    delete = partial(registry.delete, id, tenant_id=found.tenant_id, actor=caller.actor, fence=fence)
    await change_if_match(if_match, delete)


@route("POST", "/v1/hooks/{id:str}/test", scope="hooks:manage", summary="Try a hook on a sample", errors=[409])
async def try_hook(
    request: Req,
    id: Id,  # noqa: A002
    data: JSONBody[Trial | None] = None,
    tenant_id: TenantId = None,
) -> DryRun:
    """Run a hook on a sample. Nothing is logged, counted or stored. Without a body, the server makes up a sample."""
    registry, caller = parts_of(request).registry, caller_of(request)
    data = data or Trial()
    return await run_trial(request, await read_changeable(registry, caller, id, tenant_id), data)


@route(
    "POST",
    "/v1/hooks/{id:str}/backtest",
    scope="hooks:manage",
    summary="Test a hook on past calls",
    errors=[404, 409, 429],
)
async def backtest_hook(
    request: Req,
    id: Id,  # noqa: A002
    data: JSONBody[BacktestBody | None] = None,
    tenant_id: TenantId = None,
) -> Backtest:
    """Run a hook over stored calls, and return which of them it would have denied, changed or asked about.

    Nothing is logged, counted or stored, and no webhook is sent. The code of a handler or script does run. There are no
    examples unless the key has the scope `operations:read`. A server runs one backtest of a tenant at a time.
    """
    registry, caller = parts_of(request).registry, caller_of(request)
    definition = await read_changeable(registry, caller, id, tenant_id)
    return await run_visible_backtest(request, definition, data or BacktestBody())


@route("GET", "/v1/hooks/{id:str}/matches", scope="hooks:read", summary="Count the calls of a hook", errors=[409])
async def match_hook(
    request: Req,
    id: Id,  # noqa: A002
    tenant_id: TenantId = None,
) -> CallMatches:
    """Count the calls of the last day that a hook is for: at most the newest 10,000 are looked at.

    The list of calls is empty unless the key has the scope `operations:read`.
    """
    found = await read_visible(parts_of(request).registry, caller_of(request), id, tenant_id)
    return await find_visible_matches(request, found)


@route(
    "GET", "/v1/hooks/{id:str}/revisions", scope="hooks:read", summary="List the changes of a hook", errors=[404, 409]
)
async def list_hook_revisions(
    request: Req,
    id: Id,  # noqa: A002
    tenant_id: TenantId = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response[Page[DefinitionRevision]]:
    """List the changes of a definition, newest first, also after it was deleted. The newest 100 are kept."""
    registry, caller = parts_of(request).registry, caller_of(request)
    page = await read_history(registry, caller, id, tenant_id, cursor=cursor, limit=limit)
    return page_response(request, page)


@route("POST", "/v1/hooks/{id:str}/revert", scope="hooks:manage", summary="Revert a hook", errors=[404, 409, 412, 504])
async def revert_hook(
    request: Req,
    id: Id,  # noqa: A002
    data: JSONBody[Reverting],
    tenant_id: TenantId = None,
    if_match: IfMatch = None,
    fence: Fence = False,
) -> Response[HookDefinition]:
    """Make a definition again what it was after a revision, as a new revision. A deleted one is brought back."""
    registry, caller = parts_of(request).registry, caller_of(request)
    history = (await read_history(registry, caller, id, tenant_id, limit=1)).items
    owner = (history[0] if history else await registry.get(id, caller.tenant(tenant_id))).tenant_id
    caller.check_writable(owner)
    revert = partial(registry.revert, id, data.revision, tenant_id=owner, actor=caller.actor, fence=fence)
    stored = await change_if_match(if_match, revert)
    return tagged_response(stored, stored.revision)


async def run_trial(request: Req, definition: HookDefinition, trial: Trial) -> DryRun:
    """Try a definition out on the sample of a request, or on a stored call that the caller may see.

    Raises:
        ApiError: 403, if it names a stored call and the key lacks the scope `operations:read`.
        DefinitionError: If the sample or the call does not fit the definition.
    """
    registry, caller = parts_of(request).registry, caller_of(request)
    sample = trial.sample
    if trial.call is not None:
        caller.demand("operations:read")
        visible = caller.tenant(definition.tenant_id or None)
        call = trial.call
        sample = await registry.stored_sample(definition, call.operation_id, call.number, tenant_id=visible) | sample
    return await registry.dry_run(definition, sample, timeout=trial.timeout)


async def run_visible_backtest(request: Req, definition: HookDefinition, body: BacktestBody) -> Backtest:
    """Run a definition over the stored calls of the tenants that the caller may see.

    Raises:
        ApiError: 429, if a backtest of the tenant runs already.
        DefinitionError: If stored calls cannot be judged with the definition.
    """
    parts, caller = parts_of(request), caller_of(request)
    judge = await _prepare_backtest(request, definition, body)
    with parts.backtests.enter(caller.tenant()):
        return await judge()


async def start_visible_backtest(request: Req, definition: HookDefinition, body: BacktestBody) -> ShownBacktest:
    """Start what `run_visible_backtest` does, for a page that shows the counts meanwhile.

    Raises:
        ApiError: 429, if a backtest of the tenant runs already.
    """
    parts, caller = parts_of(request), caller_of(request)
    judge = await _prepare_backtest(request, definition, body)

    async def run(scope: anyio.CancelScope, on_progress: Callable[[Backtest], None]) -> Backtest:
        return await judge(scope=scope, on_progress=on_progress)

    return parts.backtests.start(caller.tenant(), caller.key_id, definition.id, run)


async def _prepare_backtest(
    request: Req, definition: HookDefinition, body: BacktestBody
) -> Callable[..., Awaitable[Backtest]]:
    parts, caller = parts_of(request), caller_of(request)
    tenant = caller.tenant(None if body.tenant_id is msgspec.UNSET else body.tenant_id)
    since = await parts.store.now() - BACKTEST_SECONDS if body.since is None else body.since
    return partial(
        parts.registry.backtest,
        definition,
        tenant_id=tenant,
        agent_id=body.agent_id,
        tool=body.tool,
        since=since,
        until=body.until,
        limit=body.limit,
        timeout=body.timeout,
        labels=body.labels,
        examples=body.examples if "operations:read" in caller.scopes else 0,
    )


async def find_visible_matches(request: Req, definition: HookDefinition) -> CallMatches:
    """Count the calls that a definition is for, among those that the caller may see."""
    registry, caller = parts_of(request).registry, caller_of(request)
    found = await registry.matches(definition, tenant_id=caller.tenant())
    return found if "operations:read" in caller.scopes else msgspec.structs.replace(found, calls=[])


async def read_history(
    registry: Registry,
    caller: Caller,
    id: str,  # noqa: A002
    tenant_id: str | None,
    *,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[DefinitionRevision]:
    """Read the revisions of a definition that the caller may see; none if it is in a file.

    Raises:
        ApiError: 404, if it is another tenant's.
    """
    page = await registry.revisions(id, caller.tenant(tenant_id), cursor=cursor, limit=limit)
    if not page.items:
        await read_visible(registry, caller, id, tenant_id)
        return page
    owner = page.items[0].tenant_id
    if tenant_id is not None and owner != tenant_id:
        raise not_found_error()
    caller.check_visible(owner)
    return page


async def read_visible(registry: Registry, caller: Caller, id: str, tenant_id: str | None) -> HookDefinition:  # noqa: A002
    """Read a definition that the caller may see.

    Raises:
        ApiError: 404, if it is another tenant's.
    """
    found = await registry.get(id, caller.tenant(tenant_id))
    if tenant_id is not None and found.tenant_id != tenant_id:
        raise not_found_error()
    caller.check_visible(found.tenant_id)
    return found


async def read_changeable(registry: Registry, caller: Caller, id: str, tenant_id: str | None) -> HookDefinition:  # noqa: A002
    """Read a definition that the caller may see and change.

    Raises:
        ApiError: 404, if it is another tenant's; 403, if it is the system's.
    """
    found = await read_visible(registry, caller, id, tenant_id)
    caller.check_writable(found.tenant_id)
    return found


async def apply_changes(
    request: Req, found: HookDefinition, if_match: str | None, changes: Mapping[str, Any], *, fence: bool
) -> Response[HookDefinition]:
    """Change fields of a definition if its revision matches `If-Match`."""
    registry, actor = parts_of(request).registry, caller_of(request).actor
    update = partial(registry.update, found.id, changes, tenant_id=found.tenant_id, actor=actor, fence=fence)
    stored = await change_if_match(if_match, update)
    return tagged_response(stored, stored.revision)


class RevisionChange(Protocol[Answer]):
    """A change of a definition that is made only if the definition has a given revision."""

    async def __call__(self, *, if_revision: int | None) -> Answer:
        """Make the change."""
        ...


async def change_if_match(if_match: str | None, write: RevisionChange[Answer]) -> Answer:
    """Make a change if the stored definition has one of the tags of an `If-Match`.

    Raises:
        ApiError: 412, if none of the tags is one of this server.
        DefinitionConflictError: If the definition has another revision.

    Source:
        RFC 9110, 13.1.1: `*` matches what exists, a list if any of it does; a weak tag never does.
    """
    if if_match is None or if_match.strip() == "*":
        return await write(if_revision=None)
    revisions = {int(match[1]) for tag in if_match.split(",") if (match := TAG.fullmatch(tag.strip())) is not None}
    if not revisions:
        raise ApiError(412, "revision", "If-Match must be an ETag that this server returned for a definition.")
    try:
        return await write(if_revision=max(revisions))
    except DefinitionConflictError as error:
        if error.revision not in revisions:
            raise
        return await write(if_revision=error.revision)


HOOK_ROUTES = [
    list_hooks,
    create_hook,
    list_handlers,
    list_deleted_hooks,
    list_hook_alerts,
    order_hooks,
    try_new_hook,
    match_new_hook,
    backtest_new_hook,
    read_hook,
    replace_hook,
    change_hook,
    toggle_hook,
    delete_hook,
    try_hook,
    backtest_hook,
    match_hook,
    list_hook_revisions,
    revert_hook,
]
