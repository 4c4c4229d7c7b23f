"""Two servers on one database are as good as one: what was written at one is read at the other, by its id, at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import httpx
import pytest

from hookline.store import SqlStore
from tests.databases import DIALECTS
from tests.server.site import Site, delivery, endpoint, new_id, operation
from tests.server.test_hooks import DENY, problem

pytestmark = pytest.mark.anyio

FILED = '[[hooks]]\nid = "filed"\nname = "filed"\npoint = "ToolCall.guard"\nhandler = "deny"\n'


class Alternating:
    """One client in front of two servers that sends each request to the other one than the last."""

    def __init__(self, *clients: httpx.AsyncClient) -> None:
        self._clients, self._nth = clients, count()

    async def __call__(self, method: str, path: str, **more: object) -> httpx.Response:
        return await self._clients[next(self._nth) % 2].request(method, path, **more)  # type: ignore[arg-type]

    def turn(self) -> None:
        """Let the other one be next."""
        next(self._nth)


@pytest.fixture(scope="module", params=DIALECTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """Two servers that never look for changes by themselves."""
    from tests.databases import new_postgresql

    folder = tmp_path_factory.mktemp("pair")
    url = f"sqlite:///{folder / 's.db'}" if request.param == "sqlite" else new_postgresql(request)
    (folder / "hooks.toml").write_text(FILED)
    with Site(url, files=[folder / "hooks.toml"]) as one, Site(url, files=[folder / "hooks.toml"]) as other:
        for site in (one, other):
            site.server.registry._seconds = 3600.0
        yield one, other


@pytest.fixture
async def ask(pair: tuple[Site, Site]) -> AsyncIterator[Alternating]:
    """The client."""
    one, other = pair
    async with one.client() as first, other.client(one.admin) as second:
        yield Alternating(first, second)


@pytest.fixture
async def store(pair: tuple[Site, Site]) -> AsyncIterator[SqlStore]:
    async with SqlStore(pair[0].url) as store:
        yield store


async def made(ask: Alternating) -> str:
    answer = await ask("POST", "/v1/hooks", json={**DENY, "id": new_id("hook"), "name": new_id("name")})
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]


REQUESTS: dict[str, tuple[str, str, dict[str, object]]] = {
    "read": ("GET", "", {}),
    "patch": ("PATCH", "", {"json": {"priority": 7}}),
    "toggle": ("PUT", "/toggle", {"json": {"enabled": False}}),
    "test": ("POST", "/test", {"json": {}}),
    "put": ("PUT", "", {"json": DENY}),
    "delete": ("DELETE", "", {}),
}


async def test_a_definition_that_was_just_made_is_there(ask: Alternating) -> None:
    for method, rest, more in [*REQUESTS.values()] * 2:
        where = await made(ask)
        if method == "PUT" and not rest:
            more = {"json": {**DENY, "name": new_id("name")}}

        answer = await ask(method, f"{where}{rest}", **more)

        assert answer.status_code in (200, 204), (method, rest, answer.text)
        ask.turn()  # so that the next one is made at the other


async def test_a_definition_that_was_just_deleted_is_gone(ask: Alternating) -> None:
    for method, rest, more in [*REQUESTS.values()] * 2:
        where = await made(ask)
        for _ in range(2):
            await ask("GET", where)
        await ask("DELETE", where)

        problem(await ask(method, f"{where}{rest}", **more), 404, "not_found")


@pytest.mark.parametrize("write", ["put", "patch", "toggle"])
async def test_a_definition_that_was_just_changed_is_read_as_it_is(ask: Alternating, write: str) -> None:
    method, rest, more = REQUESTS[write]
    for _ in range(2):
        if write == "put":
            more = {"json": {**DENY, "name": new_id("name")}}
        where = await made(ask)
        old = [(await ask("GET", where)).headers["etag"] for _ in range(2)]
        changed = await ask(method, f"{where}{rest}", headers={"if-match": old[0]}, **more)
        read = await ask("GET", where)
        stale = [
            (await ask("PATCH", where, json={"priority": 8}, headers={"if-match": old[0]})).status_code,
            (await ask("GET", where, headers={"if-none-match": old[1]})).status_code,
        ]
        tag = changed.headers["etag"]
        again = await ask("PATCH", where, json={"priority": 8}, headers={"if-match": tag})

        assert (read.json(), stale) == (changed.json(), [412, 200])
        assert (await ask("GET", where)).json() == again.json()


async def test_the_switch_of_a_definition_in_a_file_is_read_as_it_is(ask: Alternating) -> None:
    for enabled in (False, True, False):
        await ask("PUT", "/v1/hooks/filed/toggle", json={"enabled": enabled})

        assert (await ask("GET", "/v1/hooks/filed")).json()["enabled"] is enabled


async def test_an_id_and_a_name_are_free_once_their_definition_is_deleted(ask: Alternating) -> None:
    body = {**DENY, "id": new_id("hook"), "name": new_id("name")}
    for _ in range(3):
        assert (await ask("POST", "/v1/hooks", json=body)).status_code == 201
        problem(await ask("POST", "/v1/hooks", json=body), 409, "conflict")
        assert (await ask("DELETE", f"/v1/hooks/{body['id']}")).status_code == 204


async def test_an_id_that_another_tenant_no_longer_has_is_no_conflict(ask: Alternating) -> None:
    id = new_id("hook")  # noqa: A001
    for tenant in ("acme", "globex"):
        await ask("POST", "/v1/hooks", json={**DENY, "id": id, "name": new_id("name"), "tenantId": tenant})
    several = await ask("GET", f"/v1/hooks/{id}")
    await ask("DELETE", f"/v1/hooks/{id}?tenantId=globex")
    one = await ask("GET", f"/v1/hooks/{id}")

    problem(several, 409, "conflict")
    assert one.json()["tenantId"] == "acme"


async def test_a_key_that_was_just_made_opens_and_can_be_ended(ask: Alternating, pair: tuple[Site, Site]) -> None:
    made = (await ask("POST", "/v1/keys", json={"name": "k", "scopes": ["hooks:read"]})).json()
    for site in pair:
        async with site.client(made["key"]) as client:
            assert (await client.get("/v1/hooks")).status_code == 200

    assert (await ask("DELETE", f"/v1/keys/{made['id']}")).status_code == 204
    assert [each["revokedAt"] is not None for each in (await ask("GET", "/v1/keys")).json()["items"]].count(True) >= 1


async def test_an_operation_and_what_was_decided_about_it_are_read_as_they_are(
    ask: Alternating, store: SqlStore
) -> None:
    id = await operation(store)  # noqa: A001
    reads = [(await ask("GET", f"/v1/operations/{id}{rest}")).status_code for rest in ("", "/events", "/approvals")]
    decision = {"toolCallId": "call", "decision": "approve"}
    decided = await ask("POST", f"/v1/operations/{id}/decisions", json=decision)
    open_calls = (await ask("GET", f"/v1/operations/{id}/approvals")).json()
    again = await ask("POST", f"/v1/operations/{id}/decisions", json=decision)

    assert (reads, decided.status_code, open_calls) == ([200, 200, 200], 200, [])
    problem(again, 409, "not_pending")


async def test_a_delivery_and_an_endpoint_are_read_as_they_are(ask: Alternating, store: SqlStore) -> None:
    id = await delivery(store)  # noqa: A001
    url = await endpoint(store, "")
    retried = await ask("POST", f"/v1/deliveries/{id}/retry")
    read = await ask("GET", f"/v1/deliveries/{id}")
    statuses = [(await ask("POST", "/v1/endpoints/enable", json={"url": url})).status_code for _ in range(2)]

    assert (retried.status_code, read.json()["status"] in ("pending", "delivering", "dead")) == (200, True)
    assert statuses == [204, 404]


async def test_an_endpoint_that_a_hook_was_just_made_for_gets_a_secret(ask: Alternating) -> None:
    for _ in range(2):
        name, url = new_id("hook"), f"https://{new_id('endpoint')}.example/in"
        hook = {"name": name, "point": "onComplete", "tenantId": "acme", "webhook": {"url": url}}
        assert (await ask("POST", "/v1/hooks", json=hook)).status_code == 201

        answer = await ask("POST", "/v1/endpoints/secrets", json={"url": url, "tenantId": "acme"})

        assert answer.status_code == 201, answer.text
        ask.turn()


async def test_an_answer_is_kept_for_both(ask: Alternating) -> None:
    body = {**DENY, "name": new_id("name")}
    key = {"idempotency-key": new_id("key")}

    answers = [await ask("POST", "/v1/hooks", json=body, headers=key) for _ in range(3)]

    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_who_cannot_look_is_told_so_rather_than_that_there_is_nothing(
    new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookline.errors import StoreUnavailableError
    from hookline.registry import _registry

    async def lost(*_: object) -> None:
        raise StoreUnavailableError("store", "it is lost")

    with Site(new_database_url("sqlite")) as site:
        async with site.client() as client:
            where = (await client.post("/v1/hooks", json=DENY)).headers["location"]
            monkeypatch.setattr(_registry, "read_changes", lost)
            known, unknown = await client.get(where), await client.get("/v1/hooks/unknown")

    assert known.status_code == 200
    problem(unknown, 503, "store_unavailable")
