"""People who decide about the tool calls of a loop: in place, or later and elsewhere."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from hookline import (
    AfterHumanIntervention,
    AfterStep,
    Approve,
    Ask,
    BeforeHumanIntervention,
    Deny,
    Hooks,
    InMemoryStore,
    ModelResponse,
    OnComplete,
    Reject,
    ToolCall,
    ToolRequest,
)
from hookline.errors import DecisionError, HookUsageError, MissingHooksError, RunPaused, RunStopped
from hookline.events import PendingTool
from hookline.store import SqlStore

from .conftest import Way
from .stage import settled

PAY = ToolRequest("pay", {"amount": 5}, tool_call_id="c1")
LOOK = ToolRequest("look", {}, tool_call_id="c2")
BOTH = ModelResponse(content="both", tool_calls=[PAY, LOOK])
DONE = ModelResponse(content="done")


class Shop:
    """Tools that count."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.looked = 0

    def pay(self, amount: int) -> str:
        self.paid.append(amount)
        return f"paid {amount}"

    def look(self) -> str:
        self.looked += 1
        return "seen"

    @property
    def tools(self) -> list[Any]:
        return [self.pay, self.look]


def asking() -> Hooks:
    hooks = Hooks("asks")
    hooks.guard(ToolCall, tool="pay", id="asker")(lambda call: Ask("May it pay?"))
    return hooks


@pytest.mark.anyio
async def test_a_person_is_asked_in_place(way: Way) -> None:
    shop, asked, events = Shop(), list[PendingTool](), list[Any]()
    watch = Hooks("watch")
    watch.on(BeforeHumanIntervention)(events.append)
    watch.on(AfterHumanIntervention)(events.append)
    way.provider.script(way.dialect.says(BOTH), way.dialect.says(DONE))

    def ask(pending: PendingTool) -> Approve:
        asked.append(pending)
        return Approve(pending.tool_call_id)

    async with way.wrapped([asking(), watch], shop.tools, ask=ask) as run:
        messages = await way.loop(run)
    assert way.dialect.results(messages) == ["paid 5", "seen"]
    assert [(each.prompt, each.args) for each in asked] == [("May it pay?", {"amount": 5})]
    assert [type(event) for event in events] == [BeforeHumanIntervention, AfterHumanIntervention]
    assert (shop.paid, shop.looked) == ([5], 1)


@pytest.mark.anyio
async def test_an_async_ask_may_reject_and_continue(way: Way) -> None:
    shop = Shop()
    way.provider.script(way.dialect.says(BOTH), way.dialect.says(DONE))

    async def ask(pending: PendingTool) -> Reject:
        return Reject(pending.tool_call_id, "too much", and_continue=True)

    async with way.wrapped([asking()], shop.tools, ask=ask) as run:
        messages = await way.loop(run)
    assert way.dialect.results(messages) == ["A person refused this call: too much", "seen"]
    assert shop.paid == []


@pytest.mark.anyio
async def test_a_plain_rejection_stops_the_run(way: Way) -> None:
    shop, ends = Shop(), list[Any]()
    watch = Hooks("watch")
    watch.on(OnComplete)(ends.append)
    way.provider.script(way.dialect.says(BOTH))

    with pytest.raises(RunStopped, match="never"):
        async with way.wrapped(
            [asking(), watch], shop.tools, ask=lambda each: Reject(each.tool_call_id, "never")
        ) as run:
            await way.loop(run)
    assert shop.paid == []
    assert [event.reason for event in ends] == ["interrupted"]


@pytest.mark.anyio
async def test_an_ask_that_returns_something_else_is_told_what_it_must_return(way: Way) -> None:
    way.provider.script(way.dialect.says(BOTH))

    with pytest.raises(HookUsageError, match=r"must return Approve\('c1'\)"):
        async with way.wrapped([asking()], Shop().tools, ask=lambda pending: True) as run:
            await way.loop(run)


async def pause(way: Way, store: InMemoryStore, shop: Shop, hooks: list[Hooks]) -> RunPaused:
    way.provider.script(way.dialect.says(BOTH), way.dialect.says(DONE))
    with pytest.raises(RunPaused) as paused:
        async with way.wrapped(hooks, shop.tools, store=store, operation_id="paused") as run:
            await way.loop(run)
    return paused.value


