"""A bus over a real NATS server: it comes late, goes away, refuses, and keeps accounts apart."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js.kv import KeyValue

from hookline import Hooks, ToolCall
from hookline.bus import BusAnswerError, BusUnavailableError, CommittedEvents, NatsBus, NobodyServesError, _nats, remote
from hookline.errors import HookUsageError
from tests.nats_servers import NatsServer
from tests.registry.scenes import pay
from tests.tables import for_each

pytestmark = pytest.mark.anyio

ACCOUNTS = """
max_payload: 65536
accounts {
    ONE { jetstream: enabled, users: [ { user: one, password: "s3cret-1" } ] }
    TWO { jetstream: enabled, users: [ { user: two, password: "s3cret-2" } ] }
    NOTHING { users: [ { user: three, password: "s3cret-3" } ] }
}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of this test alone, which is not started yet."""
    server = NatsServer(tmp_path / "nats")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with accounts, of which one has no JetStream, and with small messages."""
    server = NatsServer(tmp_path_factory.mktemp("accounts"), ACCOUNTS)
    server.start()
    yield server
    server.kill()


def url(server: NatsServer, login: str) -> str:
    return f"nats://{login}@127.0.0.1:{server.port}"


def commit(number: int, text: str = "{}") -> CommittedEvents:
    return CommittedEvents(operation_id="op", number=number, events=[msgspec.Raw(text.encode())])


async def echo(question: bytes) -> bytes:
    await asyncio.sleep(0)
    return question


async def test_a_server_that_is_away_is_a_clear_error(server: NatsServer) -> None:
    with pytest.raises(BusUnavailableError, match=f"127.0.0.1:{server.port} cannot be reached"):
        async with NatsBus(server.url.replace("nats://", "nats://me:s3cret@")):
            pass


async def test_a_password_is_in_no_error(server: NatsServer) -> None:
    bus = NatsBus(server.url.replace("nats://", "nats://me:s3cret@"))
    with pytest.raises(BusUnavailableError) as caught:
        await bus.__aenter__()

    assert "s3cret" not in f"{caught.value}{bus!r}"


async def test_a_server_that_comes_later_is_waited_for(server: NatsServer) -> None:
    async def use() -> bytes:
        async with NatsBus(server.url, wait=60) as bus, bus.answer("guard", echo):
            return await bus.ask("guard", b"?", deadline=60)

    using = asyncio.create_task(use())
    await asyncio.sleep(0)
    server.start()

    assert await using == b"?"


async def test_what_is_said_while_the_server_is_away_arrives_when_it_is_back(server: NatsServer) -> None:
    server.start()
    heard: list[str] = []
    done = asyncio.Event()

    async def hear(each: CommittedEvents) -> None:
        heard.append(each.id)
        if each.number == 3:
            done.set()

    async with (
        NatsBus(server.url, partitions=1, ack_seconds=1.0) as asker,
        NatsBus(server.url, partitions=1, ack_seconds=1.0) as member,
        member.answer("guard", echo),
        member.hear("observer", hear),
    ):
        await asker.tell(commit(1))
        server.kill()
        question = asyncio.create_task(asker.ask("guard", b"?", deadline=100))
        await asyncio.sleep(0)
        server.start()
        assert await question == b"?"
        for number in (2, 3):
            await asker.tell(commit(number))
        await done.wait()

    assert list(dict.fromkeys(heard)) == ["op:1", "op:2", "op:3"]


async def test_a_process_hears_again_when_the_server_comes_back_without_its_files(server: NatsServer) -> None:
    server.start()
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(each: CommittedEvents) -> None:
        heard.put_nowait(each.id)

    async with (
        NatsBus(server.url, partitions=2) as teller,
        NatsBus(server.url, partitions=2) as hearer,
        hearer.hear("observer", hear),
    ):
        await teller.tell(commit(1))
        async with asyncio.timeout(100):
            assert await heard.get() == "op:1"
        server.kill()
        server.lose_files()
        server.start()
        await teller.tell(commit(2))
        async with asyncio.timeout(100):
            assert await heard.get() == "op:2"


async def test_a_process_hears_again_when_somebody_removed_what_it_hears_from(
    nats_server: NatsServer, nats_prefix: str
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(each: CommittedEvents) -> None:
        heard.put_nowait(each.id)

    async with NatsBus(nats_server.url, prefix=nats_prefix, partitions=1) as bus, bus.hear("observer", hear):
        await bus._client.jetstream().delete_consumer(f"{nats_prefix}-events", "observer-0")
        await bus.tell(commit(1))
        async with asyncio.timeout(100):
            assert await heard.get() == "op:1"


async def test_a_question_ends_at_its_deadline_while_the_server_is_away(server: NatsServer) -> None:
    server.start()
    async with NatsBus(server.url) as bus, bus.answer("guard", echo):
        server.kill()
        async with asyncio.timeout(60):
            while bus.is_connected:
                await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError, match="is away"):
            await bus.ask("guard", b"?", deadline=0.1)


