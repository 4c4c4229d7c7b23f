"""Routes for operators: liveness, readiness and metrics."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import Response

from hookline.bus import NatsBus
from hookline.server._callers import Req, caller_of, not_found_error
from hookline.server._metrics import CONTENT_TYPE
from hookline.server._parts import parts_of
from hookline.server.routes._shared import route

__all__ = ["HEALTH_ROUTES", "PUBLIC"]

PUBLIC = ("/health", "/ready", "/schema/openapi.json")
"""Paths that need no key."""
SHOWN_HOOKS = 100
STORE_PROBLEM = "The database cannot be read or written. Requests that need it get 503."
REGISTRY_PROBLEM = (
    "The hook definitions may be out of date: the database or a file of definitions could not be read. The last known "
    "definitions stay active. See the log for the reason."
)
BUS_PROBLEM = (
    "The bus is away. Remote hooks get no answers, so that their `on_error` decides, and changes of other processes "
    "are noticed later."
)
BUS_LOSS_PROBLEM = (
    "The bus has lost events that remote observers had not heard. `hookline relay status` shows the commands that tell "
    "them again."
)
HOOKS_PROBLEM = "Operations wait for hooks: no worker that tried to resume them has all of their interceptors."


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a live process.

    Attributes:
        status: Always `"ok"`.
    """

    status: Literal["ok"] = "ok"


class WaitingForHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Operations for which no worker that tried to resume them has all interceptors.

    Attributes:
        operations: Number of operations; 1,000 means 1,000 or more.
        hooks: Ids of the missing interceptors, the first 100.
    """

    operations: int
    hooks: list[str]


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server is ready.

    Attributes:
        status: `"ok"`, `"degraded"` (it works with the last known definitions, operations wait for hooks, or the bus is
            away or has lost events), or `"unavailable"`.
        store: Whether the database can be read and, on SQLite, written.
        registry: Whether the definitions are up to date; `None` if there is no registry.
        bus: Whether the bus is connected; `None` if there is none.
        waiting_for_hooks: Operations that wait for hooks; omitted if there are none, or if unknown.
        problems: What is wrong. Files and lines are only in the log, since this route needs no key.
    """

    status: Literal["ok", "degraded", "unavailable"]
    store: bool
    registry: bool | None
    bus: bool | None
    waiting_for_hooks: WaitingForHooks | msgspec.UnsetType = msgspec.field(
        default=msgspec.UNSET, name="waitingForHooks"
    )
    problems: list[str] = []


@route("GET", "/health", scope=None, summary="Check that the process is alive")
async def health(request: Req) -> Health:
    """Return 200 as long as the process is alive. The database is not checked."""
    return Health()


@route("GET", "/ready", scope=None, summary="Check that the server is ready")
async def ready(request: Req) -> Response[Readiness]:
    """Return 200 if the server is ready, or 503 while the database cannot be read or (SQLite) written."""
    parts = parts_of(request)
    look = await parts.store_check.check()
    store, missing = look is not None, look or {}
    registry = None if parts.known_registry is None else not parts.known_registry.problems
    status: Literal["ok", "degraded", "unavailable"] = "unavailable" if not store else "ok"
    waiting: WaitingForHooks | msgspec.UnsetType = msgspec.UNSET
    if missing:
        ids = sorted({hook_id for hook_ids in missing.values() for hook_id in hook_ids})
        waiting = WaitingForHooks(operations=len(missing), hooks=ids[:SHOWN_HOOKS])
    wakeups = parts.store.wakeups
    bus = wakeups.is_connected if isinstance(wakeups, NatsBus) else None
    has_lost = store and parts.store_check.bus_has_lost
    if store and (registry is False or bus is False or has_lost or waiting is not msgspec.UNSET):
        status = "degraded"
    problems = [] if store else [STORE_PROBLEM]
    if registry is False:
        problems.append(REGISTRY_PROBLEM)
    if bus is False:
        problems.append(BUS_PROBLEM)
    if has_lost:
        problems.append(BUS_LOSS_PROBLEM)
    if waiting is not msgspec.UNSET:
        problems.append(HOOKS_PROBLEM)
    found = Readiness(
        status=status, store=store, registry=registry, bus=bus, waiting_for_hooks=waiting, problems=problems
    )
    return Response(found, status_code=200 if store else 503)


@route(
    "GET", "/metrics", scope="hooks:admin", summary="Read metrics for Prometheus", errors=[404], media_type=CONTENT_TYPE
)
async def metrics(request: Req) -> Response[str]:
    """Return the metrics of all tenants. This needs a key of the system."""
    if not caller_of(request).sees_all:
        raise not_found_error("Only a system key with the scope hooks:admin can read the metrics.")
    return Response(await parts_of(request).metrics.render(), media_type=CONTENT_TYPE)


HEALTH_ROUTES = [health, ready, metrics]
