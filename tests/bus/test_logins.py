"""Processes log in to a real NATS server: with passwords, tokens, nkeys, credentials and certificates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline.bus import BusAnswerError, BusUnavailableError, CommittedEvents, NatsBus, NobodyServesError
from hookline.errors import HookUsageError
from tests.nats_servers import NatsServer

from .logins import Authority, OperatorMode, new_nkey

pytestmark = pytest.mark.anyio

Start = Callable[[str], NatsServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with settings."""
    servers: list[NatsServer] = []

    def start_server(settings: str) -> NatsServer:
        servers.append(NatsServer(tmp_path / f"nats-{len(servers)}", settings))
        servers[-1].start()
        return servers[-1]

    yield start_server
    for server in servers:
        server.kill()


async def echo(question: bytes) -> bytes:
    await asyncio.sleep(0)
    return question


def commit(number: int = 1) -> CommittedEvents:
    return CommittedEvents(operation_id="op", number=number, events=[msgspec.Raw(b"{}")])


async def use_everything(bus: NatsBus) -> None:
    """Ask, tell, hear, and keep a value over a bus."""
    heard = asyncio.Event()

    async def hear(each: CommittedEvents) -> None:
        heard.set()

    async with bus, bus.answer("guard", echo), bus.hear("observer", hear):
        assert await bus.ask("guard", b"?", deadline=60) == b"?"
        await bus.tell(commit())
        await heard.wait()
        await bus.put("a.x", b"1")
        assert await bus.get("a.x") == b"1"


async def error_of(bus: NatsBus) -> BusUnavailableError:
    """Return the error of a bus that cannot be opened."""
    with pytest.raises(BusUnavailableError) as caught:
        async with asyncio.timeout(60), bus:
            pass
    return caught.value


@asynccontextmanager
async def both(one: NatsBus, other: NatsBus) -> AsyncIterator[tuple[NatsBus, NatsBus]]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(one), await stack.enter_async_context(other)


