"""Who has no key takes neither the memory nor the connections of a server: real sockets, and short limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from hookline.errors import HookUsageError
from hookline.server import RateLimit, Server, create_app
from hookline.server._connections import raise_file_limit
from hookline.server._limits import ServerLimits
from hookline.store import SqlStore
from tests.server.site import Site, key
from tests.server.test_hooks import DENY, problem

pytestmark = pytest.mark.anyio

SMALL: dict[str, Any] = {"max_headers": 2000, "header_timeout": 0.3, "body_timeout": 0.3, "max_connections": 8}
PATIENCE = 20


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path_factory.mktemp('bounded') / 'store.db'}", **SMALL) as site:
        yield site


class Wire:
    """A connection on which anything may be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            return int(status.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def refusal(self) -> tuple[int, str]:
        """Status and code of a problem, after which the connection ends."""
        status, headers, body = await self.answer()
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert await self.rest() == b""
        return status, json.loads(body)["code"]

    async def rest(self) -> bytes:
        """What comes until the server ends the connection."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()


@asynccontextmanager
async def wire(site: Site) -> AsyncIterator[Wire]:
    to = urlsplit(site.address)
    reader, writer = await asyncio.open_connection(to.hostname, to.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def head(site: Site, method: str = "GET", path: str = "/health", *lines: str) -> bytes:
    given = "".join(f"{line}\r\n" for line in (f"authorization: Bearer {site.admin}", *lines))
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n{given}\r\n".encode()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /health HTTP/1.1\r\nx-long: " + b"a" * 100_000, id="one-header"),
        pytest.param(b"GET /health HTTP/1.1\r\n" + b"x-many: abc\r\n" * 8_000, id="many-headers"),
        pytest.param(b"GET /health HTTP/1.1\r\n" + b"x-many: abc\r\n" * 160 + b"\r\n", id="many-small-and-complete"),
        pytest.param(b"GET /" + b"a" * 100_000, id="address"),
        pytest.param(b"GET /" + b"a" * 2_500 + b" HTTP/1.1\r\n\r\n", id="address-and-complete"),
        pytest.param(b"\r\n" * 50_000, id="empty-lines"),
    ],
)
async def test_headers_that_are_too_large_are_refused(bounded: Site, sent: bytes) -> None:
    async with wire(bounded) as client:
        await client.send(sent)

        assert await client.refusal() == (431, "headers_too_large")


async def test_headers_without_end_are_refused_while_they_are_sent(bounded: Site) -> None:
    async with wire(bounded) as client:
        await client.send(b"GET /health HTTP/1.1\r\nx-long: ")

        async def flood() -> None:
            while True:
                await client.send(b"a" * 65_536)

        flooding = asyncio.create_task(flood())
        refused = await client.answer()
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)

    assert refused[0] == 431


@pytest.mark.parametrize(
    "chunk", [b"1;" + b"e" * 100_000, b"0\r\nx-trailer: " + b"a" * 100_000], ids=["size", "trailer"]
)
async def test_what_surrounds_the_pieces_of_a_body_is_bounded_too(bounded: Site, chunk: bytes) -> None:
    async with wire(bounded) as client:
        await client.send(head(bounded, "POST", "/v1/hooks", "transfer-encoding: chunked") + chunk)
        status, code = await client.refusal()

    assert (status, code) in ((431, "headers_too_large"), (400, "malformed"))


async def test_a_trailer_never_becomes_a_header(bounded: Site) -> None:
    body = json.dumps(DENY).encode()
    chunks = b"%x\r\n%b\r\n0\r\nidempotency-key: late\r\n\r\n" % (len(body), body)
    async with wire(bounded) as client:
        for _ in range(2):
            await client.send(head(bounded, "POST", "/v1/hooks", "transfer-encoding: chunked") + chunks)
            status, headers, _ = await client.answer()

            assert "idempotency-replayed" not in headers

    assert status == 409  # the name is taken: it was done once more


@pytest.mark.parametrize("sent", [b"G", b"GET /health HTTP/1.1\r\nhost: x\r\n", b"GET /health HTTP/1.1\r\nx: a"])
async def test_headers_that_are_half_sent_are_answered_with_408(bounded: Site, sent: bytes) -> None:
    async with wire(bounded) as client:
        await client.send(sent)

        assert await client.refusal() == (408, "header_timeout")


async def test_headers_that_trickle_are_answered_with_408(bounded: Site) -> None:
    async with wire(bounded) as client:

        async def trickle() -> None:
            for byte in b"GET /health HTTP/1.1\r\nx: " + b"a" * 100_000:
                await client.send(bytes((byte,)))
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        refused = await client.answer()
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)

    assert refused[0] == 408


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
async def test_a_silent_connection_is_ended(bounded: Site, sent: bytes) -> None:
    async with wire(bounded) as client:
        await client.send(sent)

        assert await client.rest() == b""


async def test_what_follows_an_answer_without_beginning_a_request_is_ended(bounded: Site) -> None:
    async with wire(bounded) as client:
        await client.send(head(bounded))
        answer = await client.answer()
        await client.send(b"\r\n")

        assert (answer[0], await client.rest()) == (200, b"")


@pytest.mark.parametrize("sent", [b"", b'{"name":'])
@pytest.mark.parametrize("more", [(), ("idempotency-key: {key}",)], ids=["plain", "once"])
async def test_a_body_that_stands_still_is_answered_with_408(
    bounded: Site, sent: bytes, more: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    lines = [line.format(key=abs(hash(request.node.name))) for line in more]
    async with wire(bounded) as client:
        await client.send(head(bounded, "POST", "/v1/hooks", "content-length: 100", *lines) + sent)

        assert await client.refusal() == (408, "body_timeout")


async def test_a_body_that_moves_may_take_its_time(bounded: Site) -> None:
    body = json.dumps({**DENY, "name": "slow"}).encode()
    async with wire(bounded) as client:
        await client.send(head(bounded, "POST", "/v1/hooks", f"content-length: {len(body)}"))
        since = asyncio.get_running_loop().time()
        for place in range(0, len(body), 10):
            await client.send(body[place : place + 10])
            await asyncio.sleep(0.08)
        took = asyncio.get_running_loop().time() - since
        status, *_ = await client.answer()

    assert took > SMALL["body_timeout"]
    assert status == 201


async def test_a_body_that_nobody_reads_does_not_keep_its_connection(bounded: Site) -> None:
    async with wire(bounded) as client:
        await client.send(head(bounded, "GET", "/health", "content-length: 100") + b"a")
        answer = await client.answer()

        assert (answer[0], await client.rest()) == (200, b"")


async def test_a_stream_ends_where_its_client_never_sends_the_body_that_it_announced(
    bounded: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire(bounded) as client:
        await client.send(head(bounded, "GET", "/v1/stream", "content-length: 100"))

        assert (await client.rest()).startswith(b"HTTP/1.1 200 ")

    assert not [record for record in caplog.records if record.exc_info]


async def test_requests_in_a_row_are_answered_in_their_order_and_the_bad_one_last(bounded: Site) -> None:
    many = head(bounded, "GET", "/v1/hooks?limit=1") + head(bounded) * 3
    async with wire(bounded) as client:
        await client.send(many + b"GET /health HTTP/1.1\r\nx-long: " + b"a" * 10_000)
        answers = [(await client.answer())[0] for _ in range(4)]
        await client.rest()

    assert answers == [200] * 4


def test_head_and_body_of_an_answer_are_sent_together(bounded: Site) -> None:
    to = urlsplit(bounded.address)
    with socket.create_connection((to.hostname, to.port or 80), timeout=PATIENCE) as client:
        for _ in range(3):
            client.sendall(head(bounded))
            answer = client.recv(65_536)
            lines, _, body = answer.partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}".encode() in lines.lower().split(b"\r\n")
            assert json.loads(body)


async def test_an_answer_without_a_body_is_sent_before_the_next_one(bounded: Site) -> None:
    async with wire(bounded) as client:
        await client.send(head(bounded, "HEAD") + head(bounded) + head(bounded, "GET", "/health", "connection: close"))
        sent = await client.rest()

    answers = sent.split(b"HTTP/1.1 ")[1:]
    assert len(answers) == 3
    assert answers[0].endswith(b"\r\n\r\n")
    assert answers[1].startswith(b"200")
    assert b"connection: close" in answers[2]
    assert all(json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers[1:])


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(bounded: Site) -> None:
    body = json.dumps({**DENY, "name": "told to go on"}).encode()
    async with wire(bounded) as client:
        lines = f"content-length: {len(body)}", "content-type: application/json", "expect: 100-continue"
        await client.send(head(bounded, "POST", "/v1/hooks", *lines))
        async with asyncio.timeout(PATIENCE):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        status, _, made = await client.answer()

    assert status == 201
    assert json.loads(made)["name"] == "told to go on"


async def test_a_large_body_and_what_follows_it_are_read(bounded: Site) -> None:
    body = json.dumps({**DENY, "name": "large", "config": {"reason": "a" * 200_000}}).encode()
    async with wire(bounded) as client:
        await client.send(head(bounded, "POST", "/v1/hooks", f"content-length: {len(body)}") + body + head(bounded))
        first, second = await client.answer(), await client.answer()

    assert (first[0] in (201, 422), second[0]) == (True, 200)


async def test_one_connection_too_many_is_refused_until_another_one_ends(
    new_database_url: Callable[[str], str],
) -> None:
    with Site(new_database_url("sqlite"), max_connections=3) as site:
        async with contextlib.AsyncExitStack() as silent:
            for _ in range(3):
                await silent.enter_async_context(wire(site))
            async with site.client("") as client:
                refused = await client.get("/health")
        async with asyncio.timeout(PATIENCE):
            while True:
                async with site.client("") as client:
                    if (await client.get("/health")).status_code == 200:
                        break

    assert (refused.status_code, refused.json()["code"]) == (503, "connections")
    assert refused.headers["retry-after"] == "1"
    assert "3 open connections" in refused.json()["detail"]


async def test_silent_connections_keep_nobody_out_for_longer_than_headers_may_take(bounded: Site) -> None:
    async with contextlib.AsyncExitStack() as silent:
        for _ in range(3 * SMALL["max_connections"]):
            await silent.enter_async_context(wire(bounded))
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    async with bounded.client("") as client:
                        if (await client.get("/health")).status_code == 200:
                            break


@asynccontextmanager
async def slow_reader(site: Site, requests: int) -> AsyncIterator[Wire]:
    """A client that asks for much at once, and takes little of it at a time."""
    to = urlsplit(site.address)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, (to.hostname, to.port))
    reader, writer = await asyncio.open_connection(sock=small, limit=2048)
    writer.write(head(site, "GET", "/schema/openapi.json") * requests)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def test_clients_that_read_nothing_keep_nobody_out_for_longer_than_bodies_may_stand_still(
    bounded: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as greedy:
        for _ in range(SMALL["max_connections"]):
            await greedy.enter_async_context(slow_reader(bounded, 200))
        ended = 0
        async with asyncio.timeout(PATIENCE):
            while ended < SMALL["max_connections"]:
                with contextlib.suppress(httpx.TransportError):
                    async with bounded.client() as client:
                        figures = (await client.get("/metrics")).text
                    found = re.search(r'refusals_total{code="unread"} (\d+)', figures)
                    ended = int(found[1]) if found is not None else 0

    assert not [record for record in caplog.records if record.exc_info]


async def test_a_client_that_reads_slowly_gets_all_of_it(bounded: Site) -> None:
    requests, found = 4, b""
    async with slow_reader(bounded, requests) as client, asyncio.timeout(PATIENCE):
        since = asyncio.get_running_loop().time()
        while found.count(b"HTTP/1.1 200 OK") < requests or not found.endswith(b"}"):
            found += await client.reader.read(65_536)
            await asyncio.sleep(0.01)
        took = asyncio.get_running_loop().time() - since

    assert took > SMALL["body_timeout"]


async def test_there_are_no_more_connections_than_the_process_may_open_files(
    new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (26, 26))
    with Site(new_database_url("sqlite")) as site:
        async with wire(site), wire(site), site.client("") as client:
            refused = await client.get("/health")

    assert (refused.status_code, refused.json()["code"]) == (503, "connections")
    assert "This process may open 26 files, so the server accepts 2 connections" in caplog.text


def test_a_process_that_serves_lets_itself_open_as_many_files_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 900))
    monkeypatch.setattr("resource.setrlimit", lambda _, given: allowed.append(given))

    for connections in (10, 300, 5_000):
        raise_file_limit(ServerLimits(max_body=1, max_connections=connections))

    assert allowed == [(424, 900), (900, 900)]


async def test_refusals_are_counted_by_their_code(bounded: Site) -> None:
    for sent in (b"GET / HTTP/1.1\r\nx: ", b"no http\r\n\r\n", b"GET /" + b"a" * 3000):
        async with wire(bounded) as client:
            await client.send(sent)
            await client.rest()
    async with bounded.client("hk_no") as client:
        await client.get("/v1/hooks")
    async with bounded.client() as client:
        figures = (await client.get("/metrics")).text

    for code in ("header_timeout", "malformed", "headers_too_large", "key"):
        assert f'hookline_http_refusals_total{{code="{code}"}} ' in figures


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_headers", (0, 1023, True, "64k", 1.5)),
        ("header_timeout", (0, -1, True, "30", float("inf"), float("nan"))),
        ("body_timeout", (0, -1, None, float("inf"))),
        ("max_connections", (0, -1, True, 1.5)),
        ("trusted_proxies", ("127.0.0.1", ["*"], ["localhost"], ["10.0.0.1/8"], [None])),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_its_name(name: str, values: tuple[Any, ...]) -> None:
    for wrong in values:
        with pytest.raises(HookUsageError, match=f"`{name}` "):
            Server("sqlite://", **{name: wrong})


async def test_a_mounted_application_bounds_bodies_that_stand_still(new_database_url: Callable[[str], str]) -> None:
    async with SqlStore(new_database_url("sqlite")) as store:
        app, token = create_app(store, page=False, body_timeout=0.05), await key(store, "")
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-length", b"9")]
        scope = {"type": "http", "method": "POST", "path": "/v1/keys", "query_string": b"", "headers": headers}
        await app(scope, receive, send)

    assert sent[0]["status"] == 408


async def test_a_tenant_has_one_allowance_for_all_its_keys(new_database_url: Callable[[str], str]) -> None:
    limits = {"rate_limit": RateLimit(requests=3, seconds=60), "tenant_rate_limit": RateLimit(requests=4, seconds=60)}
    with Site(new_database_url("sqlite"), **limits) as site:
        async with SqlStore(site.url) as store:
            keys = [await key(store), await key(store), await key(store, "globex")]
        statuses, answers = [], []
        for token in keys:
            async with site.client(token) as client:
                answers = [await client.get("/v1/hooks") for _ in range(4)]
                statuses.append([answer.status_code for answer in answers])
                if token is keys[1]:
                    refused = answers[1]

    # What the first key may not send by itself does not count for its tenant.
    assert statuses == [[200, 200, 200, 429], [200, 429, 429, 429], [200, 200, 200, 429]]
    assert "of this tenant" in problem(refused, 429, "rate")["detail"]
    assert 0 < int(refused.headers["retry-after"]) <= 15
    assert (refused.headers["ratelimit-limit"], refused.headers["ratelimit-remaining"]) == ("4", "0")


@pytest.mark.parametrize(
    ("trusted", "statuses"),
    [((), [401, 401, 429, 429]), (("127.0.0.1",), [401, 401, 401, 401]), (("10.0.0.0/8",), [401, 401, 429, 429])],
)
async def test_guesses_count_for_the_address_that_a_trusted_proxy_names(
    new_database_url: Callable[[str], str], trusted: tuple[str, ...], statuses: list[int]
) -> None:
    limit = RateLimit(requests=2, seconds=60)
    with Site(new_database_url("sqlite"), rate_limit=limit, trusted_proxies=trusted) as site:
        async with site.client("hk_no") as client:
            answers = [
                await client.get("/v1/hooks", headers={"x-forwarded-for": f"1.2.3.4, 203.0.113.{number}"})
                for number in range(4)
            ]

    assert [answer.status_code for answer in answers] == statuses


async def test_a_proxy_that_the_environment_names_is_not_believed(
    new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with Site(new_database_url("sqlite"), rate_limit=RateLimit(requests=1, seconds=60)) as site:
        async with site.client("hk_no") as client:
            answers = [await client.get("/v1/hooks", headers={"x-forwarded-for": f"1.1.1.{n}"}) for n in range(2)]

    assert [answer.status_code for answer in answers] == [401, 429]


@pytest.mark.parametrize(("settings", "warned"), [({}, 1), ({"trusted_proxies": ["10.0.0.0/8"]}, 0)])
async def test_who_listens_to_everybody_without_a_proxy_is_warned_in_one_line(
    new_database_url: Callable[[str], str], caplog: pytest.LogCaptureFixture, settings: dict[str, Any], warned: int
) -> None:
    for host, expected in (("0.0.0.0", warned), ("127.0.0.1", 0)):
        caplog.clear()
        async with Server(new_database_url("sqlite"), host=host, port=0, page=False, **settings):
            pass

        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len([line for line in told if "without TLS" in line and "\n" not in line]) == expected
