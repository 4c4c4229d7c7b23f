from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from hookline import Deny
from hookline.calls import RequestCall
from hookline.hooks import Hooks
from hookline.server._feed import ChangedOperations
from hookline.store import SqlStore
from tests.server.site import Site, key, new_id, on_lasting_site, operation
from tests.server.test_hooks import problem
from tests.server.test_page_guards import token_in
from tests.store.records import entries, state

pytestmark = pytest.mark.anyio


class Told(NamedTuple):
    id: str
    event: str
    data: Any


@asynccontextmanager
async def told(client: httpx.AsyncClient, address: str, **headers: str) -> AsyncIterator[AsyncIterator[Told]]:
    """The events of a stream, as they come."""
    async with client.stream("GET", address, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _parsed(answer.aiter_lines())


async def _parsed(lines: AsyncIterator[str]) -> AsyncIterator[Told]:
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Told(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}


async def some(stream: AsyncIterator[Told], count: int) -> list[Told]:
    async with asyncio.timeout(15):
        return [await anext(stream) for _ in range(count)]


async def grown(store: SqlStore, id: str, *, status: str = "running", more: int = 2) -> None:  # noqa: A002
    """Write an operation once more, with some more events."""
    found = await store.load(id)
    assert found is not None
    last = found.events + more
    new = state(id, found.version + 1, events=last, tenant_id=found.tenant_id, status=status)
    await store.commit(new, expected_version=found.version, entries=entries(id, found.events + 1, last))


@on_lasting_site
async def test_events_of_an_operation_come_until_it_ends(site: Site, store: SqlStore) -> None:
    id = await operation(store)  # noqa: A001

    async with site.client(await key(store)) as client, told(client, f"/v1/operations/{id}/stream") as stream:
        first = await some(stream, 3)
        await grown(store, id)
        then = await some(stream, 2)
        await grown(store, id, status="done", more=1)
        last = await some(stream, 2)
        async with asyncio.timeout(10):
            over = [each async for each in stream]

    assert [each.id for each in (*first, *then, *last)] == ["1", "2", "3", "4", "5", "6", "6"]
    assert {each.event for each in (*first, *then)} == {"beforeStep"}
    assert first[0].data["stepIndex"] == 1
    assert (last[-1].event, last[-1].data["status"], over) == ("end", "done", [])


@on_lasting_site
async def test_who_comes_back_goes_on_where_they_were(site: Site, store: SqlStore) -> None:
    id = await operation(store, status="done", pending=[])  # noqa: A001

    async with site.client() as client:
        async with told(client, f"/v1/operations/{id}/stream", **{"last-event-id": "2"}) as stream:
            rest = await some(stream, 2)
        over = await client.get(f"/v1/operations/{id}/stream", headers={"last-event-id": rest[-1].id})
        wrong = await client.get(f"/v1/operations/{id}/stream", headers={"last-event-id": "x"})

    assert [(each.id, each.event) for each in rest] == [("3", "beforeStep"), ("3", "end")]
    assert (over.status_code, over.content) == (204, b"")
    assert wrong.status_code == 422


@on_lasting_site
async def test_operations_of_a_tenant_are_told_of_as_they_change(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    async with site.client(await key(store, tenant)) as client, told(client, "/v1/stream") as stream:
        # What comes first shows that it listens; until then operations may come unheard.
        probing = asyncio.create_task(some(stream, 1))
        while not probing.done():
            await operation(store, tenant)
            await asyncio.sleep(0.2)
        await operation(store, "globex", operation_id="other")
        await operation(store, tenant, operation_id="mine")
        while (seen := (await some(stream, 1))[0]).data["operationId"] != "mine":
            assert seen.data["tenantId"] == tenant
        await grown(store, "mine", status="running")
        running = (await some(stream, 1))[0]
        await grown(store, "mine", status="done")
        done = (await some(stream, 1))[0]

    assert (running.data["operationId"], running.data["status"], running.data["events"]) == ("mine", "running", 5)
    assert (done.data["operationId"], done.data["status"], done.data["events"]) == ("mine", "done", 7)


@on_lasting_site
async def test_who_comes_back_is_told_what_has_changed_meanwhile(site: Site, store: SqlStore) -> None:
    since = await store.now()
    tenant = new_id("tenant")
    ids = [await operation(store, tenant, status=status, pending=[]) for status in ("done", "running", "error")]

    position = {"last-event-id": f"{since:.6f}"}
    async with site.client(await key(store, tenant)) as client, told(client, "/v1/stream", **position) as stream:
        found = await some(stream, 3)

    # SQLite's clock counts milliseconds, and these operations may have changed in the same one: in any order then.
    assert sorted(each.data["operationId"] for each in found) == sorted(ids)


async def test_an_odd_error_of_one_look_does_not_end_the_stream(
    site: Site, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = ChangedOperations.poll
    failures = [ValueError("odd")]

    async def fail_once(self: ChangedOperations, *state: Any) -> Any:
        if failures:
            raise failures.pop()
        return await look(self, *state)

    monkeypatch.setattr(ChangedOperations, "poll", fail_once)
    async with site.client(await key(store)) as client, told(client, "/v1/stream") as stream:
        probing = asyncio.create_task(some(stream, 1))
        while not probing.done():
            await operation(store, "acme")
            await asyncio.sleep(0.2)

    assert not failures
    assert probing.result()[0].data["tenantId"] == "acme"


@on_lasting_site
async def test_a_stream_ends_within_a_second_of_its_key(site: Site, store: SqlStore) -> None:
    id = await operation(store)  # noqa: A001
    token = await key(store)

    address = f"/v1/operations/{id}/stream"
    async with site.client() as admin, site.client(token) as client, told(client, address) as stream:
        await some(stream, 3)
        await admin.delete(f"/v1/keys/{token.split('_')[1]}")
        since = monotonic()
        async with asyncio.timeout(10):
            assert [each async for each in stream] == []

    assert monotonic() - since < 1.5


async def test_a_server_that_ends_ends_its_streams(new_database_url: Any) -> None:
    url = new_database_url("sqlite")
    async with SqlStore(url) as store:
        id = await operation(store)  # noqa: A001
        with Site(url) as site:
            async with site.client() as client, told(client, f"/v1/operations/{id}/stream") as stream:
                await some(stream, 3)
                since = monotonic()
                site.loop.call_soon_threadsafe(site.stop)
                async with asyncio.timeout(10):
                    assert [each async for each in stream] == []

    assert monotonic() - since < 3


@on_lasting_site
async def test_many_who_listen_are_gone_when_they_leave(site: Site, store: SqlStore) -> None:
    id = await operation(store)  # noqa: A001
    async with site.client() as client:
        for _ in range(3):
            listeners = [client.stream("GET", address) for address in ("/v1/stream", f"/v1/operations/{id}/stream") * 5]
            answers = await asyncio.gather(*(each.__aenter__() for each in listeners))
            assert {answer.status_code for answer in answers} == {200}
            for each in listeners:
                await each.__aexit__(None, None, None)
        await quiet(client)


async def quiet(client: httpx.AsyncClient) -> None:
    """Wait until no stream is open."""
    async with asyncio.timeout(10):
        while "hookline_streams 0\n" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.02)


async def test_a_key_has_so_many_streams_open_and_no_more(new_database_url: Any) -> None:
    with Site(new_database_url("sqlite"), page=True) as site:
        async with SqlStore(site.url) as store, site.client(await key(store)) as client, site.client() as admin:
            id, session = await operation(store), await signed_in(client)  # noqa: A001
            addresses = ("/v1/stream", f"/v1/operations/{id}/stream", "/page/operations/live", "/page/approvals/live")
            listeners = [client.stream("GET", address, headers=session) for address in addresses * 5]
            answers = await asyncio.gather(*(each.__aenter__() for each in listeners))
            async with asyncio.timeout(10):
                refused = [await client.get(address, headers=session) for address in addresses]
            async with told(admin, f"/v1/operations/{id}/stream") as stream:
                others = await some(stream, 1)
            for each in listeners:
                await each.__aexit__(None, None, None)
            await quiet(admin)
            async with told(client, f"/v1/operations/{id}/stream") as stream:
                again = await some(stream, 1)

    assert [answer.status_code for answer in answers] == [200] * 20
    assert "20 open streams" in problem(refused[0], 429, "streams")["detail"]
    assert [answer.status_code for answer in refused] == [429] * 4
    assert refused[2].json()["code"] == refused[3].json()["code"] == "streams"
    assert (others[0].id, again[0].id) == ("1", "1")


async def signed_in(client: httpx.AsyncClient) -> dict[str, str]:
    """The cookie of a session on the page, with the key of a client."""
    secret = client.headers["authorization"].removeprefix("Bearer ")
    token = token_in((await client.get("/page/sign-in")).text)
    await client.post("/page/sign-in", data={"token": token, "key": secret})
    return {"cookie": f"hookline_session={client.cookies['hookline_session']}"}


async def test_a_stream_that_ends_before_it_begins_is_not_counted(new_database_url: Any) -> None:
    hooks = Hooks("door")
    hooks.after(RequestCall)(lambda call, result: Deny("no") if call.path == "/v1/stream" else None)
    with Site(new_database_url("sqlite"), hooks=[hooks]) as site:
        async with site.client() as client:
            answers = [await client.get("/v1/stream") for _ in range(25)]
            await quiet(client)

    assert {answer.status_code for answer in answers} == {403}


async def test_a_client_that_leaves_at_once_is_not_counted(sqlite_site: Site) -> None:
    target = urlsplit(sqlite_site.address)
    head = f"GET /v1/stream HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {sqlite_site.admin}\r\n\r\n".encode()
    for _ in range(25):
        _, writer = await asyncio.open_connection(target.hostname, target.port)
        writer.write(head)
        await writer.drain()
        writer.close()

    async with sqlite_site.client() as client:
        await quiet(client)
        async with client.stream("GET", "/v1/stream") as answer:
            assert answer.status_code == 200


async def test_the_streams_of_a_key_that_has_ended_are_not_counted(sqlite_site: Site) -> None:
    async with SqlStore(sqlite_site.url) as store, sqlite_site.client() as admin:
        token = await key(store)
        async with sqlite_site.client(token) as client:
            listeners = [client.stream("GET", "/v1/stream") for _ in range(3)]
            await asyncio.gather(*(each.__aenter__() for each in listeners))
            assert "hookline_streams 3\n" in (await admin.get("/metrics")).text
            await admin.delete(f"/v1/keys/{token.split('_')[1]}")

            await quiet(admin)
            for each in listeners:
                await each.__aexit__(None, None, None)
