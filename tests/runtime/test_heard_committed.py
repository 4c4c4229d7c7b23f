"""Observers with `heard="committed"` hear what was stored, in its order, and no kill makes them hear two stories."""

from __future__ import annotations

import contextvars
import logging

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    Approve,
    BeforeStep,
    BeforeToolCall,
    Event,
    Hook,
    HookDispatcher,
    Hooks,
    ModelCall,
    ModelResponse,
    OnComplete,
    OnToolCallError,
    ScriptedModel,
    ToolRequest,
    encode,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import HookDefinitionError
from hookline.events import EVENTS
from hookline.hooks import Heard
from hookline.runtime import recover_agent
from tests.runtime.durable import Died, Disk, DyingStore
from tests.runtime.test_recovery import World

MOST_LIVES = 10
"""Processes that may die before one must reach the end."""


@tool(in_thread=False)
async def book(what: str) -> str:
    """Book something."""
    return f"booked {what}"


def agent() -> Agent:
    """An agent that calls one tool and is done, in whatever process it goes on."""

    def says(call: ModelCall) -> ModelResponse | ToolRequest:
        if any(message.role == "tool" for message in call.messages):
            return ModelResponse(content="done")
        return ToolRequest(tool_name="book", args={"what": "train"}, tool_call_id="t1")

    return Agent(id="planner", model=ScriptedModel(says), tools=[book])


@pytest.mark.anyio
@pytest.mark.parametrize("plain", [True, False])
async def test_each_event_is_heard_once_and_only_when_it_is_stored(plain: bool) -> None:
    disk, heard = Disk(), []
    hooks = Hooks("log")

    def listen(event: Event) -> None:
        numbers = [number for (_, number), entry in disk.events.items() if entry.type == event.hook_type]
        assert numbers, f"{event.hook_type} was heard before it was stored"
        heard.append(event.hook_type)

    async def listen_later(event: Event) -> None:
        listen(event)

    for event_class in EVENTS.values():
        hooks.on(event_class, heard="committed")(listen if plain else listen_later)  # type: ignore[type-var]
    result = await exec_agent(agent(), "Plan", hooks=[hooks], operation_id="op", store=DyingStore(disk))

    assert result.reason == "done"
    assert heard == [event["type"] for event in disk.events_of("op")]


@pytest.mark.anyio
async def test_the_handlers_of_a_bundle_share_its_lane_whenever_they_hear() -> None:
    hooks, running, heard = Hooks("one at a time"), 0, []

    async def listen(event: Event) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await anyio.sleep(0.001)
        running -= 1
        heard.append(event.hook_type)

    for event_class in (BeforeStep, AfterToolCall, AfterStep):
        hooks.on(event_class, heard="committed")(listen)
        hooks.on(event_class)(listen)
    await exec_agent(agent(), "Plan", hooks=[hooks], store=DyingStore(Disk()))

    assert len(heard) == 10


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["at once", "committed"])
async def test_a_kill_inside_a_handler_before_the_commit(when: Heard) -> None:
    """With `at once` there are two stories of one call; with `committed` there is the one that is stored."""
    disk, told = Disk(), []
    store = DyingStore(disk)
    dying = Hooks("dying")

    @dying.on(AfterToolCall)
    def die(event: AfterToolCall) -> None:
        store.dead = True
        raise Died

    def log() -> Hooks:
        hooks = Hooks("log")
        hooks.on(AfterToolCall, heard=when)(lambda event: told.append("afterToolCall"))
        hooks.on(OnToolCallError, heard=when)(lambda event: told.append("onToolCallError"))
        return hooks

    with pytest.raises(Died):
        await exec_agent(agent(), "Plan", hooks=[log(), dying], operation_id="op", store=store)
    await recover_agent(agent(), "op", hooks=[log()], store=DyingStore(disk))

    assert told == (["onToolCallError"] if when == "committed" else ["afterToolCall", "onToolCallError"])
    assert "onToolCallError" in [event["type"] for event in disk.events_of("op")]


async def live(disk: Disk, hooks: Hooks, *, kill: str, at: int) -> bool:
    """A process that goes on with the operation, until its end or its kill; whether it has reached the end."""
    store = DyingStore(disk, dies_at=at if kill != "event" else None, written=kill == "written")
    world, dying, seen = World(), Hooks("dying"), 0

    def die(event: Event) -> None:
        nonlocal seen
        seen += 1
        if kill == "event" and seen == at:
            store.dead = True
            raise Died

    for event_class in EVENTS.values():
        dying.on(event_class, id="dying")(die)
    bundles = [hooks, dying]
    try:
        if "op" not in disk.states:
            await exec_agent(world.agent(), "Plan", operation_id="op", store=store, hooks=bundles)
        elif disk.state("op").status == "running":
            await recover_agent(world.agent(), "op", store=store, hooks=bundles)
        if disk.state("op").status == "waiting_for_human":
            await resume_agent(world.agent(), "op", [Approve("t3")], store=store, hooks=bundles)
    except BaseException:
        if not store.dead:
            raise
    return "op" in disk.states and disk.state("op").status == "done"


