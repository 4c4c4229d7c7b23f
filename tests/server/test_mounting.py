"""The API inside of another application, and hooks around its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from hookline import Deny
from hookline.calls import RequestCall, RequestResult
from hookline.hooks import AnyHook, Hooks
from hookline.registry import ExecutionLog, Registry, request_id
from hookline.server import KeyStore, create_app
from hookline.store import SqlStore
from tests.server.site import Site
from tests.server.test_hooks import DENY

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def mounted(url: str, path: str, *hooks: AnyHook) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API that an application of Starlette has under a path."""
    async with SqlStore(url) as store, Registry(store) as registry, ExecutionLog(store) as log:
        app = create_app(store, registry=registry, log=log, hooks=hooks, page=False)
        made = await KeyStore(store).create_first()
        assert made is not None
        transport = httpx.ASGITransport(Starlette(routes=[Mount(path, app)]))  # type: ignore[arg-type]
        headers = {"authorization": f"Bearer {made.key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
            yield client


@pytest.mark.parametrize("path", ["/ops", "/v1", "/a/v1/hooks"])
async def test_it_works_under_any_path(new_database_url: Callable[[str], str], path: str) -> None:
    async with mounted(new_database_url("sqlite"), path) as client:
        made = [await client.post(f"{path}/v1/hooks", json={**DENY, "name": name}) for name in "abc"]
        found = await client.get(made[0].headers["location"])
        first = await client.get(f"{path}/v1/hooks?limit=2")
        rest = await client.get(first.links["next"]["url"])
        outside = await client.get("/v1/hooks/logs") if path != "/v1" else None

    assert made[0].headers["location"].startswith(f"{path}/v1/hooks/")
    assert found.json() == made[0].json()
    assert len(first.json()["items"]) + len(rest.json()["items"]) == 3
    assert outside is None or outside.status_code == 404


async def test_requests_go_through_hooks_that_never_see_the_key(new_database_url: Callable[[str], str]) -> None:
    seen: list[RequestCall] = []
    names: list[str] = []
    hooks = Hooks("watch")

    @hooks.guard(RequestCall)
    def look(call: RequestCall) -> Deny | None:
        seen.append(call)
        names.append(request_id.get())
        return Deny("not today") if call.path.endswith("/keys") else None

    @hooks.after(RequestCall)
    def mark(call: RequestCall, result: RequestResult) -> RequestResult:
        return RequestResult(status=result.status, headers={**result.headers, "x-seen": "yes"})

    async with mounted(new_database_url("sqlite"), "/ops", hooks) as client:
        passed = await client.get("/ops/v1/hooks", headers={"x-request-id": "r-1"})
        denied = await client.get("/ops/v1/keys")
        unknown = await client.get("/ops/v1/hooks", headers={"authorization": "Bearer hk_no"})
        health = await client.get("/ops/health")

    assert (passed.status_code, passed.headers["x-seen"]) == (200, "yes")
    assert (denied.status_code, denied.json()["detail"]) == (403, "not today")
    assert (unknown.status_code, health.status_code) == (401, 200)
    assert [call.path for call in seen] == ["/v1/hooks", "/v1/keys"]
    assert (seen[0].operation_id, names[0]) == ("r-1", "r-1")
    assert not any("authorization" in call.headers for call in seen)


async def test_a_stored_hook_guards_the_requests_of_its_tenant_from_the_next_one_on(sqlite_site: Site) -> None:
    guard = {"name": "no", "point": "RequestCall.guard", "handler": "deny", "config": {"reason": "closed"}}
    async with sqlite_site.client() as admin:
        body = {"name": "acme", "scopes": ["hooks:read"], "tenantId": "acme"}
        token = (await admin.post("/v1/keys", json=body)).json()["key"]
        async with sqlite_site.client(token) as acme:
            before = await acme.get("/v1/hooks")
            where = (await admin.post("/v1/hooks", json={**guard, "tenantId": "acme"})).headers["location"]
            denied = await acme.get("/v1/hooks")
            await admin.put(f"{where}/toggle", json={"enabled": False})
            after = await acme.get("/v1/hooks")

    assert [each.status_code for each in (before, denied, after)] == [200, 403, 200]
    assert denied.json()["detail"] == "closed"
