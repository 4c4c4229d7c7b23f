"""The API inside of another application, and hooks around its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from hookline import Deny, Respond
from hookline.calls import RequestCall, RequestResult
from hookline.hooks import AnyHook, Hooks
from hookline.registry import ExecutionLog, Registry, request_id
from hookline.server import SCOPES, KeyStore, create_app
from hookline.store import SqlStore
from tests.server.site import Site
from tests.server.test_hooks import DENY, problem

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
    refused = problem(denied, 403, "denied")
    assert (refused["detail"], refused["hook"]) == ("not today", "watch.look")
    assert set(refused) == {"title", "status", "code", "detail", "hook", "requestId"}
    assert (unknown.status_code, health.status_code) == (401, 200)
    assert [call.path for call in seen] == ["/v1/hooks", "/v1/keys"]
    assert (seen[0].operation_id, names[0]) == ("r-1", "r-1")
    assert not any("authorization" in call.headers for call in seen)


async def test_a_hook_that_fails_refuses_with_a_problem_and_says_nothing_of_why(
    new_database_url: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks("watch")

    @hooks.guard(RequestCall)
    def broken(call: RequestCall) -> None:
        raise RuntimeError("password=hunter2")

    async with mounted(new_database_url("sqlite"), "/ops", hooks) as client:
        answer = await client.get("/ops/v1/hooks")

    assert problem(answer, 500, "hook_failed")["hook"] == "watch.broken"
    assert "hunter2" not in answer.text


async def test_problems_of_the_api_and_answers_of_hooks_pass_as_they_are(
    new_database_url: Callable[[str], str],
) -> None:
    hooks, own = Hooks("watch"), b'{"hook": "mine"}'

    @hooks.before(RequestCall)
    def answered(call: RequestCall) -> Respond | None:
        headers = {"content-type": "application/problem+json"}
        return Respond(RequestResult(status=403, headers=headers, body=own)) if call.path.endswith("logs") else None

    async with mounted(new_database_url("sqlite"), "/ops", hooks) as client:
        key = {"name": "x", "scopes": ["operations:read"], "tenantId": "acme"}
        token = (await client.post("/ops/v1/keys", json=key)).json()["key"]
        scope = await client.get("/ops/v1/hooks", headers={"authorization": f"Bearer {token}"})
        other = await client.get("/ops/v1/hooks/logs")

    problem(scope, 403, "scope")
    assert (other.status_code, other.content) == (403, own)


@pytest.mark.parametrize("tenant", ["", "acme"])
@pytest.mark.parametrize("way_out", ["off", "delete"])
async def test_nobody_is_locked_out_by_a_hook_of_their_own(sqlite_site: Site, tenant: str, way_out: str) -> None:
    guard = {"id": "shut", "name": "no", "point": "RequestCall.guard", "handler": "deny", "tenantId": tenant}
    async with sqlite_site.client() as admin:
        body = {"name": "x", "scopes": [*SCOPES], "tenantId": tenant}
        token = (await admin.post("/v1/keys", json=body)).json()["key"]
        async with sqlite_site.client(token) as client:
            await admin.post("/v1/hooks", json=guard)
            denied = problem(await client.get("/v1/hooks"), 403, "denied")
            where = f"/v1/hooks/{denied['hook']}"
            changed = await client.patch(where, json={"priority": 1})
            if way_out == "off":
                opened = await client.put(f"{where}/toggle", json={"enabled": False})
            else:
                opened = await client.delete(where)
            after = await client.get("/v1/hooks")

    problem(changed, 403, "denied")
    assert (opened.status_code // 100, after.status_code) == (2, 200)


async def test_hooks_of_the_system_and_of_the_server_are_asked_about_switching_a_hook_off(sqlite_site: Site) -> None:
    guard = {"point": "RequestCall.guard", "handler": "deny"}
    async with sqlite_site.client() as admin:
        body = {"name": "acme", "scopes": ["hooks:read", "hooks:manage"], "tenantId": "acme"}
        token = (await admin.post("/v1/keys", json=body)).json()["key"]
        async with sqlite_site.client(token) as acme:
            await acme.post("/v1/hooks", json={**guard, "id": "theirs", "name": "a"})
            await admin.post("/v1/hooks", json={**guard, "id": "ours", "name": "b"})
            refused = await acme.delete("/v1/hooks/theirs")
            unscoped = await admin.delete("/v1/hooks/ours")
            freed = await acme.delete("/v1/hooks/theirs")

    assert problem(refused, 403, "denied")["hook"] == "ours"
    assert (unscoped.status_code, freed.status_code) == (204, 204)


async def test_hooks_of_the_server_are_asked_about_everything(new_database_url: Callable[[str], str]) -> None:
    hooks = Hooks("watch")

    @hooks.guard(RequestCall)
    def frozen(call: RequestCall) -> Deny | None:
        return Deny("not today") if call.method == "DELETE" else None

    async with mounted(new_database_url("sqlite"), "/ops", hooks) as client:
        where = (await client.post("/ops/v1/hooks", json=DENY)).headers["location"]

        problem(await client.delete(where), 403, "denied")


@pytest.mark.parametrize(("path", "server"), [("/ops/deep", "/ops/deep"), ("/a b", "/a%20b"), ("", "/")])
async def test_its_description_names_the_path_where_it_is(
    new_database_url: Callable[[str], str], path: str, server: str
) -> None:
    async with mounted(new_database_url("sqlite"), path) as client:
        description = (await client.get(f"{path}/schema/openapi.json")).json()

    assert description["servers"] == [{"url": server}]


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
