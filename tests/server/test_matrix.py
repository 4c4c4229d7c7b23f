"""Every route, with every scope, on objects of the caller, of another tenant and of the system.

The routes come from the application itself: one without an entry here fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from urllib3 import HTTPConnectionPool

from hookline.delivery import EndpointSecrets, KeyRing
from hookline.runtime import Approve
from hookline.server import SCOPES, KeyStore, Scope
from hookline.server.routes import ROUTES
from hookline.server.routes._health import PUBLIC
from hookline.store import SqlStore
from hookline.store._tables import definitions
from tests.registry.test_policy_alerts import fallback_alert, put
from tests.server import site as made
from tests.server.site import SECONDS, Site, key
from tests.tables import noted

pytestmark = pytest.mark.anyio

OWNERS = ("acme", "globex", "")
"""Own, other, system: as a key of acme sees them."""


@dataclass(frozen=True)
class Case:
    """How a route is tried out.

    Attributes:
        address: Where, with `{id}` for the object.
        make: Makes an object of an owner, gives its id.
        body: What is sent, of the object's id.
        listed: Of a list: gives whose objects an answer has; then there is no single object.
        status: Of the answer, if all is well.
        endless: Whether the answer never ends.
    """

    address: str
    make: Callable[[Site, SqlStore, str], Awaitable[str]] | None = None
    body: Callable[[str], Any] | None = None
    listed: Callable[[Any], set[str]] | None = None
    status: int = 200
    endless: bool = False


async def hook(site: Site, store: SqlStore, owner: str) -> str:
    body = {"name": made.new_id("hook"), "point": "ToolCall.guard", "handler": "deny", "tenantId": owner}
    async with site.client() as admin:
        return str((await admin.post("/v1/hooks", json=body)).json()["id"])


async def deleted_hook(site: Site, store: SqlStore, owner: str) -> str:
    id = await hook(site, store, owner)  # noqa: A001
    async with site.client() as admin:
        assert (await admin.delete(f"/v1/hooks/{id}?tenantId={owner}")).status_code == 204
    return id


async def alert(site: Site, store: SqlStore, owner: str) -> str:
    id = await hook(site, store, owner)  # noqa: A001
    await put(store, fallback_alert(id, owner))
    return id


async def waiting(site: Site, store: SqlStore, owner: str) -> str:
    return await made.operation(store, owner)


async def ended(site: Site, store: SqlStore, owner: str) -> str:
    return await made.operation(store, owner, status="done", pending=[])


async def log(site: Site, store: SqlStore, owner: str) -> str:
    operation_id = await made.execution(site, owner)
    async with site.client() as admin:
        return str((await admin.get(f"/v1/hooks/logs?operationId={operation_id}")).json()["items"][0]["id"])


async def dead(site: Site, store: SqlStore, owner: str) -> str:
    return await made.delivery(store, owner)


async def disabled(site: Site, store: SqlStore, owner: str) -> str:
    return await made.endpoint(store, owner)


async def api_key(site: Site, store: SqlStore, owner: str) -> str:
    return (await key(store, owner)).split("_")[1]


async def bare_key(site: Site, store: SqlStore, owner: str) -> str:
    """A key whose scopes a key with the one scope of this route has, too."""
    return (await key(store, owner, ["hooks:admin"])).split("_")[1]


async def decided(site: Site, store: SqlStore, owner: str) -> str:
    its = await made.operation(store, owner)
    await store.decide(its, Approve("call"), by="cli:ann")
    return its


async def endpoint(site: Site, store: SqlStore, owner: str) -> str:
    endpoint_secrets = EndpointSecrets(store, made.MASTER, environment=KeyRing())
    return (await endpoint_secrets.rotate(owner, f"https://{made.new_id('receiver')}.example/in")).url


async def secret(site: Site, store: SqlStore, owner: str) -> str:
    endpoint_secrets = EndpointSecrets(store, made.MASTER, environment=KeyRing())
    return (await endpoint_secrets.rotate(owner, f"https://{made.new_id('receiver')}.example/in")).id


def tenants(answer: Any) -> set[str]:
    items = answer["items"] if isinstance(answer, dict) else answer
    return {each["tenantId"] for each in items}


def alerted_tenants(answer: Any) -> set[str]:
    return {each["alert"]["tenantId"] for each in answer["items"]}


HOOK = {"name": "a hook", "point": "ToolCall.guard", "handler": "deny"}
CASES: dict[tuple[str, str], Case] = {
    ("GET", "/v1/hooks"): Case("/v1/hooks?limit=1000", hook, listed=tenants),
    ("POST", "/v1/hooks"): Case("/v1/hooks", body=lambda _: HOOK | {"name": made.new_id("hook")}, status=201),
    ("GET", "/v1/hooks/handlers"): Case("/v1/hooks/handlers"),
    ("GET", "/v1/hooks/{id:str}"): Case("/v1/hooks/{id}", hook),
    ("PUT", "/v1/hooks/{id:str}"): Case("/v1/hooks/{id}", hook, body=lambda each: HOOK | {"name": each}),
    ("PATCH", "/v1/hooks/{id:str}"): Case("/v1/hooks/{id}", hook, body=lambda _: {"priority": 1}),
    ("PUT", "/v1/hooks/{id:str}/toggle"): Case("/v1/hooks/{id}/toggle", hook, body=lambda _: {"enabled": False}),
    ("DELETE", "/v1/hooks/{id:str}"): Case("/v1/hooks/{id}", hook, status=204),
    ("POST", "/v1/hooks/{id:str}/test"): Case("/v1/hooks/{id}/test", hook, body=lambda _: {"sample": {}}, status=200),
    ("GET", "/v1/hooks/deleted"): Case("/v1/hooks/deleted?limit=1000", deleted_hook, listed=tenants),
    ("GET", "/v1/hooks/alerts"): Case("/v1/hooks/alerts?limit=1000", alert, listed=alerted_tenants),
    ("PUT", "/v1/hooks/order"): Case(
        "/v1/hooks/order", body=lambda _: {"point": "MemoryCall.before", "hooks": [{"id": "nobody"}]}, status=412
    ),
    ("POST", "/v1/hooks/test"): Case("/v1/hooks/test", body=lambda _: {"definition": HOOK}, status=200),
    ("POST", "/v1/hooks/matches"): Case("/v1/hooks/matches", body=lambda _: HOOK, status=200),
    ("POST", "/v1/hooks/backtest"): Case("/v1/hooks/backtest", body=lambda _: {"definition": HOOK}, status=200),
    ("POST", "/v1/hooks/{id:str}/backtest"): Case("/v1/hooks/{id}/backtest", hook, body=lambda _: {}, status=200),
    ("GET", "/v1/hooks/{id:str}/matches"): Case("/v1/hooks/{id}/matches", hook),
    ("GET", "/v1/hooks/{id:str}/revisions"): Case("/v1/hooks/{id}/revisions", hook),
    ("POST", "/v1/hooks/{id:str}/revert"): Case(
        "/v1/hooks/{id}/revert", deleted_hook, body=lambda _: {"revision": 0}, status=422
    ),
    ("GET", "/v1/hooks/logs"): Case("/v1/hooks/logs?limit=1000", log, listed=tenants),
    ("GET", "/v1/hooks/logs/{id:str}"): Case("/v1/hooks/logs/{id}", log),
    ("GET", "/v1/hooks/stats"): Case("/v1/hooks/stats?by=tenant", log, listed=tenants),
    ("GET", "/v1/operations"): Case("/v1/operations?limit=1000", waiting, listed=tenants),
    ("GET", "/v1/stats/operations"): Case(
        "/v1/stats/operations", waiting, listed=lambda answer: tenants({"items": answer["byTenant"]})
    ),
    ("GET", "/v1/operations/{id:str}"): Case("/v1/operations/{id}", waiting),
    ("GET", "/v1/operations/{id:str}/events"): Case("/v1/operations/{id}/events", waiting),
    ("GET", "/v1/operations/{id:str}/model-calls"): Case("/v1/operations/{id}/model-calls", waiting),
    ("GET", "/v1/operations/{id:str}/messages"): Case("/v1/operations/{id}/messages", waiting),
    ("POST", "/v1/operations/{id:str}/interrupt"): Case("/v1/operations/{id}/interrupt", waiting),
    # The server has no agents.
    ("POST", "/v1/operations/{id:str}/retry"): Case("/v1/operations/{id}/retry", ended, status=409),
    ("GET", "/v1/operations/{id:str}/approvals"): Case("/v1/operations/{id}/approvals", waiting),
    ("GET", "/v1/operations/{id:str}/stream"): Case("/v1/operations/{id}/stream", ended, endless=True),
    ("POST", "/v1/operations/{id:str}/decisions"): Case(
        "/v1/operations/{id}/decisions", waiting, body=lambda _: {"toolCallId": "call", "decision": "approve"}
    ),
    ("GET", "/v1/operations/{id:str}/decisions"): Case("/v1/operations/{id}/decisions", waiting),
    ("GET", "/v1/decisions"): Case("/v1/decisions?limit=1000", decided, listed=tenants),
    ("GET", "/v1/approvals"): Case("/v1/approvals?limit=1000", waiting, listed=tenants),
    ("GET", "/v1/stream"): Case("/v1/stream", endless=True),
    ("GET", "/v1/deliveries"): Case("/v1/deliveries?limit=1000", dead, listed=tenants),
    ("GET", "/v1/deliveries/{id:str}"): Case("/v1/deliveries/{id}", dead),
    ("POST", "/v1/deliveries/{id:str}/retry"): Case("/v1/deliveries/{id}/retry", dead),
    ("POST", "/v1/deliveries/replay"): Case("/v1/deliveries/replay", body=lambda _: {"hookId": "nobody"}),
    ("GET", "/v1/endpoints"): Case("/v1/endpoints", disabled, listed=tenants),
    ("POST", "/v1/endpoints/enable"): Case("/v1/endpoints/enable", disabled, body=lambda url: {"url": url}, status=204),
    ("GET", "/v1/endpoints/known"): Case("/v1/endpoints/known", disabled, listed=tenants),
    ("GET", "/v1/endpoints/secrets"): Case("/v1/endpoints/secrets", secret, listed=tenants),
    ("POST", "/v1/endpoints/secrets"): Case(
        "/v1/endpoints/secrets", endpoint, body=lambda url: {"url": url}, status=201
    ),
    ("DELETE", "/v1/endpoints/secrets/{id:str}"): Case("/v1/endpoints/secrets/{id}", secret, status=204),
    ("GET", "/v1/keys"): Case("/v1/keys?limit=1000", api_key, listed=tenants),
    ("POST", "/v1/keys"): Case("/v1/keys", body=lambda _: {"name": "x", "scopes": ["hooks:admin"]}, status=201),
    ("POST", "/v1/keys/{id:str}/rotate"): Case("/v1/keys/{id}/rotate", bare_key, body=lambda _: {}, status=201),
    ("DELETE", "/v1/keys/{id:str}"): Case("/v1/keys/{id}", api_key, status=204),
    ("GET", "/v1/audit"): Case("/v1/audit?limit=1000", api_key, listed=tenants),
    ("GET", "/v1/audit.csv"): Case("/v1/audit.csv"),
    ("GET", "/v1/audit.jsonl"): Case("/v1/audit.jsonl"),
    ("GET", "/v1/settings"): Case("/v1/settings"),
    ("GET", "/metrics"): Case("/metrics"),
}
ROUTE_SCOPES: dict[tuple[str, str], Scope | None] = {
    (method, path): handler.opt["scope"]
    for handler in ROUTES
    for path in handler.paths
    for method in sorted(handler.http_methods)
}
GUARDED = sorted(place for place, scope in ROUTE_SCOPES.items() if scope is not None)


def test_every_route_is_in_the_matrix_or_public() -> None:
    assert set(GUARDED) == set(CASES)
    assert {path for (_, path), scope in ROUTE_SCOPES.items() if scope is None} < set(PUBLIC)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path_factory.mktemp('matrix') / 'store.db'}", quota=10_000) as site:
        yield site


@pytest.fixture
async def database(shared: Site) -> AsyncIterator[SqlStore]:
    async with SqlStore(shared.url) as store:
        yield store


class Person:
    """Somebody with a key, or without one, who keeps a connection. Most clients take twice as long as the server."""

    def __init__(self, site: Site, secret: str) -> None:
        to = urlsplit(site.address)
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self._pool = HTTPConnectionPool(to.hostname or "", to.port, timeout=SECONDS, headers=headers, retries=False)

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    def send(self, method: str, case: Case, object_id: str, query: str = "") -> tuple[int, Any]:
        """Try a route out; gives the status, and what the JSON of the answer says."""
        address = case.address.replace("{id}", object_id)
        address += f"{'&' if '?' in address else '?'}{query}" if query else ""
        body = {"json": case.body(object_id)} if case.body is not None else {}
        answer = self._pool.request(method, address, preload_content=not case.endless, **body)
        if answer.status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        elif case.endless:
            answer.close()
            return answer.status, None
        is_json = answer.headers.get("content-type", "").endswith("json")
        return answer.status, answer.json() if is_json else None


class People:
    """People who ask all routes."""

    def __init__(self, site: Site, database: SqlStore, stack: ExitStack) -> None:
        self._site, self._database, self._stack = site, database, stack
        self._known: dict[Scope, Person] = {}

    async def of(self, scope: Scope) -> Person:
        """Return somebody with a key of acme that has one scope."""
        if scope not in self._known:
            self._known[scope] = self.with_key(await key(self._database, "acme", [scope]))
        return self._known[scope]

    def with_key(self, secret: str) -> Person:
        """Return somebody with a key: `""` for none."""
        return self._stack.enter_context(closing(Person(self._site, secret)))


@pytest.fixture
def people(shared: Site, database: SqlStore) -> Iterator[People]:
    with ExitStack() as stack:
        yield People(shared, database, stack)


async def test_only_its_scope_opens_a_route_and_only_for_own_objects(
    shared: Site, database: SqlStore, people: People
) -> None:
    nobody, admin = people.with_key(""), people.with_key(shared.admin)
    for place in GUARDED:
        with noted({"place": place}):
            make = CASES[place].make
            objects = {owner: await make(shared, database, owner) if make else "" for owner in OWNERS}
            await check_refusals(place, objects, people, nobody)
            await check_own(place, objects, people)
            check_administrator(place, objects, admin)


async def check_refusals(place: tuple[str, str], objects: dict[str, str], people: People, nobody: Person) -> None:
    case, method = CASES[place], place[0]
    for each in objects.values():
        assert nobody.send(method, case, each)[0] == 401
    for other in SCOPES:
        if other == ROUTE_SCOPES[place]:
            continue
        wrong = await people.of(other)
        for each in objects.values():
            assert wrong.send(method, case, each)[0] == 403, other


async def check_own(place: tuple[str, str], objects: dict[str, str], people: People) -> None:
    case, scope, method = CASES[place], ROUTE_SCOPES[place], place[0]
    assert scope is not None
    acme = await people.of(scope)
    if case.make is not None and case.listed is None:
        for owner in ("globex", ""):
            assert acme.send(method, case, objects[owner])[0] == 404, owner
            assert acme.send(method, case, objects[owner], f"tenantId={owner}")[0] == 404, owner
    if place == ("GET", "/metrics"):
        assert acme.send(method, case, "")[0] == 404
        return
    status, answer = acme.send(method, case, objects["acme"])
    assert status == case.status, answer
    if case.listed is not None:
        assert case.listed(answer) <= {"acme"}
        for owner in ("globex", ""):
            assert acme.send(method, case, "", f"tenantId={owner}")[0] == 404, owner


def check_administrator(place: tuple[str, str], objects: dict[str, str], admin: Person) -> None:
    case, method = CASES[place], place[0]
    if place == ("GET", "/metrics"):
        return
    for owner in ("globex", ""):
        status, answer = admin.send(method, case, objects[owner], _whose(place, owner))
        unnamed = place in (("POST", "/v1/endpoints/enable"), ("POST", "/v1/endpoints/secrets"))
        assert status in (case.status, 404 if unnamed else case.status), answer
    if case.listed is not None:
        assert case.listed(admin.send(method, case, "")[1]) >= {"acme", "globex"}


def _whose(place: tuple[str, str], owner: str) -> str:
    return f"tenantId={owner}" if place[1].startswith("/v1/hooks/{id") else ""


async def test_what_others_were_refused_is_as_it_was(shared: Site, database: SqlStore) -> None:
    ids = {owner: await hook(shared, database, owner) for owner in ("globex", "")}
    token = await key(database, "globex")
    deliveries = {owner: await dead(shared, database, owner) for owner in ("globex", "")}
    async with database.reading() as connection:
        before = (await connection.execute(definitions.select())).all()

    async with shared.client(await key(database, "acme")) as acme:
        for owner, each in ids.items():
            await acme.delete(f"/v1/hooks/{each}")
            await acme.patch(f"/v1/hooks/{each}?tenantId={owner}", json={"enabled": False})
            await acme.put(f"/v1/hooks/{each}/toggle", json={"enabled": False})
            await acme.post(f"/v1/deliveries/{deliveries[owner]}/retry")
            await acme.post(f"/v1/deliveries/replay?tenantId={owner}", json={"status": "dead"})
        await acme.delete(f"/v1/keys/{token.split('_')[1]}")
        replayed = await acme.post("/v1/deliveries/replay", json={"hookId": "told"})

    assert replayed.status_code == 200
    async with database.reading() as connection:
        assert (await connection.execute(definitions.select())).all() == before
    assert await KeyStore(database).authenticate(token) is not None
    async with shared.client(token) as globex:
        assert (await globex.get(f"/v1/deliveries/{deliveries['globex']}")).json()["status"] == "dead"