async def test_listeners_are_called_when_the_server_is_back(server: NatsServer) -> None:
    server.start()
    woken = asyncio.Event()
    async with NatsBus(server.url, net=(3600, 3600), poll_seconds=3600) as bus, bus.woken("work", woken.set):
        server.kill()
        server.start()
        async with asyncio.timeout(60):
            await woken.wait()


async def test_a_wake_up_that_is_about_to_be_sent_is_sent_when_the_bus_closes(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.bus._nats.WAKE_SECONDS", 0)
    server.start()
    woken, problems = asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    async with NatsBus(server.url, net=(3600, 3600), poll_seconds=3600) as other, other.woken("work", woken.set):
        async with NatsBus(server.url) as bus:
            woken.clear()  # of the connection
            bus.wake("work")
            for _ in range(2):  # until the task that sends is made, and has not begun
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await woken.wait()
    gc.collect()
    assert problems == []


class Seen:
    """What a watcher was told, until the key `a.done` has a value."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, bytes | None]] = []
        self.done = asyncio.Event()

    def note(self, key: str, value: bytes | None) -> None:
        self.changes.append((key, value))
        if key == "a.done":
            self.done.set()


async def test_a_value_is_not_gone_because_it_comes_after_the_marker_of_all_values(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = KeyValue.watch

    async def watch_with_early_marker(self: KeyValue, keys: str) -> Any:
        """As nats-py does where the server has sent all values, and none has arrived yet."""
        watcher = await watch(self, keys)
        waiting = watcher._updates._queue
        values = [each for each in waiting if each is not None]
        waiting.clear()
        waiting.extend([None, *values])
        watcher._init_done = True
        return watcher

    server.start()
    seen = Seen()

    async with NatsBus(server.url) as one, NatsBus(server.url) as other:
        await one.put("a.kept", b"1")
        async with other.watch("a", seen.note):
            monkeypatch.setattr(KeyValue, "watch", watch_with_early_marker)
            server.kill()
            server.start()
            await one.put("a.done", b"")
            async with asyncio.timeout(60):
                await seen.done.wait()

    assert seen.changes == [("a.kept", b"1"), ("a.done", b"")]


async def test_a_watcher_learns_what_changed_while_the_server_was_away(server: NatsServer) -> None:
    server.start()
    seen = Seen()

    async with NatsBus(server.url) as one, NatsBus(server.url) as other:
        for key in ("a.kept", "a.changed"):
            await one.put(key, b"1")
        await one.put("a.expired", b"1", seconds=1)
        async with other.watch("a", seen.note):
            server.kill()
            server.start()
            await one.put("a.changed", b"2")
            async with asyncio.timeout(60):
                while await one.get("a.expired") is not None:
                    await asyncio.sleep(0.05)
            await one.put("a.done", b"")
            async with asyncio.timeout(60):
                await seen.done.wait()

    assert dict(seen.changes) == {"a.kept": b"1", "a.changed": b"2", "a.expired": None, "a.done": b""}
    assert len(seen.changes) == 6  # nothing is told twice


async def test_values_need_the_server(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.bus._nats.TELLING", 0.2)
    server.start()
    async with NatsBus(server.url) as bus:
        server.kill()
        with pytest.raises(BusUnavailableError):
            await bus.put("a", b"1")
        with pytest.raises(BusUnavailableError):
            await bus.get("a")
        with pytest.raises(BusUnavailableError):
            async with bus.watch("a", lambda key, value: None):
                pass


async def test_where_the_last_process_is_killed_nobody_serves(server: NatsServer) -> None:
    server.start()
    asked = asyncio.Event()

    async def hang(question: bytes) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return question

    async with NatsBus(server.url) as asker, NatsBus(server.url) as member, member.answer("guard", hang):
        question = asyncio.create_task(asker.ask("guard", b"?", deadline=3600))
        await asked.wait()
        member._client.options["allow_reconnect"] = False
        member._client._transport._io_writer.transport.abort()
        async with asyncio.timeout(60):
            with pytest.raises(NobodyServesError):
                await question


async def test_answers_that_come_twice_or_too_late_are_nobodys(nats_server: NatsServer, nats_prefix: str) -> None:
    import nats

    late: list[str] = []

    async def answer_twice(message: nats.aio.msg.Msg) -> None:
        if message.data == b"late":
            late.append(message.reply)
            return
        for reply in (*late, message.reply, message.reply):
            await other.publish(reply, message.data)

    other = await nats.connect(nats_server.url)
    for subject in ("ask", "ask-all"):
        await other.subscribe(f"{nats_prefix}.{subject}.guard", cb=answer_twice)
    await other.flush()
    async with NatsBus(nats_server.url, prefix=nats_prefix) as bus:
        with pytest.raises(TimeoutError):
            await bus.ask("guard", b"late", deadline=0.05)
        answers = [await bus.ask("guard", str(nth).encode(), deadline=60) for nth in range(20)]
    await other.close()

    assert late
    assert answers == [str(nth).encode() for nth in range(20)]


async def test_the_seconds_that_are_left_travel_with_a_question_as_clocks_differ(
    nats_server: NatsServer, nats_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nats

    seconds: list[float] = []

    async def note(message: nats.aio.msg.Msg) -> None:
        seconds.append(float(message.headers["Hookline-Seconds"]))

    other = await nats.connect(nats_server.url)
    for subject in ("ask", "ask-all"):
        await other.subscribe(f"{nats_prefix}.{subject}.guard", cb=note)
    await other.flush()
    async with NatsBus(nats_server.url, prefix=nats_prefix) as bus, bus.answer("guard", echo):
        monkeypatch.setattr("time.time", lambda: 0.0)
        assert await bus.ask("guard", b"?", deadline=60) == b"?"
        await bus.ask("guard", b"?", deadline=30)
        await other.flush()
    await other.close()

    assert 30 < seconds[0] <= 60
    assert 0 < seconds[-1] <= 30


async def test_accounts_do_not_meet(accounts: NatsServer) -> None:
    async with (
        NatsBus(url(accounts, "one:s3cret-1"), partitions=1) as one,
        NatsBus(url(accounts, "two:s3cret-2"), partitions=1) as two,
    ):
        heard: list[int] = []
        done = asyncio.Event()

        async def hear(each: CommittedEvents) -> None:
            heard.append(each.number)
            done.set()

        async with one.answer("guard", echo), two.hear("observer", hear):
            with pytest.raises(NobodyServesError):
                await two.ask("guard", b"?", deadline=30)
            await one.tell(commit(1))
            await two.tell(commit(2))
            await done.wait()

    assert heard == [2]


async def test_the_run_of_a_tenant_with_the_account_of_another_one_is_judged_by_nobody(accounts: NatsServer) -> None:
    hooks = Hooks("guard")
    hooks.guard(ToolCall)(lambda call: None)
    async with (
        NatsBus(url(accounts, "one:s3cret-1")) as one,
        NatsBus(url(accounts, "two:s3cret-2")) as two,
        one.serve(hooks),
    ):
        right = await pay([remote("guard", bus=one, deadline=60.0)])
        wrong = await pay([remote("guard", bus=two, deadline=60.0)])

    assert right.denied is None
    assert wrong.denied is not None
    assert two.questions == {("guard", "nobody"): 1}


async def test_an_answer_that_is_too_large_never_allows_a_call(accounts: NatsServer) -> None:
    hooks = Hooks("guard")
    hooks.before(ToolCall)(lambda call: call.with_args(text="x" * 70_000))
    async with NatsBus(url(accounts, "one:s3cret-1")) as bus, bus.serve(hooks):
        outcome = await pay([remote("guard", bus=bus, deadline=60.0)])

    assert outcome.denied is not None
    assert "the bus carries" in str(outcome.executions[0].error)


async def test_a_wrong_password_is_refused_at_once(accounts: NatsServer) -> None:
    with pytest.raises(BusUnavailableError, match=r"[Aa]uthorization"):
        async with asyncio.timeout(60), NatsBus(url(accounts, "one:wrong"), wait=3600):
            pass


async def test_an_account_without_streams_asks_and_cannot_tell(accounts: NatsServer) -> None:
    async with NatsBus(url(accounts, "three:s3cret-3")) as bus, bus.answer("guard", echo):
        assert await bus.ask("guard", b"?", deadline=60) == b"?"
        with pytest.raises(BusUnavailableError):
            await bus.tell(commit(1))
        with pytest.raises(BusUnavailableError):
            async with bus.hear("observer", lambda each: asyncio.sleep(0)):
                pass


@pytest.mark.parametrize("cancelled_by", ["its own time", "its caller"])
async def test_a_client_that_answers_in_place_of_being_cancelled_holds_nobody(
    accounts: NatsServer, monkeypatch: pytest.MonkeyPatch, cancelled_by: str
) -> None:
    """As `asyncio.wait_for` does on Python 3.11 when the answer and the cancellation come together."""
    asked = asyncio.Event()
    request = Client.request

    async def answer_when_cancelled(client: Client, *args: Any, **kwargs: Any) -> Any:
        if not asked.is_set():
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return await request(client, *args, **kwargs)

    async with NatsBus(url(accounts, "three:s3cret-3")) as bus:
        monkeypatch.setattr(Client, "request", answer_when_cancelled)
        if cancelled_by == "its own time":
            monkeypatch.setattr(_nats, "TELLING", 0.1)
        telling = asyncio.create_task(bus.tell(commit(1)))
        await asked.wait()
        if cancelled_by == "its caller":
            telling.cancel()
        async with asyncio.timeout(60):
            [outcome] = await asyncio.gather(telling, return_exceptions=True)

    assert isinstance(outcome, asyncio.CancelledError if cancelled_by == "its caller" else BusUnavailableError)


async def test_what_is_too_large_is_refused_and_the_connection_stays(accounts: NatsServer) -> None:
    async def grow(question: bytes) -> bytes:
        await asyncio.sleep(0)
        return question * 100

    large = b"x" * 70_000
    async with NatsBus(url(accounts, "one:s3cret-1"), partitions=1) as bus, bus.answer("guard", grow):
        with pytest.raises(BusAnswerError, match="has 70000 bytes"):
            await bus.ask("guard", large, deadline=60)
        with pytest.raises(BusAnswerError, match="the answer has 100000 bytes"):
            await bus.ask("guard", b"x" * 1000, deadline=60)
        with pytest.raises(HookUsageError, match="the bus carries"):
            await bus.tell(commit(1, f'"{large.decode()}"'))
        assert await bus.ask("guard", b"x", deadline=60) == b"x" * 100


async def test_processes_with_another_number_of_partitions_are_refused(
    nats_server: NatsServer, nats_prefix: str
) -> None:
    async with (
        NatsBus(nats_server.url, prefix=nats_prefix, partitions=2) as two,
        NatsBus(nats_server.url, prefix=nats_prefix, partitions=3) as three,
    ):
        await two.tell(commit(1))
        with pytest.raises(HookUsageError, match="has 2 partitions"):
            await three.tell(commit(2))


async def test_what_is_no_message_of_hookline_is_left_out(nats_server: NatsServer, nats_prefix: str) -> None:
    import nats

    other = await nats.connect(nats_server.url)
    heard: list[int] = []
    done = asyncio.Event()

    async def hear(each: CommittedEvents) -> None:
        heard.append(each.number)
        done.set()

    async with NatsBus(nats_server.url, prefix=nats_prefix, partitions=1) as bus, bus.hear("observer", hear):
        await other.publish(f"{nats_prefix}.events.0", b"no commit")
        await other.publish(f"{nats_prefix}.wake", b"\xff")
        await other.flush()
        await bus.tell(commit(1))
        await done.wait()
    await other.close()

    assert heard == [1]


@for_each(
    "fields",
    [
        {"url": "http://localhost"},
        {"url": []},
        {"prefix": "a.b"},
        {"partitions": 0},
        {"partitions": True},
        {"replicas": 9},
        {"wait": -1},
        {"keep_seconds": 0},
    ],
)
async def test_a_wrong_argument_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(HookUsageError):
        NatsBus(**{"url": "nats://localhost", **fields})  # type: ignore[arg-type]


async def test_a_bus_that_is_not_open_says_so() -> None:
    bus = NatsBus("nats://localhost:4222")

    with pytest.raises(HookUsageError, match="is not open"):
        await bus.ask("guard", b"?", deadline=1)
    with pytest.raises(HookUsageError, match="is not open"):
        await bus.tell(commit(1))
    await bus.aclose()


WITHOUT_NATS = """
import sys
sys.modules["nats"] = None
from hookline.bus import MemoryBus, NatsBus
from hookline.errors import MissingExtraError
MemoryBus
try:
    NatsBus("nats://localhost")
except MissingExtraError as error:
    print(error)
"""


def test_without_the_extra_the_error_says_how_to_install_it() -> None:
    command = [sys.executable, "-c", WITHOUT_NATS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)

    assert done.stdout.startswith("NatsBus needs an extra that is not installed: ")
    assert "[nats]" in done.stdout


async def test_the_first_question_after_a_process_serves_is_answered(nats_server: NatsServer, nats_prefix: str) -> None:
    async def echo(question: bytes) -> bytes:
        return question

    async with (
        NatsBus(nats_server.url, prefix=nats_prefix) as asker,
        NatsBus(nats_server.url, prefix=nats_prefix) as member,
    ):

        async def serve_and_ask(nth: int) -> bytes:
            async with member.answer(f"guard-{nth}", echo):
                return await asker.ask(f"guard-{nth}", b"?", deadline=60)

        for _ in range(10):
            assert await asyncio.gather(*(serve_and_ask(nth) for nth in range(40))) == [b"?"] * 40
