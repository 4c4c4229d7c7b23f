"""An operation outlives its process: wherever that dies, another one goes on, and nothing happens twice."""

from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline import (
    Agent,
    AgentCall,
    Approve,
    Hooks,
    InMemoryStore,
    ModelResponse,
    Reject,
    ScriptedModel,
    StepCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import (
    HookUsageError,
    OperationBusyError,
    OperationFinishedError,
    OperationMismatchError,
    OperationNotFoundError,
)
from hookline.runtime import OperationResult, recover_agent
from tests.runtime.durable import Disk, DyingStore
from tests.tables import for_each

PAIRS = {
    "beforeStep": ("afterStep",),
    "beforeToolCall": ("afterToolCall", "onToolCallError"),
    "beforeCallAgent": ("afterCallAgent", "onCallAgentError"),
}


class World:
    """What the tools did, in all processes together."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def agent(self) -> Agent:
        """The agent, as each process makes it anew. Its model answers by what it is shown."""

        @tool(in_thread=False)
        async def book(what: str) -> str:
            self.done[what] += 1
            return f"booked {what}"

        @tool(in_thread=False, needs_approval=True)
        async def pay(amount: int) -> str:
            self.done[f"pay {amount}"] += 1
            return f"paid {amount}"

        def child_says(call: object) -> ModelResponse:
            told = [message for message in call.messages if message.role == "tool"]  # type: ignore[attr-defined]
            if not told:
                return ModelResponse(tool_calls=[calling("c1", "book", what="hotel")])
            return ModelResponse(content="hotel done")

        def says(call: object) -> ModelResponse:
            told = [message for message in call.messages if message.role == "tool"]  # type: ignore[attr-defined]
            if not told:
                return ModelResponse(
                    content="first",
                    tool_calls=[
                        calling("t1", "book", what="train"),
                        calling("t2", "book", what="ferry"),
                        ToolRequest(
                            toolset="agent", tool_name="guide", args={"instruction": "a hotel"}, tool_call_id="a1"
                        ),
                    ],
                )
            if len(told) == 3:
                return ModelResponse(tool_calls=[calling("t3", "pay", amount=7), calling("t4", "book", what="seat")])
            return ModelResponse(content="all done")

        guide = Agent(id="guide", model=ScriptedModel(child_says), tools=[book])
        return Agent(id="planner", model=ScriptedModel(says), tools=[book, pay], sub_agents=[guide])


def calling(name: str, tool_name: str, **args: object) -> ToolRequest:
    return ToolRequest(tool_name=tool_name, args=args, tool_call_id=name)


async def live(world: World, disk: Disk, *, dies_at: int | None, written: bool) -> tuple[OperationResult | None, int]:
    """A process that runs the operation to its end, with a person who approves; it may die on the way."""
    store = DyingStore(disk, dies_at=dies_at, written=written)
    try:
        if "op" not in disk.states:
            result = await exec_agent(world.agent(), "Plan", operation_id="op", store=store)
        elif disk.state("op").status == "running":
            result = await recover_agent(world.agent(), "op", store=store)
        else:
            result = await resume_agent(world.agent(), "op", [Approve("t3")], store=store)
        if result.reason == "waiting_for_human":
            result = await resume_agent(world.agent(), "op", [Approve("t3")], store=store)
        return result, store.writes
    except BaseException:
        if not store.dead:
            raise
        return None, store.writes


def check(world: World, disk: Disk, result: OperationResult) -> None:
    assert result.reason == "done"
    assert result.output == "all done"
    assert all(times == 1 for times in world.done.values()), world.done
    for name in disk.states:
        check_events(disk.events_of(name))
    told = {message.tool_call_id: message.content for message in result.messages if message.role == "tool"}
    assert set(told) == {"t1", "t2", "a1", "t3", "t4"}
    for name, what in (("t1", "train"), ("t2", "ferry"), ("t4", "seat")):
        lost = "died" in told[name]
        assert lost or (told[name] == f"booked {what}" and world.done[what] == 1)
    starts = Counter(
        (each["apiName"], each["toolCallId"]) for each in disk.events_of("op") if each["type"] == "beforeToolCall"
    )
    assert set(starts.values()) == {1}
    assert len(starts) == 4


def check_events(events: list[dict[str, object]]) -> None:
    """Each event has its partner, each once, and the segments end."""
    kinds = [str(event["type"]) for event in events]
    for first, partners in PAIRS.items():
        assert kinds.count(first) == sum(kinds.count(partner) for partner in partners), (first, kinds)
    open_step: object = None
    for event in events:
        if event["type"] == "beforeStep":
            assert open_step is None
            open_step = event["stepIndex"]
        elif event["type"] == "afterStep":
            assert event["stepIndex"] == open_step
            open_step = None
    steps = [event["stepIndex"] for event in events if event["type"] == "beforeStep"]
    assert steps == list(range(len(steps)))
    assert kinds[-1] == "onComplete"


@pytest.mark.anyio
async def test_a_run_that_nobody_kills_writes_every_event_once() -> None:
    world, disk = World(), Disk()
    result, writes = await live(world, disk, dies_at=None, written=False)
    assert result is not None
    check(world, disk, result)
    assert [event["reason"] for event in disk.events_of("op") if event["type"] == "onComplete"] == [
        "waiting_for_human",
        "done",
    ]
    assert writes > 10


@pytest.mark.anyio
@pytest.mark.parametrize("written", [False, True])
async def test_wherever_a_process_dies_the_next_goes_on_and_nothing_happens_twice(written: bool) -> None:
    _, writes = await live(World(), Disk(), dies_at=None, written=False)
    for dies_at in range(1, writes + 1):
        world, disk = World(), Disk()
        result, _ = await live(world, disk, dies_at=dies_at, written=written)
        for _ in range(5):
            if result is not None:
                break
            if "op" in disk.states and disk.state("op").status == "done":
                result = None
                break
            result, _ = await live(world, disk, dies_at=None, written=False)
        if result is None:  # it died after its last write
            assert disk.state("op").status == "done"
            check_events(disk.events_of("op"))
        else:
            check(world, disk, result)


@pytest.mark.anyio
async def test_processes_that_die_again_and_again_bring_the_operation_to_its_end() -> None:
    for each in range(5, 10):
        world, disk = World(), Disk()
        result: OperationResult | None = None
        lives = 0
        while result is None and not ("op" in disk.states and disk.state("op").status == "done"):
            result, _ = await live(world, disk, dies_at=each, written=True)
            lives += 1
            assert lives < 60
        assert all(times == 1 for times in world.done.values()), world.done
        check_events(disk.events_of("op"))


@pytest.mark.anyio
async def test_only_an_operation_whose_process_has_died_is_recovered() -> None:
    disk = Disk()
    store = DyingStore(disk)
    paused = Agent(
        id="planner",
        model=ScriptedModel([ModelResponse(tool_calls=[calling("p1", "pay", amount=7)])]),
        tools=World().agent().tools,
    )
    await exec_agent(paused, "Pay", operation_id="waits", store=store)
    with pytest.raises(OperationNotFoundError):
        await recover_agent(paused, "unknown", store=store)
    with pytest.raises(OperationFinishedError, match="resume_agent"):
        await recover_agent(paused, "waits", store=store)
    with pytest.raises(HookUsageError, match="durable store"):
        await recover_agent(paused, "waits", store=InMemoryStore())  # type: ignore[arg-type]
    await resume_agent(paused, "waits", [Reject("p1")], store=store)
    with pytest.raises(OperationFinishedError):
        await recover_agent(paused, "waits", store=store)
    # One that another process is running.
    disk.states["waits"] = disk.states["waits"].replace(b'"status":"interrupted"', b'"status":"running"')
    disk.owners["waits"] = DyingStore(disk)
    with pytest.raises(OperationBusyError):
        await recover_agent(paused, "waits", store=store)
    disk.owners["waits"] = None
    with pytest.raises(OperationMismatchError):
        await recover_agent(Agent(id="other", model=paused.model), "waits", store=store)


@pytest.mark.anyio
async def test_two_processes_that_recover_at_once_have_one_winner() -> None:
    for _ in range(20):
        world, disk = World(), Disk()
        await live(world, disk, dies_at=6, written=True)
        store, other = DyingStore(disk), DyingStore(disk)
        won: list[str] = []

        async def take(view: DyingStore, name: str) -> None:
            try:
                result = await recover_agent(world.agent(), "op", store=view)  # noqa: B023
                won.append(f"{name} {result.reason}")  # noqa: B023
            except OperationBusyError:
                pass

        await take(store, "first")
        with pytest.raises(OperationFinishedError):  # it has gone on, and waits for a person
            await recover_agent(world.agent(), "op", store=other)
        assert won == ["first waiting_for_human"]


@pytest.mark.anyio
@for_each("dies_at", [1, 2, 4])
async def test_a_recovery_that_is_cancelled_while_it_takes_the_operation_leaves_it_to_the_next(dies_at: int) -> None:
    class Hanging(DyingStore):
        async def commit(self, *args: Any, **given: Any) -> None:
            await super().commit(*args, **given)
            if self.writes == 1:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

    world, disk = World(), Disk()
    await live(world, disk, dies_at=dies_at, written=True)

    with anyio.CancelScope() as scope:
        await recover_agent(world.agent(), "op", store=Hanging(disk))

    result, _ = await live(world, disk, dies_at=None, written=False)
    assert result is not None
    check(world, disk, result)


@pytest.mark.anyio
async def test_hooks_of_the_run_and_its_steps_do_not_hear_their_beginning_twice() -> None:
    heard: list[str] = []
    hooks = Hooks("steering")
    hooks.before(AgentCall, id="agent")(lambda call: heard.append("agent in"))
    hooks.after(AgentCall, id="agent out")(lambda call, result: heard.append("agent out"))
    hooks.before(StepCall, id="step")(lambda call: heard.append(f"step {call.step_index} in"))
    hooks.after(StepCall, id="step out")(lambda call, result: heard.append(f"step {call.step_index} out"))
    world, disk = World(), Disk()
    store = DyingStore(disk, dies_at=4, written=True)
    with pytest.raises(BaseException):  # noqa: B017
        await exec_agent(world.agent(), "Plan", hooks=[hooks], operation_id="op", store=store)
    assert store.dead
    assert heard == ["agent in", "step 0 in"]
    result = await recover_agent(world.agent(), "op", hooks=[hooks], store=DyingStore(disk))
    assert result.reason == "waiting_for_human"
    assert heard == ["agent in", "step 0 in", "step 0 out", "step 1 in", "step 1 out"]
