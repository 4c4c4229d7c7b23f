"""Wake-ups over PostgreSQL: few notifications, topics apart, and nothing missed when a connection or the server is lost."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from hookline.store import SqlStore
from hookline.wakeups import PostgresWakeups
from tests.databases import EMPTIER, Server

from .media import NET

pytestmark = pytest.mark.anyio

OTHERS = f"""
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> '{EMPTIER}'
"""
LISTENING = f"SELECT count(*) FROM ({OTHERS} AND query ~ '^(LISTEN \"?hookline\"?$|BEGIN; SET LOCAL)') AS found"


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[PostgresWakeups]:
    wakeups = PostgresWakeups(url, **{"net": NET, **options})  # type: ignore[arg-type]
    try:
        yield wakeups
    finally:
        await wakeups.aclose()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def heard(event: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await event.wait()
    event.clear()


async def until_listening(connection: asyncpg.Connection) -> None:
    async with asyncio.timeout(20):
        while not await connection.fetchval(LISTENING):
            await asyncio.sleep(0.01)


async def test_wakeups_that_follow_quickly_become_few_notifications_with_all_topics(postgresql_url: str) -> None:
    payloads: list[str] = []
    async with connected(postgresql_url) as watcher, opened(postgresql_url) as wakeups:
        await watcher.add_listener("hookline", lambda *args: payloads.append(args[-1]))
        began = monotonic()
        for round_ in range(100):
            for topic in ("work", "deliveries", f"t{round_}"):
                wakeups.wake(topic)
            await asyncio.sleep(0.001)
        took = monotonic() - began
        await wakeups.aclose()
        await watcher.fetchval("SELECT 1")

    assert 1 <= len(payloads) <= took / 0.02 + 2
    topics = {topic for payload in payloads for topic in payload.split(",")}
    assert topics == {"work", "deliveries", *(f"t{number}" for number in range(100))}


async def test_more_topics_than_a_notification_holds_wake_everybody(postgresql_url: str) -> None:
    woken = asyncio.Event()
    async with (
        connected(postgresql_url) as watcher,
        opened(postgresql_url) as other,
        opened(postgresql_url) as one,
        other.woken("work", woken.set),
    ):
        await until_listening(watcher)
        await heard(woken)  # it was called once it listened
        for number in range(2000):
            one.wake(f"another-topic-{number}")
        await heard(woken)


async def test_a_listener_of_another_process_hears_its_own_topic_alone(postgresql_url: str) -> None:
    calls: list[str] = []
    woken = asyncio.Event()
    async with (
        connected(postgresql_url) as watcher,
        opened(postgresql_url) as other,
        opened(postgresql_url) as one,
        other.woken("quiet", lambda: calls.append("quiet")),
        other.woken("work", woken.set),
    ):
        await until_listening(watcher)
        await heard(woken)
        calls.clear()
        for _ in range(3):
            one.wake("work")
            await heard(woken)
    assert calls == []


async def test_a_killed_listener_listens_again_and_looks_for_what_it_has_missed(postgresql_url: str) -> None:
    woken = asyncio.Event()
    async with connected(postgresql_url) as killer, opened(postgresql_url) as other, other.woken("work", woken.set):
        for _ in range(10):
            await until_listening(killer)
            await heard(woken)
            await killer.fetch(f"SELECT pg_terminate_backend(pid) FROM ({OTHERS}) AS them")
        await heard(woken)
        async with opened(postgresql_url) as one:
            await until_listening(killer)
            woken.clear()
            one.wake("work")
            await heard(woken)


async def test_a_wakeup_during_an_outage_is_sent_after_it(postgresql_url: str, postgresql: Server) -> None:
    name = postgresql_url.split("?")[0].rsplit("/", 1)[1]
    async with opened(postgresql_url) as one:
        one.wake("before")
        async with connected(postgresql_url) as watcher:
            await watcher.add_listener("hookline", lambda *_: None)
        postgresql.administer(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            kill = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            postgresql.administer(kill)
            one.wake("during")
        finally:
            postgresql.administer(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        woken = asyncio.Event()
        async with connected(postgresql_url) as watcher:
            await watcher.add_listener("hookline", lambda *args: "during" in args[-1] and woken.set())
            one.wake("during")
            await heard(woken)


async def test_a_store_finds_everything_after_the_server_has_crashed(postgresql_url: str, postgresql: Server) -> None:
    woken = asyncio.Event()
    async with opened(postgresql_url) as other, other.woken("work", woken.set), opened(postgresql_url) as one:
        await heard(woken)
        await asyncio.to_thread(postgresql.crash)
        await heard(woken)  # it has connected again, or polls meanwhile
        async with connected(postgresql_url) as watcher:
            await until_listening(watcher)
        woken.clear()
        one.wake("work")
        await heard(woken)


async def test_the_slow_net_finds_a_lost_wakeup(postgresql_url: str) -> None:
    woken = asyncio.Event()
    async with (
        connected(postgresql_url) as watcher,
        opened(postgresql_url, net=(0.05, 0.1)) as wakeups,
        wakeups.woken("work", woken.set),
    ):
        await until_listening(watcher)
        for _ in range(3):
            await heard(woken)  # nobody wakes it


@asynccontextmanager
async def pooler_that_breaks_listen(url: str) -> AsyncIterator[str]:
    """Pass everything on but notifications, as a pooler does that gives each transaction another connection."""
    [folder] = parse_qs(urlsplit(url).query)["host"]

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def pass_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            if head[:1] != b"A":
                writer.write(head + body)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.5432")
        back = asyncio.create_task(pass_back(from_server, writer))
        try:
            await pass_on(reader, to_server)
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}{urlsplit(url).path}?sslmode=disable"
    finally:
        server.close()


async def test_a_pooler_that_breaks_listen_is_noticed_once_and_listeners_poll(
    postgresql_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.wakeups.PROBE_SECONDS", 0.2)
    woken, told = asyncio.Event(), asyncio.Event()
    async with pooler_that_breaks_listen(postgresql_url) as pooled, connected(postgresql_url) as watcher:
        await watcher.add_listener("hookline", lambda *_: told.set())
        async with opened(pooled, poll_seconds=0.05) as wakeups, wakeups.woken("work", woken.set):
            async with asyncio.timeout(20):
                while "pooler" not in caplog.text:
                    await asyncio.sleep(0.01)
            woken.clear()
            for _ in range(3):
                await heard(woken)  # it polls
            wakeups.wake("work")
            await heard(told)  # and still tells others, who may have another connection
            await watcher.fetch(f"SELECT pg_terminate_backend(pid) FROM ({OTHERS}) AS them")
            wakeups.wake("work")
            await heard(told)
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1


async def test_nothing_is_connected_before_it_is_needed(postgresql_url: str) -> None:
    async with connected(postgresql_url) as watcher, opened(postgresql_url) as wakeups:
        await asyncio.sleep(0)
        assert await watcher.fetch(OTHERS) == []
        wakeups.wake("work")
        async with asyncio.timeout(20):
            while not await watcher.fetch(OTHERS):
                await asyncio.sleep(0.01)


async def test_nobody_is_asked_for_ever_if_nothing_listens_at_the_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asyncio.timeout(20):
        async with opened("postgresql://nobody@127.0.0.1:1/none", poll_seconds=0.05) as wakeups:
            woken = asyncio.Event()
            async with wakeups.woken("work", woken.set):
                await heard(woken)
                await heard(woken)
                wakeups.wake("work")
    lost = [each for each in caplog.records if "lost their connection" in each.message]
    assert len(lost) <= 1


def connect_arguments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    given: list[tuple[tuple[object, ...], dict[str, object]]] = []

    async def refuse(*args: object, **options: object) -> None:
        given.append((args, options))
        raise OSError("refused")

    monkeypatch.setattr(asyncpg, "connect", refuse)
    return given


@pytest.mark.parametrize(
    ("url", "its"),
    [
        (
            "postgresql://ann:s%40crt@db.example:6432/hooks?sslmode=require&application_name=desk",
            {"host": "db.example", "port": 6432, "user": "ann", "password": "s@crt", "database": "hooks", "ssl": True},
        ),
        ("postgres://ann@/hooks?host=/run/pg&port=5433", {"host": "/run/pg", "port": 5433, "ssl": False}),
        ("postgresql+asyncpg://ann@db.example/hooks?sslmode=disable", {"host": "db.example", "port": 5432}),
    ],
)
async def test_the_whole_url_of_a_store_carries_over(
    url: str, its: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncpg.connect_utils import _parse_connect_dsn_and_args as parse

    given = connect_arguments(monkeypatch)
    store = SqlStore(url)
    store.wakeups.wake("work")
    async with asyncio.timeout(20):
        while not given:
            await asyncio.sleep(0.01)
    await store.wakeups.aclose()

    [dsn] = given[0][0]
    nothing = dict.fromkeys(
        ("host", "port", "user", "password", "passfile", "database", "ssl", "service", "servicefile")
    )
    known = {**nothing, "direct_tls": None, "server_settings": None, "target_session_attrs": None}
    known |= {"krbsrvname": None, "gsslib": None}
    addresses, parsed = parse(dsn=dsn, **known)
    [address] = addresses
    found = {
        "host": re.sub(r"/\.s\.PGSQL\.\d+$", "", address if isinstance(address, str) else address[0]),
        "port": int(address.rpartition(".")[2]) if isinstance(address, str) else address[1],
        "user": parsed.user,
        "password": parsed.password,
        "database": parsed.database,
        "ssl": isinstance(parsed.ssl, ssl.SSLContext),
    }
    assert {name: found[name] for name in its} == its
    if "application_name" in url:
        assert parsed.server_settings == {"application_name": "desk"}