@pytest.mark.anyio
async def test_a_paused_run_goes_on_elsewhere_and_runs_nothing_twice(way: Way) -> None:
    store, first, second, steps = InMemoryStore(), Shop(), Shop(), list[AfterStep]()
    watch = Hooks("watch")
    watch.on(AfterStep)(steps.append)

    paused = await pause(way, store, first, [asking(), watch])
    assert [each.tool_call_id for each in paused.pending] == ["c1"]
    assert "run.resume" in str(paused)
    assert (first.paid, first.looked) == ([], 1)

    async with way.wrapped([asking(), watch], second.tools, store=store, operation_id="paused") as run:
        assert [each.tool_call_id for each in run.pending] == ["c1"]
        messages = json.loads(json.dumps(run.messages))
        messages += await settled(run.resume([Approve("c1")]))
        assert run.messages == messages[: len(run.messages)]
        assert run.pending == []
        messages = await way.loop(run, messages)
    assert way.dialect.results(messages) == ["paid 5", "seen"]
    assert (second.paid, second.looked) == ([5], 0)
    sent = way.provider.bodies[1]
    assert [role for role, _ in way.dialect.shown(sent)] == ["user", "assistant", "tool", "tool"]
    assert [step.step_type for step in steps] == ["request_human_approve", "call_tool", "call_llm"]
    assert [step.step_index for step in steps] == [0, 1, 2]


@pytest.mark.anyio
async def test_decisions_may_come_one_by_one(way: Way) -> None:
    store, shop = InMemoryStore(), Shop()
    hooks = Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("May it?"))
    await pause(way, store, shop, [hooks])

    with pytest.raises(RunPaused) as again:
        async with way.wrapped([hooks], shop.tools, store=store, operation_id="paused") as run:
            await settled(run.resume([Approve("c2")]))
    assert [each.tool_call_id for each in again.value.pending] == ["c1"]
    assert shop.looked == 0

    async with way.wrapped([hooks], shop.tools, store=store, operation_id="paused") as run:
        told = await settled(run.resume([Reject("c1", "no", and_continue=True)]))
    assert way.dialect.results(told) == ["A person refused this call: no", "seen"]
    assert (shop.paid, shop.looked) == ([], 1)


@pytest.mark.anyio
async def test_guards_judge_again_what_was_approved(way: Way) -> None:
    store, shop = InMemoryStore(), Shop()
    await pause(way, store, shop, [asking()])
    denies = asking()
    denies.guard(ToolCall, tool="pay")(lambda call: Deny("closed by now"))

    async with way.wrapped([denies], shop.tools, store=store, operation_id="paused") as run:
        told = await settled(run.resume([Approve("c1")]))
    assert way.dialect.results(told) == ["closed by now", "seen"]
    assert shop.paid == []


@pytest.mark.anyio
async def test_a_paused_run_does_not_go_on_without_its_hooks(way: Way) -> None:
    store, shop = InMemoryStore(), Shop()
    await pause(way, store, shop, [asking()])

    with pytest.raises(MissingHooksError, match="asker"):
        async with way.wrapped([], shop.tools, store=store, operation_id="paused"):
            pass


@pytest.mark.anyio
async def test_wrong_decisions_are_refused(way: Way) -> None:
    store, shop = InMemoryStore(), Shop()
    await pause(way, store, shop, [asking()])

    async with way.wrapped([asking()], shop.tools, store=store, operation_id="paused") as run:
        with pytest.raises(DecisionError):
            await settled(run.resume([Approve("other")]))
        with pytest.raises(HookUsageError, match="waits for a person"):
            await way.ask(run)
        await settled(run.resume([Approve("c1")]))
        with pytest.raises(HookUsageError, match="waits for nobody"):
            await settled(run.resume([Approve("c1")]))


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False], ids=["async"])  # a database belongs to the event loop that opened it
async def test_a_paused_run_goes_on_from_a_database(way: Way, tmp_path: pathlib.Path) -> None:
    url, shop = f"sqlite+aiosqlite:///{tmp_path / 'runs.db'}", Shop()
    way.provider.script(way.dialect.says(BOTH), way.dialect.says(DONE))
    async with SqlStore(url) as store:
        with pytest.raises(RunPaused):
            async with way.wrapped([asking()], shop.tools, store=store, operation_id="paused") as run:
                await way.loop(run)
    async with SqlStore(url) as store:
        async with way.wrapped([asking()], shop.tools, store=store, operation_id="paused") as run:
            messages = run.messages
            messages += await run.resume([Approve("c1")])
            messages = await way.loop(run, messages)
        state = await store.load("paused")
    assert way.dialect.results(messages) == ["paid 5", "seen"]
    assert (shop.paid, shop.looked) == ([5], 1)
    assert state is not None
    assert (state.status, state.steps) == ("done", 3)
    assert "both" in [message.content for message in state.messages]
