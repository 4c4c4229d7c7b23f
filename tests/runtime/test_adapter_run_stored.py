"""A run of another framework on a store: taken once, ended there as it ended here, its store shared with sub-agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import anyio.lowlevel
import msgspec
import pytest

from hookline import (
    AfterStep,
    Agent,
    Ask,
    Hook,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    Message,
    ModelCall,
    ModelResponse,
    OnComplete,
    OnError,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    resume_agent,
)
from hookline.delivery import Envelope, InProcess
from hookline.errors import (
    CriticalDeliveryError,
    OperationBusyError,
    OperationExistsError,
    OperationMismatchError,
    StoreUnavailableError,
    ToolResultError,
)
from hookline.events import HookType
from hookline.runtime import (
    KINDS,
    AdapterRun,
    Approve,
    Capabilities,
    JournalEntry,
    OperationState,
    OperationStore,
    recover_agent,
)
from hookline.runtime._run import live

from .durable import Died, Disk, DyingStore

pytestmark = pytest.mark.anyio

DRIVES = Capabilities(
    framework="a loop", events=frozenset(HookType), calls={ToolCall: KINDS, ModelCall: KINDS}, asks=True
)
PAY = ToolRequest(tool_name="pay", args={"amount": 5}, tool_call_id="p1")


class WaitingStore(DyingStore):
    """A store whose writes take a moment, in which they can be cancelled, and which can be away."""

    away = False

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        await anyio.lowlevel.checkpoint()
        if self.away:
            raise StoreUnavailableError("disk", "it is away")
        await super().commit(state, expected_version=expected_version, entries=entries)


def run_of(store: OperationStore, *hooks: Hooks | Hook, **given: object) -> AdapterRun:
    return AdapterRun(hooks, DRIVES, operation_id="op", store=store, **given)  # type: ignore[arg-type]


async def step(run: AdapterRun, said: str = "done") -> None:
    async def ask(call: ModelCall) -> ModelResponse:
        return ModelResponse(content=said)

    run.begin_step()
    await run.ask_model([Message(role="assistant", content=said)], ask)


async def pay(args: Mapping[str, object]) -> ToolResult:
    return ToolResult(content=f"paid {args['amount']}")


ASKS = Hooks("asks")
ASKS.guard(ToolCall)(lambda call: Ask("Sure?"))


async def paused(store: OperationStore) -> None:
    async with run_of(store, ASKS) as run:
        run.begin_step()
        assert (await run.call_tool(PAY, pay)).asked
        run.pause()


class InAnotherProcess:
    """What runs here is not known to be live."""

    def __enter__(self) -> None:
        self.hidden = dict(live)
        live.clear()

    def __exit__(self, *_: object) -> None:
        live.update(self.hidden)


def told(disk: Disk) -> list[object]:
    return [event["type"] for event in disk.events_of("op")]


async def test_the_id_of_one_that_has_ended_stays_taken() -> None:
    store = DyingStore(Disk())
    async with run_of(store) as run:
        await step(run)
    with pytest.raises(OperationExistsError):
        await run_of(store).open()
    assert not live


async def test_one_that_runs_in_another_process_is_busy() -> None:
    disk = Disk()
    async with run_of(DyingStore(disk)):
        with InAnotherProcess(), pytest.raises(OperationBusyError):
            await run_of(DyingStore(disk)).open()


async def test_of_two_that_go_on_with_one_at_once_one_does() -> None:
    disk = Disk()
    await paused(DyingStore(disk))
    quick = DyingStore(disk)

    class Late(DyingStore):
        async def load(self, operation_id: str) -> OperationState | None:
            state = await super().load(operation_id)
            if state is not None and state.status == "waiting_for_human":
                claimed = msgspec.structs.replace(state, status="running", version=state.version + 1)
                await quick.commit(claimed, expected_version=state.version, entries=())
            return state

    with pytest.raises(OperationBusyError):
        await run_of(Late(disk), ASKS).open()
    assert disk.owners["op"] is quick
    assert not live


@pytest.mark.parametrize("durable", [True, False])
async def test_going_on_takes_it_before_anything_runs(durable: bool) -> None:
    store: OperationStore = DyingStore(Disk()) if durable else InMemoryStore()
    await paused(store)
    async with run_of(store, ASKS) as run:
        state = await store.load("op")
        assert state is not None
        assert state.status == "running"
        run.begin_step()
        run.decided([Approve("p1")])
        assert (await run.call_tool(PAY, pay, approved=True)).result.content == "paid 5"


async def test_nothing_waits_in_one_that_has_ended() -> None:
    disk = Disk()
    await paused(DyingStore(disk))
    async with run_of(DyingStore(disk), ASKS) as run:
        run.begin_step()
        run.decided([Approve("p1")])
        await run.call_tool(PAY, pay, approved=True)
    state = disk.state("op")
    assert (state.status, state.pending, state.open_calls, state.waiting_since_unix_nano) == ("done", [], [], None)


async def test_one_whose_scope_is_cancelled_is_interrupted_in_the_store_too() -> None:
    disk = Disk()
    with anyio.CancelScope() as scope:
        async with run_of(WaitingStore(disk)) as run:
            run.begin_step()
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert disk.state("op").status == "interrupted"
    assert told(disk) == ["beforeStep", "afterStep", "onComplete"]


async def test_one_that_is_cancelled_as_it_goes_on_goes_on_waiting() -> None:
    disk = Disk()
    await paused(DyingStore(disk))

    class Cancelled(DyingStore):
        async def commit(
            self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
        ) -> None:
            await super().commit(state, expected_version=expected_version, entries=entries)
            scope.cancel()
            await anyio.lowlevel.checkpoint()

    with anyio.CancelScope() as scope:
        await run_of(Cancelled(disk), ASKS).open()
    assert disk.state("op").status == "waiting_for_human"
    assert disk.state("op").pending
    assert not live


async def test_a_new_one_that_is_cancelled_as_it_begins_is_over() -> None:
    disk, ends = Disk(), []
    watch = Hooks("watch")
    watch.on(OnComplete)(lambda event: ends.append(event.reason))

    class Cancelled(DyingStore):
        async def commit(
            self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
        ) -> None:
            await super().commit(state, expected_version=expected_version, entries=entries)
            scope.cancel()
            with anyio.CancelScope(shield=state.status != "running"):
                await anyio.lowlevel.checkpoint()

    with anyio.CancelScope() as scope:
        await run_of(Cancelled(disk), watch).open()
    assert disk.state("op").status == "interrupted"
    assert (told(disk), ends) == (["onComplete"], ["interrupted"])


async def test_an_end_that_cannot_be_stored_is_told_as_an_error_and_let_go_of() -> None:
    disk, ends = Disk(), []
    store = WaitingStore(disk)
    watch = Hooks("watch")
    watch.on(OnComplete)(lambda event: ends.append((event.reason, event.error_type)))
    watch.on(OnError)(lambda event: ends.append(("onError", event.error_type)))
    with pytest.raises(StoreUnavailableError):
        async with run_of(store, watch) as run:
            await step(run)
            store.away = True
    assert ends == [("error", "StoreUnavailableError"), ("onError", "StoreUnavailableError")]
    assert (disk.state("op").status, disk.owners["op"]) == ("running", None)
    assert not live


async def test_one_that_has_lost_its_store_takes_no_further_step_whatever_the_framework_makes_of_it() -> None:
    store, paid = WaitingStore(Disk()), list[object]()

    async def work(args: Mapping[str, object]) -> ToolResult:
        paid.append(args)
        return await pay(args)

    with pytest.raises(StoreUnavailableError):
        async with run_of(store) as run:
            run.begin_step()
            store.away = True
            with pytest.raises(StoreUnavailableError):
                await run.call_tool(PAY, work)
            store.away = False
            await step(run)
    assert not paid


async def test_text_that_no_store_takes_is_escaped_as_in_our_own() -> None:
    disk = Disk()
    async with run_of(DyingStore(disk)) as run:
        await step(run, "half \ud83d")
    assert (disk.state("op").status, disk.state("op").last_content) == ("done", "half \\ud83d")


async def test_a_sub_agent_is_kept_where_its_caller_is() -> None:
    disk = Disk()
    async with (
        run_of(DyingStore(disk)) as run,
        AdapterRun([], DRIVES, agent_id="child", operation_id="child", parent=run) as child,
    ):
        await step(child)
    assert (disk.state("child").status, disk.state("child").parent_operation_id) == ("done", "op")


async def test_a_delivery_that_it_is_for_fails_it() -> None:
    async def fail(envelope: Envelope) -> None:
        raise ConnectionError("down")

    ends: list[object] = []
    watch = Hooks("watch")
    watch.on(OnError)(lambda event: ends.append(event.error_type))
    hook = Hook(id="bridge", type=AfterStep, webhook={"url": "local://bridge", "fallback": "none"})
    delivery = InProcess(tries=1)
    async with delivery.serve("bridge", fail), HookDispatcher(delivery=delivery) as dispatcher:
        with pytest.raises(CriticalDeliveryError):
            async with run_of(InMemoryStore(), watch, hook, dispatcher=dispatcher) as run:
                await step(run)
    assert ends == ["CriticalDeliveryError"]
    assert not live


async def test_a_delivery_that_fails_as_the_framework_is_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(envelope: Envelope) -> None:
        raise ConnectionError("down")

    hook = Hook(id="bridge", type=AfterStep, webhook={"url": "local://bridge", "fallback": "none"})
    delivery = InProcess(tries=1)
    async with delivery.serve("bridge", fail), HookDispatcher(delivery=delivery) as dispatcher:
        with anyio.CancelScope() as scope:
            async with run_of(InMemoryStore(), hook, dispatcher=dispatcher) as run:
                await step(run)
                scope.cancel()
                await anyio.lowlevel.checkpoint()

    assert any("ended with interrupted, but Hook 'bridge' could not be delivered" in line for line in caplog.messages)


async def test_only_its_own_framework_goes_on_with_one_that_waits() -> None:
    disk = Disk()
    await paused(DyingStore(disk))
    other = Capabilities(framework="another loop", events=frozenset(HookType), calls={ToolCall: KINDS})

    with pytest.raises(OperationMismatchError, match="a loop"):
        await AdapterRun((), other, operation_id="op", store=DyingStore(disk)).open()
    with pytest.raises(OperationMismatchError, match="agent of a loop"):
        await resume_agent(Agent(id="agent", model=ScriptedModel([])), "op", [Approve("p1")], store=DyingStore(disk))
    async with run_of(DyingStore(disk), ASKS) as run:
        run.decided([Approve("p1")])


async def test_our_own_runtime_does_not_recover_one_but_can_end_it() -> None:
    disk, agent = Disk(), Agent(id="agent", model=ScriptedModel([]))
    gone = DyingStore(disk)
    run = await run_of(gone).open()
    run.begin_step()
    gone.dead = True
    with InAnotherProcess():
        with pytest.raises(OperationMismatchError):
            await recover_agent(agent, "op", store=DyingStore(disk))
        result = await recover_agent(agent, "op", store=DyingStore(disk), abandon=True)
    assert result.reason == "interrupted"
    assert told(disk)[-1] == "onComplete"
    with pytest.raises(Died):
        await run.close()


async def test_what_a_tool_gives_is_what_its_result_can_be_made_of() -> None:
    async def gives_a_number(args: Mapping[str, object]) -> object:
        return 42

    async def gives_an_object(args: Mapping[str, object]) -> object:
        return object()

    async with run_of(InMemoryStore()) as run:
        run.begin_step()
        done = await run.call_tool(PAY, gives_a_number)  # type: ignore[arg-type]
        assert done.result.content == "42"
        done = await run.call_tool(PAY, gives_an_object)  # type: ignore[arg-type]
        assert isinstance(done.error, ToolResultError)