KILLS = st.tuples(st.sampled_from(["before", "written", "event"]), st.integers(1, 25))


@pytest.mark.hypothesis
@given(kills=st.lists(KILLS, min_size=1, max_size=4), plain=st.booleans())
@example(kills=[("event", 4)], plain=True)
@example(kills=[("written", 5), ("before", 2)], plain=False)
@settings(max_examples=40)
def test_wherever_processes_die_nothing_that_was_heard_is_contradicted(
    kills: list[tuple[str, int]], plain: bool
) -> None:
    disk, heard = Disk(), []

    async def run() -> None:
        for kill, at in [*kills, *[("none", 0)] * MOST_LIVES]:
            hooks = Hooks("log", inherit=True)
            for event_class in EVENTS.values():

                def listen(event: Event) -> None:
                    assert any(entry.type == event.hook_type for entry in disk.events.values())
                    heard.append(event)

                async def listen_later(event: Event) -> None:
                    listen(event)

                hooks.on(event_class, heard="committed")(listen if plain else listen_later)  # type: ignore[type-var]
            if await live(disk, hooks, kill=kill, at=at):
                return
        raise AssertionError("the operation did not end")

    anyio.run(run)

    keys = [key_of(encode(event)) for event in heard]
    for operation_id in disk.states:
        journal = iter([key_of(msgspec.json.encode(event)) for event in disk.events_of(operation_id)])
        for key in keys:
            if key[0] == operation_id:
                assert key in journal, f"{key} was heard twice, out of order, or was never stored"
    ended = [key[2] for key in keys if key[1] in ("afterToolCall", "onToolCallError")]
    assert len(ended) == len(set(ended)), "two ends of one call were heard"


def key_of(wire: bytes) -> tuple[object, ...]:
    """What tells the events of these operations apart."""
    event = msgspec.json.decode(wire)
    further = ("stepIndex", "stepType", "reason", "subOperationId", "calleeId")
    call = (event["operationId"], event.get("toolCallId"))
    return (event["operationId"], event["type"], call, *(event.get(name) for name in further))


@pytest.mark.anyio
async def test_without_a_durable_store_events_are_heard_at_once() -> None:
    heard: list[str] = []
    hooks = Hooks("log")
    for event_class in (BeforeToolCall, AfterToolCall, OnComplete):
        hooks.on(event_class, heard="committed")(lambda event: heard.append(event.hook_type))
    await exec_agent(agent(), "Plan", hooks=[hooks])

    assert heard == ["beforeToolCall", "afterToolCall", "onComplete"]


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [True, False])
async def test_an_observer_that_waits_for_the_commit_cannot_mock(
    durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hooks, heard = Hooks("log"), []

    @hooks.on(BeforeToolCall, heard="committed")
    def mock(event: BeforeToolCall) -> None:
        heard.append(event.tool_call_id)
        event.mock("mocked")

    options = {"store": DyingStore(Disk())} if durable else {}
    result = await exec_agent(agent(), "Plan", hooks=[hooks], **options)

    assert heard == ["t1"]
    assert "booked train" in [message.content for message in result.messages]
    assert "cannot mock a call" in caplog.text
    assert [each.levelno for each in caplog.records if "raised" in each.getMessage()] == [logging.ERROR]


@pytest.mark.anyio
async def test_a_committed_event_has_the_context_in_which_it_happened() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
    hooks, seen = Hooks("log"), {}

    @tool(name="book", in_thread=False)
    async def book_in_context(what: str) -> str:
        variable.set("a tool's")
        return "booked"

    @hooks.on(BeforeToolCall, heard="committed")
    async def listen(event: BeforeToolCall) -> None:
        seen["before"] = variable.get()

    @hooks.on(AfterToolCall, heard="committed")
    async def listen_at_end(event: AfterToolCall) -> None:
        seen["after"] = variable.get()

    variable.set("the run's")
    one = Agent(id="planner", model=agent().model, tools=[book_in_context])
    await exec_agent(one, "Plan", hooks=[hooks], store=DyingStore(Disk()))

    assert seen == {"before": "the run's", "after": "a tool's"}


@pytest.mark.anyio
async def test_has_hooks_knows_observers_that_wait_for_the_commit() -> None:
    hooks = Hooks("log")
    hooks.on(BeforeToolCall, heard="committed")(lambda event: None)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hooks])
        assert dispatcher.has_hooks("op", BeforeToolCall)
        assert dispatcher.has_hooks("op")
        assert not dispatcher.has_hooks("op", AfterToolCall)


@pytest.mark.parametrize("heard", ["later", None, True])
def test_another_word_is_refused(heard: object) -> None:
    with pytest.raises(HookDefinitionError, match="'at once' or 'committed'"):
        Hooks("log").on(AfterStep, heard=heard)(lambda event: None)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_webhook_without_a_handler_is_refused() -> None:
    hook = Hook(id="there", type=AfterStep, webhook={"url": "https://example.org/"}, heard="committed")
    with pytest.raises(HookDefinitionError, match="committed events only"):
        await exec_agent(Agent(id="a", model=ScriptedModel([ModelResponse()])), "Hi", hooks=[hook])