async def test_a_token(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = start('authorization { token: "t0ken-1234" }')

    await use_everything(NatsBus(server.url.replace("//", "//t0ken-1234@"), partitions=1))
    wrong = NatsBus(server.url.replace("//", "//wr0ng-1234@"), wait=3600)
    error = await error_of(wrong)

    assert "uthorization" in str(error)
    assert "1234" not in f"{error}{wrong!r}{caplog.text}"


async def test_a_user_and_a_password(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = start('authorization { users: [ { user: ann, password: "p4ss-1234" } ] }')

    await use_everything(NatsBus(server.url.replace("//", "//ann:p4ss-1234@"), partitions=1))
    errors = [
        await error_of(NatsBus(server.url.replace("//", f"//{login}"), wait=3600))
        for login in ("ann:wr0ng-1234@", "bob:p4ss-1234@", "")
    ]

    assert all("uthorization" in str(error) for error in errors)
    assert "1234" not in f"{errors}{caplog.text}"


async def test_a_password_is_not_logged_when_the_server_goes_away(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = start('authorization { users: [ { user: ann, password: "p4ss-1234" } ] }')
    back = asyncio.Event()
    async with (
        NatsBus(server.url.replace("//", "//ann:p4ss-1234@"), net=(3600, 3600), poll_seconds=3600) as bus,
        bus.woken("work", back.set),
    ):
        server.kill()
        with pytest.raises(TimeoutError) as caught:
            await bus.ask("guard", b"?", deadline=0.1)
        server.start()
        async with asyncio.timeout(60):
            await back.wait()

    assert "1234" not in f"{caught.value}{caplog.text}"


async def test_an_nkey(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    known, other = new_nkey(), new_nkey()
    server = start(f"authorization {{ users: [ {{ nkey: {known.public_key.decode()} }} ] }}")
    for name, pair in (("known", known), ("other", other)):
        (tmp_path / name).write_bytes(bytes(pair.seed))

    await use_everything(NatsBus(server.url, nkey_seed=tmp_path / "known", partitions=1))
    error = await error_of(NatsBus(server.url, nkey_seed=tmp_path / "other", wait=3600))

    assert "uthorization" in str(error)
    assert bytes(other.seed).decode() not in f"{error}{caplog.text}"


async def test_credentials_of_accounts_of_an_operator(start: Start, tmp_path: Path) -> None:
    operator = OperatorMode()
    server = start(operator.settings)
    one, other = (operator.write_credentials(tmp_path / f"{name}.creds", name) for name in ("ONE", "TWO"))
    stranger = OperatorMode().write_credentials(tmp_path / "stranger.creds", "ONE")

    await use_everything(NatsBus(server.url, credentials=one, partitions=1))
    async with (
        both(NatsBus(server.url, credentials=one), NatsBus(server.url, credentials=other)) as (first, second),
        first.answer("guard", echo),
    ):
        with pytest.raises(NobodyServesError):
            await second.ask("guard", b"?", deadline=60)
        assert await second.get("a.x") is None
    error = await error_of(NatsBus(server.url, credentials=stranger, wait=3600))

    assert "uthorization" in str(error)


@pytest.mark.parametrize("name", ["credentials", "nkey_seed"])
@pytest.mark.parametrize(("text", "problem"), [(None, "cannot be read"), ("SUAsecret", "holds no valid seed")])
async def test_a_file_that_holds_no_login_is_refused(tmp_path: Path, name: str, text: str | None, problem: str) -> None:
    file = tmp_path / "login"
    if text is not None:
        file.write_text(text)
    login: dict[str, Any] = {name: file}

    with pytest.raises(HookUsageError, match=f"`{name}` {problem}") as caught:
        async with NatsBus("nats://127.0.0.1:1", wait=3600, **login):
            pass

    assert "secret" not in str(caught.value)


async def test_tls(start: Start, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "known"), Authority(tmp_path / "stranger")
    certificate, key = authority.issue("server")
    server = start(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}')
    address = server.url.replace("nats://", "tls://")

    await use_everything(NatsBus(address, tls=authority.context(), partitions=1))
    errors = [
        await error_of(NatsBus(address, wait=3600)),
        await error_of(NatsBus(address, tls=stranger.context(), wait=3600)),
    ]

    assert all("certificate" in str(error).lower() for error in errors)


async def test_a_server_that_wants_certificates_of_clients(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "known")
    certificate, key = authority.issue("server")
    server = start(
        f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.file}", verify: true }}'
    )
    address = server.url.replace("nats://", "tls://")

    await use_everything(NatsBus(address, tls=authority.context(*authority.issue("client")), partitions=1))
    await error_of(NatsBus(address, tls=authority.context()))


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_a_login_is_not_sent_to_a_server_without_tls(start: Start, tmp_path: Path, scheme: str) -> None:
    server = start('authorization { users: [ { user: ann, password: "p4ss-1234" } ] }')
    address = f"{scheme}://ann:p4ss-1234@127.0.0.1:{server.port}"

    error = await error_of(NatsBus(address, tls=Authority(tmp_path / "known").context(), wait=3600))

    assert "no TLS" in str(error)


PERMISSIONS = """
authorization { users: [
    { user: all, password: all }
    { user: asker, password: asker, permissions: {
        publish: ["mine.ask.*", "mine.ask-all.*"], subscribe: ["_INBOX.mine.>", "mine.wake"] } }
    { user: member, password: member, permissions: {
        publish: ["_INBOX.mine.>"], subscribe: ["_INBOX.mine.>", "mine.wake", "mine.ask.*", "mine.ask-all.*"] } }
] }
"""


async def test_permissions_keep_tenants_of_one_account_apart(start: Start) -> None:
    server = start(PERMISSIONS)

    def bus(user: str, prefix: str) -> NatsBus:
        return NatsBus(server.url.replace("//", f"//{user}:{user}@"), prefix=prefix)

    async with both(bus("asker", "mine"), bus("member", "mine")) as (asker, member), member.answer("guard", echo):
        assert await asker.ask("guard", b"?", deadline=60) == b"?"
    error = await error_of(bus("asker", "other"))

    assert "ermissions violation" in str(error)


COMMITS = """
authorization { users: [
    { user: teller, password: teller, permissions: {
        publish: ["mine.events.*", "$JS.API.>"], subscribe: ["_INBOX.>", "mine.wake"] } }
    { user: hearer, password: hearer, permissions: {
        publish: ["$JS.API.>", "$JS.ACK.>"], subscribe: ["_INBOX.>", "mine.wake"] } }
    { user: keeper, password: keeper, permissions: {
        publish: ["$KV.mine-values.>", "$JS.API.>", "$JS.FC.>"], subscribe: ["_INBOX.>", "mine.wake"] } }
] }
"""


async def test_the_documented_permissions_are_enough_for_commits_and_values(start: Start) -> None:
    server, heard, seen = start(COMMITS), asyncio.Event(), dict[str, bytes | None]()

    def bus(user: str) -> NatsBus:
        return NatsBus(server.url.replace("//", f"//{user}:{user}@"), prefix="mine", partitions=1)

    async def hear(each: CommittedEvents) -> None:
        heard.set()

    async with both(bus("teller"), bus("hearer")) as (teller, hearer), hearer.hear("observer", hear):
        await teller.tell(commit())
        await heard.wait()
    async with bus("keeper") as keeper, keeper.watch("a", seen.__setitem__):
        await keeper.put("a.x", b"1", seconds=60)
        assert await keeper.get("a.x") == b"1"
        await keeper.delete("a.x")
        async with asyncio.timeout(60):
            while seen.get("a.x", b"") is not None:
                await asyncio.sleep(0.01)


async def test_what_the_server_forbids_is_said_at_once(start: Start) -> None:
    server = start(PERMISSIONS)

    def bus(user: str) -> NatsBus:
        return NatsBus(server.url.replace("//", f"//{user}:{user}@"), prefix="mine")

    async with asyncio.timeout(100), both(bus("asker"), bus("member")) as (asker, member):
        with pytest.raises(BusAnswerError, match="the server refused it: permissions violation for publish"):
            await member.ask("guard", b"?", deadline=3600)
        with pytest.raises(BusUnavailableError, match="permissions violation for subscription"):
            async with asker.answer("guard", echo):
                pass
        for forbidden in (asker.tell(commit()), asker.put("a", b"1"), asker.get("a")):
            with pytest.raises(BusUnavailableError, match="permissions violation for publish"):
                await forbidden
        for context in (asker.hear("observer", lambda each: asyncio.sleep(0)), asker.watch("a", lambda *_: None)):
            with pytest.raises(BusUnavailableError, match="permissions violation for publish"):
                async with context:
                    pass
