"""Observers of other processes hear the stored events of a run through a relay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import (
    AfterToolCall,
    Agent,
    BeforeStep,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    OnComplete,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.bus import (
    BusUnavailableError,
    CommittedEvents,
    CommitTooLargeError,
    EventFilter,
    MemoryBus,
    heard_event_id,
    remote,
    serve,
)
from hookline.engines import StoreEngine
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.events import encode
from hookline.relay import Relay, list_dead_letters, relay_status, replay, retry_dead_letters
from hookline.runtime import Approve, InMemoryStore, JournalEntry, OperationState, RemoteHearer, make_retry
from hookline.signals import dead_letter_stored
from hookline.store import SqlStore, Worker
from tests.tables import for_each

pytestmark = pytest.mark.anyio

PATIENCE = 60.0
ENDED: dict[str, Any] = {
    "operation_id": "op",
    "reason": "done",
    "steps": 1,
    "llm_calls": 1,
    "tool_calls": 0,
    "total_tokens": 0,
    "cost_usd": 0.0,
    "duration_ms": 1.0,
    "last_assistant_content": "",
}


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def payer(*turns: Any) -> Agent:
    return Agent(
        id="payer", model=ScriptedModel([*(turns or [ToolRequest("pay", {"amount": 70})]), "Paid."]), tools=[pay]
    )


class Heard:
    """Observers that note what they hear, in order."""

    def __init__(self, name: str = "ledger") -> None:
        self.ids: list[str] = []
        self.hooks = Hooks(name)
        self._changed = asyncio.Event()
        for event in (BeforeToolCall, AfterToolCall, OnComplete):
            self.hooks.on(event, id=event.hook_type)(self.note)  # type: ignore[type-var]

    async def note(self, event: Any) -> None:
        self.ids.append(heard_event_id())
        self._changed.set()

    async def wait_for(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not check():
                self._changed.clear()
                await self._changed.wait()


async def wait_until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await check():
            await asyncio.sleep(0.01)


async def numbers_of(store: SqlStore, operation_id: str) -> list[str]:
    """The ids of the stored events that `Heard` hears."""
    heard = {kind.hook_type for kind in (BeforeToolCall, AfterToolCall, OnComplete)}
    return [f"{operation_id}:{each.number}" for each in await store.events_of(operation_id) if each.type in heard]


async def test_a_remote_observer_hears_the_stored_events_of_a_run_in_order(tmp_path: Path) -> None:
    bus, heard = MemoryBus(), Heard()
    async with SqlStore(f"sqlite:///{tmp_path}/db") as store, Relay(store, bus), serve(bus.peer(), heard.hooks):
        result = await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
        wanted = await numbers_of(store, result.operation_id)
        await heard.wait_for(lambda: len(heard.ids) >= len(wanted))

    assert wanted
    assert heard.ids == wanted


async def test_a_run_without_remote_observers_is_not_relayed() -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        await exec_agent(payer(), "pay", store=store)
        assert (await relay_status(store)).waiting == 0


async def test_what_was_stored_before_a_relay_was_started_is_told() -> None:
    bus, heard = MemoryBus(), Heard()
    async with SqlStore("sqlite:///:memory:") as store:
        result = await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
        assert (await relay_status(store)).waiting > 0
        async with Relay(store, bus), serve(bus, heard.hooks):
            wanted = await numbers_of(store, result.operation_id)
            await heard.wait_for(lambda: len(heard.ids) >= len(wanted))

    assert heard.ids == wanted


async def test_only_the_observers_that_a_run_names_hear_it() -> None:
    bus, named, other = MemoryBus(), Heard("ledger"), Heard("audit")
    async with (
        SqlStore("sqlite:///:memory:") as store,
        Relay(store, bus),
        serve(bus, named.hooks),
        serve(bus, other.hooks),
    ):
        first = await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
        second = await exec_agent(payer(), "pay", store=store, hooks=[remote("audit", observes=True)])
        for heard, result in ((named, first), (other, second)):
            wanted = await numbers_of(store, result.operation_id)
            await heard.wait_for(lambda heard=heard, wanted=wanted: len(heard.ids) >= len(wanted))  # type: ignore[misc]
            assert heard.ids == wanted


async def test_who_resumes_a_run_need_not_name_its_observers_again() -> None:
    bus, heard = MemoryBus(), Heard()

    @tool(needs_approval=True)
    async def wire(amount: int) -> str:
        """Wire."""
        return f"wired {amount}"

    agent = Agent(
        id="payer", model=ScriptedModel([ToolRequest("wire", {"amount": 1}, tool_call_id="t1"), "Done."]), tools=[wire]
    )
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        waiting = await exec_agent(agent, "pay", store=store, hooks=[remote("ledger", observes=True)])
        result = await resume_agent(agent, waiting.operation_id, [Approve("t1")], store=store)
        wanted = await numbers_of(store, result.operation_id)
        await heard.wait_for(lambda: len(heard.ids) >= len(wanted))

    assert heard.ids == wanted


async def test_a_sub_agent_is_heard_if_the_observers_are_inherited() -> None:
    bus, heard = MemoryBus(), Heard()
    child = Agent(id="child", model=ScriptedModel([ToolRequest("pay", {"amount": 1}), "ok"]), tools=[pay])
    parent = Agent(
        id="parent", model=ScriptedModel([ToolRequest("agent/child", {"instruction": "go"}), "ok"]), sub_agents=[child]
    )
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        result = await exec_agent(parent, "go", store=store, hooks=[remote("ledger", observes=True, inherit=True)])
        stored = await store.operation(result.operation_id)
        assert stored is not None
        [sub] = await store.sub_agents_of(stored)
        wanted = await numbers_of(store, sub.operation_id)
        await heard.wait_for(lambda: set(wanted) <= set(heard.ids))

    assert wanted
    assert [each for each in heard.ids if each in wanted] == wanted


@for_each("store", [None, InMemoryStore()])
async def test_remote_observers_without_a_durable_store_are_refused(store: Any) -> None:
    with pytest.raises(HookUsageError, match="store=SqlStore"):
        await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])


async def test_a_dispatcher_refuses_remote_observers_of_a_run_that_is_not_stored() -> None:
    async with HookDispatcher() as dispatcher:
        with pytest.raises(HookUsageError, match="'ledger' hear stored events"):
            dispatcher.register("op", [remote("ledger", observes=True)])


async def test_a_name_is_checked_when_it_is_given() -> None:
    with pytest.raises(HookDefinitionError, match="`observes` must be True or False"):
        remote("ledger", observes="yes")  # type: ignore[arg-type]


async def test_one_name_decides_and_observes() -> None:
    bus, heard = MemoryBus(), Heard()
    judged: list[str] = []

    @heard.hooks.before(ToolCall)
    async def judge(call: Any) -> None:
        judged.append(call.tool_name)

    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        hooks = [remote("ledger", observes=True, bus=bus, calls=(ToolCall,))]
        result = await exec_agent(payer(), "pay", store=store, hooks=hooks)
        wanted = await numbers_of(store, result.operation_id)
        await heard.wait_for(lambda: len(heard.ids) >= len(wanted))

    assert judged == ["pay"]
    assert heard.ids == wanted


class FailingBus(MemoryBus):
    """A bus whose server is away, or full, for the first commits that it is told."""

    away = 3

    async def tell(self, commit: CommittedEvents) -> None:
        if self.away:
            self.away -= 1
            raise BusUnavailableError("memory", "maximum bytes exceeded")
        await super().tell(commit)


async def test_commits_wait_while_the_bus_is_away_or_full() -> None:
    bus, heard = FailingBus(), Heard()
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        result = await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
        wanted = await numbers_of(store, result.operation_id)
        await heard.wait_for(lambda: len(heard.ids) >= len(wanted))

    assert bus.away == 0
    assert heard.ids == wanted


async def test_the_status_says_why_commits_wait() -> None:
    bus = FailingBus()
    bus.away = 10_000
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus):
        await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])

        async def says_why() -> bool:
            return "maximum bytes exceeded" in ((await relay_status(store)).problem or "")

        await wait_until(says_why)
        status = await relay_status(store)

    assert status.waiting > 0
    assert (status.owner or "").startswith(store.worker_id)
    assert status.told == 0


class ForgetfulRelay(Relay):
    """A relay that is killed after it has told commits, before it confirms them."""

    async def _confirm(self, told: Any) -> None:
        await asyncio.Event().wait()


async def test_a_relay_that_is_killed_before_it_confirms_is_followed_by_one_that_tells_again(tmp_path: Path) -> None:
    class TellsTwice(MemoryBus):
        def _is_known(self, commit: CommittedEvents) -> bool:
            return False

    bus, told = TellsTwice(), list[str]()
    changed = asyncio.Event()

    async def hear(commit: CommittedEvents) -> None:
        told.append(commit.id)
        changed.set()

    url = f"sqlite:///{tmp_path}/db"
    async with SqlStore(url) as first, SqlStore(url) as second, bus.hear("ledger", hear):
        killed = ForgetfulRelay(first, bus, lease_seconds=0.2)
        await killed.__aenter__()
        await exec_agent(payer(), "pay", store=first, hooks=[remote("ledger", observes=True)])
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        before = list(told)
        assert killed._task is not None
        killed._task.cancel()
        async with Relay(second, bus, lease_seconds=0.2):

            async def all_are_told() -> bool:
                return (await relay_status(second)).waiting == 0

            await wait_until(all_are_told)
            async with asyncio.timeout(PATIENCE):
                while len(told) < len(set(told)) + len(before):
                    changed.clear()
                    await changed.wait()

    again = told[len(before) :]
    assert again[: len(before)] == before
    numbers = [int(each.rpartition(":")[2]) for each in dict.fromkeys(told)]
    assert numbers == sorted(numbers)


async def test_one_relay_of_a_store_tells_and_another_takes_over_when_it_stops(tmp_path: Path) -> None:
    bus, hour = MemoryBus(), 3600.0
    url = f"sqlite:///{tmp_path}/db"
    async with SqlStore(url) as first, SqlStore(url) as second, AsyncExitStack() as stack:
        one = await stack.enter_async_context(Relay(first, bus, lease_seconds=hour))
        await wait_until(leads(one))
        async with Relay(second, bus, lease_seconds=hour) as other:
            await exec_agent(payer(), "pay", store=first, hooks=[remote("ledger", observes=True)])
            assert one.leads
            assert not other.leads
            await stack.aclose()
            await wait_until(leads(other))


def leads(relay: Relay) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return relay.leads

    return check


async def test_a_commit_that_is_too_large_is_told_in_parts_and_a_single_event_becomes_a_dead_letter() -> None:
    class SmallBus(MemoryBus):
        async def tell(self, commit: CommittedEvents) -> None:
            size = len(msgspec.json.encode(commit))
            if size > 2000:
                raise CommitTooLargeError(commit.id, size, 2000)
            await super().tell(commit)

    bus, heard = SmallBus(), Heard()

    @tool
    async def read() -> str:
        """Read."""
        return "x" * 5000

    agent = Agent(id="reader", model=ScriptedModel([ToolRequest("read", {}), "ok"]), tools=[read])
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        result = await exec_agent(agent, "read", store=store, hooks=[remote("ledger", observes=True)])
        wanted = await numbers_of(store, result.operation_id)
        await heard.wait_for(lambda: wanted[-1] in heard.ids)
        dead = await list_dead_letters(store)
        assert {letter.hearer for letter in dead} == {"ledger"}
        lost = {f"{letter.operation_id}:{letter.number}" for letter in dead}
        assert lost
        assert all("carries 2000" in letter.error for letter in dead)
        assert heard.ids == [each for each in wanted if each not in lost]


async def test_an_event_that_is_too_large_is_no_dead_letter_of_a_name_that_does_not_hear_it() -> None:
    class SmallBus(MemoryBus):
        async def tell(self, commit: CommittedEvents) -> None:
            size = len(msgspec.json.encode(commit))
            if size > 2000:
                raise CommitTooLargeError(commit.id, size, 2000)
            await super().tell(commit)

    heard: list[str] = []
    hooks = Hooks("ledger")
    hooks.on(BeforeStep)(lambda event: heard.append(heard_event_id()))
    events = [
        BeforeStep(operation_id="op", step_index=0),
        OnComplete(**{**ENDED, "last_assistant_content": "x" * 5000}),
    ]
    entries = [
        JournalEntry(number=number, type=each.hook_type, time_unix_nano=number, wire=encode(each))
        for number, each in enumerate(events, 1)
    ]
    state = OperationState(
        operation_id="op",
        agent_id="a",
        hearers=[RemoteHearer(name="ledger", events=["beforeStep"])],
        events=2,
        version=1,
    )
    bus = SmallBus()
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, hooks):
        await store.commit(state, expected_version=None, entries=entries)

        async def is_told() -> bool:
            return not (await relay_status(store)).waiting and not (await bus.depths())["ledger"]

        await wait_until(is_told)
        dead = await list_dead_letters(store)

    assert (heard, dead) == (["op:1"], [])


async def test_an_event_that_an_observer_cannot_handle_becomes_a_dead_letter_and_the_next_one_follows() -> None:
    bus, heard = MemoryBus(), Heard()
    broken, signalled, tried = True, list[Any](), 0

    @heard.hooks.on(AfterToolCall, id="booking")
    async def book(event: AfterToolCall) -> None:
        nonlocal tried
        tried += 1
        if broken:
            raise ValueError("no such account")
        heard.ids.append(f"booked {heard_event_id()}")
        heard._changed.set()

    def note(sender: object, failed: Any) -> None:
        signalled.append(failed.hook_id)

    with dead_letter_stored.connected_to(note):
        async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks, tries=2):
            result = await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
            wanted = await numbers_of(store, result.operation_id)
            await heard.wait_for(lambda: len(heard.ids) >= len(wanted))
            [letter] = await list_dead_letters(store, hearer="ledger")
            assert (letter.hook_id, letter.tries, letter.error) == ("booking", 2, "ValueError: no such account")
            assert f"{letter.operation_id}:{letter.number}" in wanted
            assert (tried, signalled) == (2, ["booking"])
            assert (await relay_status(store)).dead_letters == {"ledger": 1}

            broken = False
            assert await retry_dead_letters(store, [letter.id]) == 1
            await heard.wait_for(lambda: f"booked {letter.operation_id}:{letter.number}" in heard.ids)
            assert await list_dead_letters(store) == []


async def test_events_are_replayed_for_one_name_from_a_number() -> None:
    bus, late, other = MemoryBus(), Heard("late"), Heard("ledger")
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, other.hooks):
        result = await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
        wanted = await numbers_of(store, result.operation_id)
        await other.wait_for(lambda: len(other.ids) >= len(wanted))
        async with serve(bus, late.hooks):
            first = int(wanted[1].rpartition(":")[2])
            await replay(store, "late", operation_id=result.operation_id, first=first)
            await late.wait_for(lambda: len(late.ids) >= len(wanted) - 1)
            assert late.ids == wanted[1:]
            await replay(store, "late", since=0.0)
            await late.wait_for(lambda: len(late.ids) >= 2 * len(wanted) - 1)
            assert late.ids[len(wanted) - 1 :] == wanted
        assert other.ids == wanted


async def test_a_replay_of_everything_is_refused_unless_it_is_said() -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        with pytest.raises(HookUsageError, match="`operation_id` or `since`"):
            await replay(store, "ledger")


async def test_an_operation_is_kept_until_it_is_told() -> None:
    bus = MemoryBus()
    async with SqlStore("sqlite:///:memory:") as store:
        await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
        assert await store.prune(-1) == 0
        async with Relay(store, bus):

            async def all_are_told() -> bool:
                return (await relay_status(store)).waiting == 0

            await wait_until(all_are_told)
        assert await store.prune(-1) == 1


async def test_a_process_that_stops_finishes_the_event_that_it_is_handling() -> None:
    bus, hooks, began, may_end = MemoryBus(), Hooks("ledger"), asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    @hooks.on(AfterToolCall)
    async def book(event: AfterToolCall) -> None:
        began.set()
        await may_end.wait()
        ended.append(heard_event_id())

    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus):
        async with serve(bus.peer(), hooks):
            await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
            async with asyncio.timeout(PATIENCE):
                await began.wait()
            asyncio.get_running_loop().call_later(0.05, may_end.set)
        assert len(ended) == 1
        other = Heard("ledger")
        async with serve(bus.peer(), other.hooks):
            await other.wait_for(lambda: len(other.ids) >= 1)

    assert ended[0] not in other.ids


async def test_a_filter_selects_commits() -> None:
    bus, heard = MemoryBus(), list[str]()
    done = asyncio.Event()

    async def hear(commit: CommittedEvents) -> None:
        heard.append(commit.id)
        done.set()

    def event_of(agent_id: str) -> msgspec.Raw:
        return msgspec.Raw(encode(BeforeStep(operation_id="op", agent_id=agent_id, step_index=0)))

    where = EventFilter(types=["beforeStep"], tenant_ids=["acme"], agent_ids=["pay*"])
    async with bus.hear("ledger", hear, where=where):
        for number, (tenant_id, agent_id) in enumerate([("acme", "clerk"), ("other", "payer"), ("acme", "payer")], 1):
            await bus.tell(
                CommittedEvents(operation_id="op", number=number, events=[event_of(agent_id)], tenant_id=tenant_id)
            )
        async with asyncio.timeout(PATIENCE):
            await done.wait()

    assert heard == ["op:3"]
    assert (await bus.depths()) == {"ledger": 0}
    with pytest.raises(HookUsageError, match="no event 'onPay'"):
        EventFilter(types=["onPay"])


async def test_a_commit_that_kills_each_process_that_hears_it_becomes_dead_letters() -> None:
    bus, heard = MemoryBus(), Heard()

    def commit(number: int, delivered: int) -> CommittedEvents:
        event = msgspec.Raw(encode(OnComplete(**ENDED)))
        return CommittedEvents(operation_id="op", number=number, events=[event], delivered=delivered)

    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        await bus.tell(commit(1, delivered=11))
        await bus.tell(commit(2, delivered=10))
        await heard.wait_for(lambda: len(heard.ids) >= 1)
        [letter] = await list_dead_letters(store)

    assert heard.ids == ["op:2"]
    assert (letter.operation_id, letter.number, letter.tries) == ("op", 1, 10)
    assert "no process that heard it has finished" in letter.error


async def test_an_event_that_cannot_be_read_becomes_a_dead_letter() -> None:
    bus, heard = MemoryBus(), Heard()
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        events = [msgspec.Raw(b'{"type":"onFuture"}'), msgspec.Raw(encode(OnComplete(**ENDED)))]
        await bus.tell(CommittedEvents(operation_id="op", number=2, events=events))
        await heard.wait_for(lambda: len(heard.ids) >= 1)
        [letter] = await list_dead_letters(store)

    assert heard.ids == ["op:2"]
    assert letter.number == 1
    assert "Not a hookline event" in letter.error


async def test_an_operation_that_a_worker_runs_is_heard_by_those_whom_its_caller_named() -> None:
    bus, heard = MemoryBus(), Heard()
    agent = payer()
    async with SqlStore("sqlite:///:memory:") as store, Relay(store, bus), serve(bus, heard.hooks):
        engine = StoreEngine(store)
        async with Worker(store, [agent], engine=engine):
            result = await exec_agent(agent, "pay", store=store, engine=engine, hooks=[remote("ledger", observes=True)])
        wanted = await numbers_of(store, result.operation_id)
        await heard.wait_for(lambda: len(heard.ids) >= len(wanted))

    assert wanted
    assert heard.ids == wanted


@pytest.mark.parametrize(("tenant_id", "is_heard"), [("acme", True), ("other", False)])
async def test_observers_of_a_tenant_hear_the_runs_of_that_tenant_only(tenant_id: str, is_heard: bool) -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        hooks = [remote("ledger", observes=True, tenant_id="acme")]
        await exec_agent(payer(), "pay", store=store, tenant_id=tenant_id, hooks=hooks)
        assert ((await relay_status(store)).waiting > 0) is is_heard


async def test_a_retried_operation_is_heard_by_those_who_heard_the_first_one() -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        agent = payer()
        first = await exec_agent(agent, "pay", store=store, hooks=[remote("ledger", observes=True)])
        state = await store.load(first.operation_id)
        assert state is not None
        again = make_retry(agent, state, state.messages[:1], "op_again")

    assert again.hearers == [RemoteHearer(name="ledger")]
