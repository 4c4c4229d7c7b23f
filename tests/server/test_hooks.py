from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from sqlalchemy import delete, insert

from hookline.registry import Registry
from hookline.store import SqlStore, registry_members
from tests.registry.test_revisions import commit_calls
from tests.server.site import Site, execution, key, new_id, on_lasting_site

pytestmark = pytest.mark.anyio

HOOK = {"point": "afterStep", "handler": None, "config": {}}
DENY = {"name": "no", "point": "ToolCall.guard", "handler": "deny", "config": {"reason": "no"}}


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (answer.status_code, found["status"], found["code"]) == (status, status, code), found
    assert found["requestId"] == answer.headers["x-request-id"]
    return found


@on_lasting_site
async def test_a_definition_is_made_read_changed_and_deleted(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        made = await client.post("/v1/hooks", json=DENY)
        where = made.headers["location"]
        read = await client.get(where)
        changed = await client.patch(where, json={"priority": 7})
        replaced = await client.put(where, json={**DENY, "name": "never"})
        deleted = await client.delete(where)
        gone = await client.get(where)

    assert made.status_code == 201
    assert read.json() == made.json()
    assert made.json() | {"priority": 7} == changed.json() | {
        name: made.json()[name] for name in ("revision", "updatedAt")
    }
    assert (replaced.json()["name"], replaced.json()["priority"]) == ("never", 100)
    assert (deleted.status_code, deleted.content) == (204, b"")
    problem(gone, 404, "not_found")


@on_lasting_site
async def test_whether_a_hook_goes_along_into_sub_agents_may_be_said_or_left_to_its_point(
    site: Site, store: SqlStore
) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        made = await client.post("/v1/hooks", json=DENY)
        where = made.headers["location"]
        said = await client.patch(where, json={"inherit": False})
        unsaid = await client.patch(where, json={"inherit": None})

    assert [each.json()["inherit"] for each in (made, said, unsaid)] == [None, False, None]


@on_lasting_site
async def test_a_definition_belongs_to_the_tenant_of_the_key(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    async with site.client(await key(store, tenant)) as acme:
        made = await acme.post("/v1/hooks", json=DENY)
        other = await acme.post("/v1/hooks", json={**DENY, "tenantId": "globex"})

    assert made.json()["tenantId"] == tenant
    problem(other, 404, "not_found")


async def test_a_tenant_sees_neither_the_system_nor_other_tenants(site: Site, store: SqlStore) -> None:
    async with site.client() as admin, site.client(await key(store, "acme")) as acme:
        for tenant in ("", "acme", "globex"):
            for name in ("a", "b", "c"):
                body = {**DENY, "tenantId": tenant, "name": name}
                assert (await admin.post("/v1/hooks", json=body)).status_code == 201

        found, address = [], "/v1/hooks?limit=2"
        while address:
            answer = await acme.get(address)
            found += [each["tenantId"] for each in answer.json()["items"]]
            address = answer.links.get("next", {}).get("url", "")
        everything = (await admin.get("/v1/hooks")).json()["items"]
        of_globex = (await admin.get("/v1/hooks?tenantId=globex")).json()["items"]

    assert found == ["acme"] * 3
    assert len(everything) == 9
    assert [each["tenantId"] for each in of_globex] == [""] * 3 + ["globex"] * 3


@on_lasting_site
async def test_a_stale_change_is_refused(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        made = await client.post("/v1/hooks", json=DENY)
        where, tag = made.headers["location"], made.headers["etag"]
        first = await client.patch(where, json={"priority": 1}, headers={"if-match": tag})
        second = await client.patch(where, json={"priority": 2}, headers={"if-match": tag})
        foreign = await client.delete(where, headers={"if-match": '"what"'})
        any_one = await client.delete(where, headers={"if-match": "*"})

    assert first.status_code == 200
    problem(second, 412, "revision")
    problem(foreign, 412, "revision")
    assert any_one.status_code == 204


async def test_a_change_is_made_if_any_tag_of_a_list_is_the_one(sqlite_site: Site) -> None:
    async with sqlite_site.client() as client:
        made = await client.post("/v1/hooks", json=DENY)
        where, tag = made.headers["location"], made.headers["etag"]
        other = '"999999-0"'
        answers = [
            await client.put(f"{where}/toggle", json={"enabled": True}, headers={"if-match": given})
            for given in (f"W/{tag}", f'{other}, W/{tag}, "x"', f"{other}, {tag}")
        ]
        newest = answers[-1].headers["etag"]
        in_front = await client.patch(where, json={"priority": 1}, headers={"if-match": f"{newest},{tag}"})
        anything = await client.patch(where, json={"priority": 2}, headers={"if-match": "*"})
        nothing = await client.delete("/v1/hooks/nix", headers={"if-match": "*"})

    problem(answers[0], 412, "revision")
    problem(answers[1], 412, "revision")
    assert [answer.status_code for answer in (answers[2], in_front, anything)] == [200, 200, 200]
    problem(nothing, 404, "not_found")


@pytest.mark.parametrize(
    "hook",
    [
        pytest.param({**DENY, "id": "mine"}, id="handler"),
        pytest.param({"name": "told", "point": "onComplete", "webhook": {"url": "https://example.org"}}, id="webhook"),
    ],
)
async def test_what_is_read_may_be_sent_back(sqlite_site: Site, hook: dict[str, Any]) -> None:
    made_by_the_server = ("revision", "updatedAt")
    async with sqlite_site.client() as client:
        where = (await client.post("/v1/hooks", json={**hook, "tenantId": "acme"})).headers["location"]
        read = (await client.get(where)).json()
        replaced = await client.put(where, json=read)
        renamed = await client.put(where, json={**read, "name": "other", "revision": 99, "source": "mine"})

    assert replaced.status_code == 200, replaced.text
    for answer, name in ((replaced.json(), hook["name"]), (renamed.json(), "other")):
        changed = {field: answer[field] for field in made_by_the_server} | {"name": name}
        assert answer == read | changed
        assert answer["revision"] < 99


@pytest.mark.parametrize(("field", "value"), [("id", "other"), ("id", ""), ("tenantId", "globex"), ("tenantId", "")])
async def test_a_definition_keeps_its_id_and_its_tenant(lasting_site: Site, field: str, value: str) -> None:
    async with lasting_site.client() as client:
        made = await client.post("/v1/hooks", json={**DENY, "name": new_id("hook"), "tenantId": "acme"})
        where = made.headers["location"]
        refused = problem(await client.put(where, json={**DENY, field: value}), 422, "read_only")
        unknown = await client.put(where, json={**DENY, "colour": "red"})

    assert refused["errors"][0]["pointer"] == f"#/{field}"
    problem(unknown, 422, "invalid")


async def test_a_body_that_is_missing_is_told_so(sqlite_site: Site) -> None:
    async with sqlite_site.client() as client:
        where = (await client.post("/v1/hooks", json=DENY)).headers["location"]
        switched = problem(await client.put(f"{where}/toggle"), 422, "invalid")
        made = problem(await client.post("/v1/hooks"), 422, "invalid")
        tried = await client.post(f"{where}/test")
        same = await client.post(f"{where}/test", json={})

    for found in (switched, made):
        assert found["errors"] == [{"detail": "The body is missing.", "pointer": "#"}]
    assert (tried.status_code, tried.json()["outcome"]) == (200, "denied")
    assert same.json()["outcome"] == "denied"


@on_lasting_site
async def test_what_has_not_changed_is_not_sent_again(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        where = (await client.post("/v1/hooks", json=DENY)).headers["location"]
        tag = (await client.get(where)).headers["etag"]
        same = await client.get(where, headers={"if-none-match": f'"other", {tag}'})
        await client.put(f"{where}/toggle", json={"enabled": False})
        changed = await client.get(where, headers={"if-none-match": tag})

    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert (changed.status_code, changed.json()["enabled"]) == (200, False)


async def test_a_definition_that_is_switched_off_is_off_in_every_process_within_a_second(
    site: Site, store: SqlStore
) -> None:
    async with site.client() as client, Registry(store) as elsewhere:
        where = (await client.post("/v1/hooks", json=DENY)).headers["location"]
        async with asyncio.timeout(5):
            while not elsewhere.hooks("acme"):
                await asyncio.sleep(0.01)
        loop, took = asyncio.get_running_loop(), list[float]()
        for enabled in (False, True, False):
            began = loop.time()
            await client.put(f"{where}/toggle", json={"enabled": enabled})
            async with asyncio.timeout(10):
                while bool(elsewhere.hooks("acme")) is not enabled:
                    await asyncio.sleep(0.01)
            took.append(loop.time() - began)

        assert min(took) < 1.0  # a machine that is busy may delay some


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        pytest.param({"point": "x"}, "#/point", id="unknown-point"),
        pytest.param({"priority": 1001}, "#/priority", id="priority"),
        pytest.param({"name": 3}, "#/name", id="name"),
        pytest.param({"handler": "os:system"}, "#/handler", id="handler"),
        pytest.param({"config": {"wrong": 1}}, "#/config", id="config"),
        pytest.param({"what": 1}, "#/what", id="unknown-field"),
        pytest.param({**HOOK, "webhook": {"url": "ftp://x"}}, "#/webhook/url", id="webhook"),
        pytest.param({"handler": None, "webhook": {}}, "#/webhook/url", id="no-url"),
        pytest.param({"tool": ""}, "#/tool", id="tool"),
    ],
)
async def test_a_definition_that_cannot_work_is_refused_with_the_place(
    lasting_site: Site, body: dict[str, Any], pointer: str
) -> None:
    async with lasting_site.client() as client:
        made = (await client.post("/v1/hooks", json=DENY | {"name": new_id("hook")})).headers["location"]
        refused = await client.post("/v1/hooks", json=DENY | {"name": "other"} | body)
        changed = await client.patch(made, json=body)

    for answer in (refused, changed):
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"] == pointer, answer.json()


async def test_a_name_that_is_taken_and_a_full_quota_are_conflicts(new_database_url: Any) -> None:
    url = new_database_url("sqlite")
    with Site(url, quota=2) as site:
        async with SqlStore(url) as store, site.client(await key(store, "acme")) as acme:
            first = await acme.post("/v1/hooks", json=DENY)
            again = await acme.post("/v1/hooks", json=DENY)
            second = await acme.post("/v1/hooks", json={**DENY, "name": "b"})
            third = await acme.post("/v1/hooks", json={**DENY, "name": "c"})

    assert (first.status_code, second.status_code) == (201, 201)
    problem(again, 409, "conflict")
    problem(third, 409, "quota")


@on_lasting_site
async def test_a_trial_leaves_no_trace(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        where = (await client.post("/v1/hooks", json=DENY)).headers["location"]
        tried = await client.post(f"{where}/test", json={"sample": {"identifier": "bank", "apiName": "pay"}})
        wrong = await client.post(f"{where}/test", json={"sample": {"identifier": 3}})
        logs = await client.get("/v1/hooks/logs")
        statistics = await client.get("/v1/hooks/stats")

    assert (tried.status_code, tried.json()["outcome"], tried.json()["reason"]) == (200, "denied", "no")
    assert wrong.status_code == 422
    assert (logs.json()["items"], statistics.json()) == ([], [])


@on_lasting_site
async def test_the_same_id_of_two_tenants_is_told_apart_by_the_tenant(site: Site) -> None:
    id, one, other = new_id("same"), new_id("tenant"), new_id("tenant")  # noqa: A001
    async with site.client() as admin:
        for tenant in (one, other):
            await admin.post("/v1/hooks", json={**DENY, "id": id, "tenantId": tenant})
        unclear = await admin.get(f"/v1/hooks/{id}")
        clear = await admin.get(f"/v1/hooks/{id}?tenantId={other}")
        deleted = await admin.delete(f"/v1/hooks/{id}?tenantId={one}")
        left = await admin.get(f"/v1/hooks/{id}")

    problem(unclear, 409, "conflict")
    assert clear.json()["tenantId"] == left.json()["tenantId"] == other
    assert deleted.status_code == 204


async def test_what_hooks_of_a_process_did_is_found_in_the_log(site: Site, store: SqlStore) -> None:
    first, second = await execution(site, "acme"), await execution(site, "globex")
    async with site.client() as admin, site.client(await key(store, "acme")) as acme:
        mine = (await acme.get("/v1/hooks/logs?hookId=look&point=ToolCall&status=ok")).json()["items"]
        one = await acme.get(f"/v1/hooks/logs/{mine[0]['id']}")
        all_of_them = (await admin.get("/v1/hooks/logs")).json()["items"]
        sums = (await admin.get("/v1/hooks/stats?by=tenant")).json()
        pairs = (await acme.get("/v1/hooks/stats?by=agent,tool")).json()

    assert [each["operationId"] for each in mine] == [first]
    assert one.json() == mine[0]
    assert {each["operationId"] for each in all_of_them} == {first, second}
    assert {(each["tenantId"], each["count"]) for each in sums} == {("acme", 1), ("globex", 1)}
    assert [(each["agentId"], each["tool"], each["count"]) for each in pairs] == [("", "bank/pay", 1)]


@on_lasting_site
async def test_executions_are_listed_by_revision(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    _, second = [await execution(site, tenant, revision=revision) for revision in (7001, 7002)]
    async with site.client(await key(store, tenant)) as acme, site.client(await key(store, "globex")) as globex:
        mine = (await acme.get("/v1/hooks/logs?revision=7002")).json()["items"]
        others = (await globex.get("/v1/hooks/logs?revision=7002")).json()["items"]
        problem(await acme.get("/v1/hooks/logs?revision=0"), 422, "invalid")

    assert [(each["operationId"], each["executions"][0]["revision"]) for each in mine] == [(second, 7002)]
    assert others == []


@on_lasting_site
async def test_a_backtest_judges_the_calls_of_the_tenant_of_the_key(site: Site, store: SqlStore) -> None:
    acme, globex = new_id("acme"), new_id("globex")
    for tenant in (acme, globex):
        await commit_calls(store, new_id("op"), tenant, "bank/pay", "mail/send", at=time.time_ns())
    reader = await key(store, acme, ["hooks:manage"])
    async with site.client() as admin, site.client(await key(store, acme)) as own, site.client(reader) as blind:
        system = (await admin.post("/v1/hooks", json={**DENY, "name": acme, "tool": "bank/*"})).headers["location"]
        where = (await own.post("/v1/hooks", json={**DENY, "tool": "bank/*"})).headers["location"]
        everything = await admin.post(f"{system}/backtest", json={"tenantId": globex})
        mine = await own.post(f"{where}/backtest")
        unseen = await blind.post(f"{where}/backtest", json={})
        new = await own.post("/v1/hooks/backtest", json={"definition": {**DENY, "name": "new"}, "limit": 1})
        theirs = await own.post(f"{where}/backtest", json={"tenantId": globex})
        old = await own.post(f"{where}/backtest", json={"until": 1.0, "since": 0.0})
        refused = await own.post("/v1/hooks/backtest", json={"definition": {**HOOK, "name": "x", "handler": "log"}})
        control = {"url": "https://example.com/x", "control": True}
        called = {"name": "c", "point": "beforeToolCall", "webhook": control}
        webhook = await own.post("/v1/hooks/backtest", json={"definition": called})
        wrong = await own.post(f"{where}/backtest", json={"limit": 0})

    assert [each["tenantId"] for each in everything.json()["groups"]] == [globex]
    found = mine.json()
    assert found["groups"] == [
        {"tenantId": acme, "tool": "bank/pay", "calls": 1, "denied": 1}
        | dict.fromkeys(("asked", "mocked", "changed", "failed"), 0)
    ]
    assert [each["kind"] for each in found["examples"]] == ["denied"]
    assert (unseen.json()["denied"], unseen.json()["examples"]) == (1, [])
    assert (new.json()["calls"], new.json()["endedBy"]) == (1, "limit")
    problem(theirs, 404, "not_found")
    assert old.json()["operations"] == 0
    assert "observes events" in problem(refused, 422, "not_judged")["detail"]
    assert "receiver would be asked" in problem(webhook, 422, "not_judged")["detail"]
    problem(wrong, 422, "invalid")


@on_lasting_site
async def test_one_backtest_of_a_tenant_runs_at_a_time(site: Site, store: SqlStore) -> None:
    tenant = new_id("busy")
    async with site.client(await key(store, tenant)) as client, site.client() as admin:
        with site.server._parts.backtests.enter(tenant):
            busy = await client.post("/v1/hooks/backtest", json={"definition": DENY})
            other = await admin.post("/v1/hooks/backtest", json={"definition": DENY})
        after = await client.post("/v1/hooks/backtest", json={"definition": DENY})

    assert problem(busy, 429, "backtests")
    assert busy.headers["retry-after"] == "5"
    assert (other.status_code, after.status_code) == (200, 200)


@on_lasting_site
async def test_a_change_with_a_fence_is_made_when_a_process_takes_part(site: Site, store: SqlStore) -> None:
    async with site.client() as client:
        made = await client.post("/v1/hooks", json={**DENY, "name": new_id("name")})
        where = made.headers["location"]
        problem(await client.patch(f"{where}?fence=true", json={"priority": 7}), 422, "invalid")
        assert (await client.get(where)).json() == made.json()

        async with Registry(store, lease_seconds=30) as registry:
            changed = await client.patch(f"{where}?fence=true", json={"priority": 7})

            assert changed.status_code == 200
            [hook] = [each for each in registry.hooks() if getattr(each, "id", "") == made.json()["id"]]
            assert hook.revision == changed.json()["revision"]  # type: ignore[union-attr]
            switched = await client.put(f"{where}/toggle?fence=true", json={"enabled": False})
            assert switched.status_code == 200
            assert not [each for each in registry.hooks() if getattr(each, "id", "") == made.json()["id"]]
            assert (await client.delete(f"{where}?fence=true")).status_code == 204


@on_lasting_site
async def test_a_new_hook_and_a_new_order_take_effect_with_a_fence(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    async with site.client(await key(store, tenant)) as client, Registry(store, lease_seconds=30) as registry:
        made = [
            (await client.post("/v1/hooks?fence=true", json={**DENY, "name": name})).json()["id"] for name in ("a", "b")
        ]
        wanted = [{"id": each} for each in reversed(made)]
        order = {"point": DENY["point"], "hooks": wanted}
        before = registry._fence.generation

        ordered = await client.put("/v1/hooks/order?fence=true", json=order)

        assert ordered.status_code == 200
        assert registry._fence.generation == before + 1
        assert [getattr(each, "id", "") for each in registry.hooks(tenant)[-2:]] == made[::-1]


@on_lasting_site
@pytest.mark.parametrize("how", ["create", "change", "toggle", "order", "revert", "delete"])
async def test_a_change_that_a_process_has_not_confirmed_in_time_is_a_504_which_says_what_to_do(
    site: Site, store: SqlStore, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.server.registry, "_fence_timeout", 0.2)
    member = new_id("host-1")
    silent = {"member_id": member, "lease_seconds": 600.0, "renewals": 0, "confirmed": -1, "started_at": 0.0}
    tenant = new_id("tenant")
    async with site.client(await key(store, tenant)) as client:
        made = (await client.post("/v1/hooks", json={**DENY, "name": "one"})).json()
        where = f"/v1/hooks/{made['id']}"
        async with store.writing() as connection:
            await connection.execute(insert(registry_members).values(silent))
        try:
            answer = await {
                "create": lambda: client.post("/v1/hooks?fence=true", json={**DENY, "name": "two"}),
                "change": lambda: client.patch(f"{where}?fence=true", json={"priority": 7}),
                "toggle": lambda: client.put(f"{where}/toggle?fence=true", json={"enabled": False}),
                "order": lambda: client.put(
                    "/v1/hooks/order?fence=true", json={"point": DENY["point"], "hooks": [{"id": made["id"]}]}
                ),
                "revert": lambda: client.post(f"{where}/revert?fence=true", json={"revision": made["revision"]}),
                "delete": lambda: client.delete(f"{where}?fence=true"),
            }[how]()
        finally:
            async with store.writing() as connection:
                await connection.execute(delete(registry_members).where(registry_members.c.member_id == member))

        told = problem(answer, 504, "fence")["detail"]
        assert member in told
        assert "stays in force" in told
        assert "Stop these processes, or repeat the change with a fence." in told
        now = (await client.get("/v1/hooks")).json()["items"]
        if how == "create":
            assert {each["name"] for each in now} == {"one", "two"}
        elif how == "delete":
            assert now == []
        elif how in ("change", "toggle"):
            assert (now[0]["priority"], now[0]["enabled"]) == ((7, True) if how == "change" else (100, False))
