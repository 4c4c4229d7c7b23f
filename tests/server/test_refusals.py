"""Whatever is sent, the answer is a problem that tells how to fix it, and nothing of what is inside."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.errors import HookUsageError
from hookline.server import RateLimit, create_app
from hookline.server._cors import CrossOrigin
from hookline.server._rates import RateLimiter
from hookline.store import SqlStore
from tests.server.site import Site, key, operation
from tests.server.test_hooks import DENY, problem

pytestmark = pytest.mark.anyio


async def raw(site: Site, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """What comes back for bytes that no client would send."""
    target = urlsplit(site.address)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            status, *lines = head.decode("latin-1").strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            return int(status.split()[1]), headers, await reader.read(int(headers.get("content-length", 0)))
    finally:
        writer.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path_factory.mktemp('refusals') / 'store.db'}", max_body=100_000) as site:
        yield site


async def test_what_is_not_there_or_not_meant_is_a_problem(shared: Site) -> None:
    async with shared.client() as client:
        problem(await client.get("/nowhere"), 404, "not_found")
        problem(await client.get("/v1/hooks/nix"), 404, "not_found")
        problem(await client.get("/v1/hooks/a/b/c"), 404, "not_found")
        refused = await client.delete("/v1/hooks")
        problem(refused, 405, "method")
        problem(await client.get("/v1/hooks?limit=0"), 422, "invalid")
        problem(await client.get("/v1/hooks?limit=x"), 422, "invalid")
        problem(await client.get("/v1/hooks?cursor=x"), 422, "invalid")
        problem(await client.get("/v1/operations?cursor=x"), 422, "invalid")
        problem(await client.get("/v1/deliveries?cursor=x"), 422, "invalid")
        problem(await client.get("/v1/hooks/logs?cursor=x"), 422, "invalid")
        problem(await client.get("/v1/hooks/stats?by=x"), 422, "invalid")
        problem(await client.get("/v1/hooks/stats?since=nan"), 422, "invalid")
        problem(await client.get("/v1/hooks/logs?since=1e300"), 422, "invalid")
        problem(await client.get("/v1/operations/x/events?after=99999999999999999999"), 422, "invalid")

    assert "GET" in refused.headers["allow"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="cut-short"),
        pytest.param(b"\xff\xfe", id="no-utf8"),
        pytest.param(b"[" * 90_000, id="deep"),
        pytest.param(b'{"config":' + b'{"a":' * 9_000 + b"1" + b"}" * 9_000 + b"}", id="deep-config"),
        pytest.param(b"1e999", id="number"),
        pytest.param(b'"\\ud800"', id="surrogate"),
        pytest.param(b"", id="empty"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"priority":' + b"9" * 5_000 + b"}", id="huge-number"),
    ],
)
async def test_a_body_that_is_no_definition_is_refused(shared: Site, body: bytes) -> None:
    async with shared.client() as client:
        for address in ("/v1/hooks", "/v1/keys", "/v1/deliveries/replay", "/v1/endpoints/enable"):
            answer = await client.post(address, content=body, headers={"content-type": "application/json"})

            assert answer.status_code in (400, 422), answer.text
            assert answer.headers["content-type"] == "application/problem+json"


async def test_a_huge_body_is_refused_before_it_is_read(shared: Site) -> None:
    head = f"POST /v1/hooks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {shared.admin}\r\ncontent-length: 9000000000\r\n\r\n"

    status, headers, body = await raw(shared, head.encode())

    assert (status, headers["content-type"]) == (413, "application/problem+json")
    assert b"100000 bytes" in body


async def test_a_huge_body_without_a_length_is_refused(shared: Site) -> None:
    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(1000):
            yield b" " * 1000

    async with shared.client() as client:
        answer = await client.post("/v1/hooks", content=endless())
        kept = await client.post("/v1/hooks", content=endless(), headers={"idempotency-key": "k"})

    problem(answer, 413, "too_large")
    problem(kept, 413, "too_large")


@pytest.mark.parametrize("target", ["/v1/hooks/%00", "/v1/operations/%00", "/v1/operations?status=%00", "/%00"])
async def test_a_character_that_no_database_takes_is_refused(each_lasting_site: Site, target: str) -> None:
    async with each_lasting_site.client() as client:
        problem(await client.get(target), 400, "malformed")


async def test_an_id_that_no_operation_can_have_is_not_found(each_lasting_site: Site) -> None:
    async with each_lasting_site.client() as client:
        assert (await client.get("/v1/operations/" + "x" * 500)).status_code in (404, 422)


async def test_text_with_a_null_character_is_refused_everywhere(site: Site, store: SqlStore) -> None:
    waiting = await operation(store)
    async with site.client() as client:
        for address, body in (
            ("/v1/hooks", DENY | {"name": "a\x00"}),
            ("/v1/keys", {"name": "a\x00", "scopes": ["hooks:read"]}),
            ("/v1/keys", {"name": "a", "scopes": ["hooks:read"], "tenantId": "\x00"}),
            ("/v1/deliveries/replay", {"hookId": "\x00"}),
            ("/v1/endpoints/enable", {"url": "\x00"}),
            (f"/v1/operations/{waiting}/decisions", {"toolCallId": "\x00", "decision": "approve"}),
            (f"/v1/operations/{waiting}/decisions", {"toolCallId": "call", "decision": "reject", "reason": "\x00"}),
        ):
            assert (await client.post(address, json=body)).status_code == 422, body


async def test_what_nobody_has_thought_of_is_told_to_the_log_alone(
    sqlite_site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(sqlite_site.server.registry, "list", broken)
    async with sqlite_site.client() as client:
        answer = await client.get("/v1/hooks", headers={"x-request-id": "mine"})

    problem(answer, 500, "internal")
    assert "hunter2" not in answer.text
    [record] = [record for record in caplog.records if record.name == "hookline" and record.levelno == logging.ERROR]
    assert "mine" in record.getMessage()
    assert "hunter2" in str(record.exc_info)


async def test_every_answer_names_its_request_and_is_not_to_be_embedded(shared: Site) -> None:
    async with shared.client("") as client:
        for address, status in (("/health", 200), ("/v1/hooks", 401), ("/nowhere", 401)):
            answer = await client.get(address, headers={"x-request-id": "abc-1"})
            strange = await client.get(address, headers={"x-request-id": "a b\tc" * 100})

            assert answer.status_code == status
            assert answer.headers["x-request-id"] == "abc-1"
            assert len(strange.headers["x-request-id"]) == 32
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "server" not in answer.headers


async def test_one_request_too_many_is_told_when_to_come_again(new_database_url: Callable[[str], str]) -> None:
    with Site(new_database_url("sqlite"), rate_limit=RateLimit(requests=3, seconds=30)) as site:
        async with SqlStore(site.url) as store, site.client() as client, site.client(await key(store)) as other:
            answers = [await client.get("/v1/hooks") for _ in range(4)]
            unhindered = await other.get("/v1/hooks")
            health = await client.get("/health")

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert 0 < int(problem(answers[-1], 429, "rate") and answers[-1].headers["retry-after"]) <= 10
    assert (unhindered.status_code, health.status_code) == (200, 200)


async def test_who_guesses_keys_is_slowed_down_and_nobody_else(new_database_url: Callable[[str], str]) -> None:
    with Site(new_database_url("sqlite"), rate_limit=RateLimit(requests=3, seconds=30)) as site:
        async with site.client("hk_no") as guessing, site.client() as admin:
            answers = [(await guessing.get("/v1/hooks")).status_code for _ in range(5)]
            known = await admin.get("/v1/hooks")

    assert answers == [401, 401, 401, 429, 429]
    assert known.status_code == 200


@settings(max_examples=60, deadline=None)
@given(requests=st.integers(1, 50), waits=st.lists(st.floats(0, 2), max_size=60), seconds=st.floats(0.5, 20))
def test_no_more_requests_pass_than_the_limit_allows(requests: int, waits: list[float], seconds: float) -> None:
    limiter = RateLimiter(RateLimit(requests=requests, seconds=seconds))
    now, passed = 0.0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookline.server._rates.monotonic", lambda: now)
        for wait in waits:
            now += wait
            allowance = limiter.take("somebody")
            if allowance.allowed:
                passed.append(now)
                continue
            assert allowance.wait > 0
            now += allowance.wait
            assert limiter.take("somebody").allowed
            passed.append(now)

    for start in passed:
        within = [at for at in passed if start <= at < start + seconds]
        assert len(within) <= 2 * requests


@pytest.mark.parametrize(
    ("address", "values"),
    [
        ("/v1/operations?status=bogus", ["running", "waiting_for_human", "done"]),
        ("/v1/hooks?point=bogus", ["afterStep", "ToolCall.guard"]),
        ("/v1/hooks/logs?status=bogus", ["ok", "denied"]),
        ("/v1/hooks/logs?point=bogus", ["ToolCall", "afterStep"]),
        ("/v1/hooks/stats?point=bogus", ["ToolCall", "afterStep"]),
        ("/v1/hooks/stats?by=bogus", ["hook", "minute"]),
        ("/v1/deliveries?status=bogus", ["dead"]),
    ],
)
async def test_a_value_that_there_is_not_is_refused_with_those_that_there_are(
    shared: Site, address: str, values: list[str]
) -> None:
    async with shared.client() as client:
        [wrong] = problem(await client.get(address), 422, "invalid")["errors"]
        for value in values:
            assert (await client.get(address.replace("bogus", value))).status_code == 200

    assert wrong["parameter"] == address.partition("?")[2].partition("=")[0]
    assert "bogus" in wrong["detail"]
    listed = wrong["detail"].partition("one of ")[2].split(", ")
    assert set(values) <= set(listed)


async def test_a_tenant_that_is_not_ones_own_is_told_as_one_that_there_is_not(shared: Site) -> None:
    async with SqlStore(shared.url) as store, shared.client() as admin, shared.client(await key(store)) as acme:
        await admin.post("/v1/hooks", json={**DENY, "tenantId": "globex"})
        told = set()
        for tenant in ("globex", "nobody", ""):
            for answer in (
                await acme.post("/v1/hooks", json={**DENY, "tenantId": tenant}),
                await acme.post("/v1/keys", json={"name": "x", "scopes": ["hooks:read"], "tenantId": tenant}),
                await acme.get("/v1/operations", params={"tenantId": tenant}),
            ):
                told.add(problem(answer, 404, "not_found")["detail"])
        figures = problem(await acme.get("/metrics"), 404, "not_found")["detail"]

    [detail] = told
    assert "tenant" in detail
    assert "hooks:admin" in figures


async def test_only_pages_of_allowed_origins_may_ask(new_database_url: Callable[[str], str]) -> None:
    ours, theirs = "https://ops.example.com", "https://evil.example.com"
    question = {"access-control-request-method": "GET", "access-control-request-headers": "authorization"}
    with Site(new_database_url("sqlite"), allow_origins=[ours]) as site:
        async with site.client() as client, site.client("") as nobody:
            asked = await nobody.options("/v1/hooks", headers={"origin": ours, **question})
            refused = await nobody.options("/v1/hooks", headers={"origin": theirs, **question})
            answer = await client.get("/v1/hooks", headers={"origin": ours})
            plain = await nobody.get("/v1/hooks", headers={"origin": ours})
            other = await client.get("/v1/hooks", headers={"origin": theirs})

    for found in (asked, answer, plain):
        assert found.headers["access-control-allow-origin"] == ours
    for found in (refused, other):
        assert "access-control-allow-origin" not in found.headers
    assert (asked.status_code, plain.status_code) == (204, 401)


async def test_nobody_else_may_ask_unless_told(shared: Site) -> None:
    async with shared.client() as client:
        answer = await client.get("/v1/hooks", headers={"origin": "https://ops.example.com"})

    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", ["*", "https://x/", "ops.example.com", "https://x y"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    async def app(*_: object) -> None:
        return None

    if " " in origin:
        return
    with pytest.raises(HookUsageError):
        CrossOrigin(app, [origin])


async def test_a_limit_that_makes_no_sense_is_refused(new_database_url: Callable[[str], str]) -> None:
    async with SqlStore(new_database_url("sqlite")) as store:
        for wrong in (0, -1, True, "1"):
            with pytest.raises(HookUsageError):
                create_app(store, max_body=wrong)  # type: ignore[arg-type]
    for wrong_limit in ({"requests": 0}, {"seconds": 0.0}, {"seconds": float("inf")}):
        with pytest.raises(HookUsageError):
            RateLimit(**wrong_limit)  # type: ignore[arg-type]


async def test_without_registry_and_log_their_routes_say_so(new_database_url: Callable[[str], str]) -> None:
    import httpx

    from hookline.server import KeyStore

    async with SqlStore(new_database_url("sqlite")) as store:
        app = create_app(store, page=False)
        made = await KeyStore(store).create_first()
        assert made is not None
        headers = {"authorization": f"Bearer {made.key}"}
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
            problem(await client.get("/v1/hooks"), 503, "no_registry")
            problem(await client.get("/v1/hooks/logs"), 503, "no_log")
            assert (await client.get("/v1/operations")).status_code == 200
            assert json.loads((await client.get("/ready")).text)["registry"] is None
