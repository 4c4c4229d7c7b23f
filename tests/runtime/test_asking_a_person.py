"""`Ask`: what a person is shown is what runs, here or in another process, whatever hooks and guards do meanwhile."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    Approve,
    Ask,
    BeforeHumanIntervention,
    BeforeToolCall,
    Deny,
    Hooks,
    OperationResult,
    Reject,
    Respond,
    ToolCall,
    ToolResult,
    exec_agent,
    resume_agent,
    tool,
)
from tests.interceptors.calls import recorded
from tests.tables import for_each

from .interception import JsonStore, around, before, guard, pay, paying, replace
from .scenes import Recorder, agent_of, assert_consistent, assert_order, call, calls, raw_call, says, told

pytestmark = pytest.mark.anyio


class Office:
    """A run that waits for a person: its store is bytes, and each segment has an agent built anew."""

    def __init__(self, *hooks: Any, asked: Any = None, needs_approval: Any = False) -> None:
        self.hooks = list(hooks)
        self.asked = asked or calls(pay(9))
        self.needs_approval = needs_approval
        self.store = JsonStore()
        self.recorder = Recorder(inherit=False)
        self.paid: list[Any] = []

    def agent(self, *turns: Any) -> Agent:
        return paying(self.paid, *turns, needs_approval=self.needs_approval)

    async def start(self) -> OperationResult:
        with anyio.fail_after(5):
            result = await exec_agent(
                self.agent(self.asked, says()),
                "go",
                hooks=[self.recorder.hooks, *self.hooks],
                operation_id="op",
                store=self.store,
            )
        assert_order(self.recorder.events)
        assert_consistent(result.messages, [pending.tool_call_id for pending in result.pending])
        return result

    async def resume(
        self, *decisions: Approve | Reject, hooks: list[Any] | None = None, allow_missing_hooks: bool = False
    ) -> OperationResult:
        before_it = len(self.recorder.events)
        with anyio.fail_after(5):
            result = await resume_agent(
                self.agent(says()),
                "op",
                list(decisions),
                hooks=[self.recorder.hooks, *(self.hooks if hooks is None else hooks)],
                store=self.store,
                allow_missing_hooks=allow_missing_hooks,
            )
        assert_order(self.recorder.events[before_it:], resumed=True)
        waiting = self.recorder.of(BeforeHumanIntervention)[-1].pending_tools if result.pending else []
        assert_consistent(result.messages, [pending.tool_call_id for pending in waiting])
        return result


def asking(made: ToolCall) -> Ask | None:
    return Ask(f"pay {made.args['amount']}?") if made.tool_name == "pay" else None


def rewriting(amount: int) -> Any:
    return lambda made: replace(made, args={"amount": amount}) if made.tool_name == "pay" else None


async def test_an_ask_pauses_the_run_and_shows_the_prompt_and_the_arguments_that_would_run() -> None:
    office = Office(guard(ToolCall, asking), before(ToolCall, rewriting(3)))

    result = await office.start()

    assert result.reason == "waiting_for_human"
    (pending,) = result.pending
    assert (pending.tool_name, pending.args, pending.prompt) == ("pay", {"amount": 3}, "pay 3?")
    assert office.recorder.of(BeforeHumanIntervention)[0].pending_tools == result.pending
    assert office.recorder.of(AfterStep)[0].step_type == "request_human_approve"
    assert office.paid == []
    assert not office.recorder.of(BeforeToolCall)


async def test_a_call_that_was_approved_runs_with_the_very_arguments_that_were_shown() -> None:
    office = Office(guard(ToolCall, asking), before(ToolCall, rewriting(3)))
    shown = (await office.start()).pending[0].args

    result = await office.resume(Approve("p1"))

    assert result.reason == "done"
    assert office.paid == [shown["amount"]] == [3]
    assert office.recorder.of(BeforeToolCall)[0].args == office.recorder.of(AfterToolCall)[0].args == {"amount": 3}


async def test_on_resume_neither_a_before_nor_an_around_can_change_what_a_person_approved() -> None:
    async def worse(made: ToolCall, call_next: Any) -> Any:
        return await call_next(replace(made, args={"amount": 1_000_000}))

    office = Office(guard(ToolCall, asking))
    await office.start()
    judged: list[Any] = []

    result = await office.resume(
        Approve("p1"),
        hooks=[
            before(ToolCall, rewriting(1_000_000)),
            around(ToolCall, worse),
            guard(ToolCall, lambda c: judged.append(c.args["amount"])),
        ],
    )

    assert result.reason == "done"
    assert office.paid == judged == [9]


async def test_on_resume_an_around_cannot_turn_the_call_into_one_of_another_tool() -> None:
    async def other(made: ToolCall, call_next: Any) -> Any:
        return await call_next(replace(made, tool_name="look", args={}))

    office = Office(guard(ToolCall, asking))
    await office.start()

    await office.resume(Approve("p1"), hooks=[around(ToolCall, other), *office.hooks])

    assert office.paid == [9]


async def test_a_guard_judges_again_on_resume_and_its_denial_wins_over_the_approval() -> None:
    office = Office(guard(ToolCall, asking))
    await office.start()

    result = await office.resume(Approve("p1"), hooks=[guard(ToolCall, lambda c: Deny("frozen since then"))])

    assert result.reason == "done"
    assert office.paid == []
    assert told(result.messages) == {"p1": "frozen since then"}
    assert not office.recorder.of(AfterToolCall)[0].success


async def test_of_two_guards_one_asks_and_the_other_denies_on_resume() -> None:
    """deny > ask > allow: the first ends the way in, but an approval lifts only the `Ask`."""
    office = Office(guard(ToolCall, asking, priority=1), guard(ToolCall, lambda c: Deny("never"), priority=2))
    assert (await office.start()).reason == "waiting_for_human"

    result = await office.resume(Approve("p1"))

    assert office.paid == []
    assert told(result.messages) == {"p1": "never"}


async def test_a_denial_before_an_ask_asks_nobody() -> None:
    office = Office(guard(ToolCall, lambda c: Deny("never"), priority=1), guard(ToolCall, asking, priority=2))

    result = await office.start()

    assert result.reason == "done"
    assert told(result.messages) == {"p1": "never"}


async def test_one_approval_lifts_the_questions_of_all_guards() -> None:
    office = Office(guard(ToolCall, asking), guard(ToolCall, asking), needs_approval=True)
    await office.start()

    result = await office.resume(Approve("p1"))

    assert result.reason == "done"
    assert office.paid == [9]


async def test_a_guard_that_fails_on_resume_denies_what_was_approved() -> None:
    def broken(made: ToolCall) -> None:
        raise OSError("policy server down")

    office = Office(guard(ToolCall, asking))
    await office.start()

    result = await office.resume(Approve("p1"), hooks=[guard(ToolCall, broken)])

    assert office.paid == []
    assert "policy server down" in told(result.messages)["p1"]


# `needs_approval` and hooks that rewrite.


async def test_a_tool_that_needs_approval_shows_the_arguments_that_hooks_made() -> None:
    office = Office(before(ToolCall, rewriting(3)), needs_approval=True)

    result = await office.start()

    assert result.pending[0].args == {"amount": 3}
    await office.resume(Approve("p1"))
    assert office.paid == [3]


async def test_the_question_of_a_tool_is_asked_of_the_arguments_that_would_run() -> None:
    """`needs_approval=lambda call: ...` saw 9, which needs none; the tool would have got 1000."""
    office = Office(before(ToolCall, rewriting(1000)), needs_approval=lambda made: made.args["amount"] > 100)

    result = await office.start()

    assert result.reason == "waiting_for_human"
    assert office.paid == []


@for_each("text", ["{broken", "[1]", "not json at all"])
async def test_arguments_that_a_hook_has_mended_cannot_slip_past_the_approval(text: str) -> None:
    office = Office(before(ToolCall, rewriting(1000)), asked=calls(raw_call("pay", text, "p1")), needs_approval=True)

    result = await office.start()

    assert office.paid == []
    assert result.reason == "waiting_for_human"
    assert result.pending[0].args == {"amount": 1000}


async def test_a_call_that_a_hook_turned_into_one_of_a_tool_that_needs_approval_waits_for_it() -> None:
    office = Office(
        before(ToolCall, lambda c: replace(c, tool_name="pay", args={"amount": 7})),
        asked=calls(call("look", "p1")),
        needs_approval=True,
    )

    result = await office.start()

    assert office.paid == []
    assert (result.pending[0].tool_name, result.pending[0].args) == ("pay", {"amount": 7})
    await office.resume(Approve("p1"))
    assert office.paid == [7]


async def test_an_around_that_rewrites_cannot_slip_past_the_approval() -> None:
    async def other(made: ToolCall, call_next: Any) -> Any:
        return await call_next(replace(made, tool_name="pay", args={"amount": 7}))

    office = Office(around(ToolCall, other), asked=calls(call("look", "p1")), needs_approval=True)

    result = await office.start()

    assert result.reason == "waiting_for_human"
    assert office.paid == []


async def test_a_guard_judges_before_a_person_is_bothered() -> None:
    office = Office(guard(ToolCall, lambda c: Deny("never")), needs_approval=True)

    result = await office.start()

    assert result.reason == "done"
    assert told(result.messages) == {"p1": "never"}


async def test_a_call_that_a_hook_answers_needs_nobody() -> None:
    office = Office(before(ToolCall, lambda c: Respond("cached")), needs_approval=True)

    result = await office.start()

    assert result.reason == "done"
    assert told(result.messages) == {"p1": "cached"}


async def test_an_around_that_swallows_the_pause_changes_nothing() -> None:
    async def swallowing(made: ToolCall, call_next: Any) -> Any:
        try:
            return await call_next(made)
        except Exception:
            return ToolResult(content="permitted")

    office = Office(around(ToolCall, swallowing), guard(ToolCall, asking))

    result = await office.start()

    assert result.reason == "waiting_for_human"
    assert office.paid == []


# Parallel calls.


async def test_some_parallel_calls_run_and_some_wait_and_the_results_keep_the_models_order() -> None:
    office = Office(guard(ToolCall, asking), asked=calls(pay(1, "a"), call("look", "b"), pay(3, "c")))

    result = await office.start()

    assert office.paid == ["look"]
    assert [pending.tool_call_id for pending in result.pending] == ["a", "c"]

    result = await office.resume(Approve("c"))
    assert result.reason == "waiting_for_human"
    assert [pending.tool_call_id for pending in result.pending] == ["a"]
    assert office.paid == ["look"]

    result = await office.resume(Approve("a"))
    assert result.reason == "done"
    assert sorted(office.paid, key=str) == [1, 3, "look"]
    assert told(result.messages) == {"a": "paid 1", "b": "looked", "c": "paid 3"}
    assert [m.tool_call_id for m in result.messages if m.role == "tool"] == ["a", "b", "c"]


async def test_a_denied_call_beside_one_that_waits_is_answered_at_once() -> None:
    def judge(made: ToolCall) -> Any:
        return Deny("too much") if made.args["amount"] > 2 else Ask("ok?")

    office = Office(guard(ToolCall, judge), asked=calls(pay(1, "a"), pay(3, "b")))

    result = await office.start()

    assert [pending.tool_call_id for pending in result.pending] == ["a"]
    assert told(result.messages) == {"b": "too much"}
    result = await office.resume(Approve("a"))
    assert office.paid == [1]
    assert told(result.messages) == {"a": "paid 1", "b": "too much"}


async def test_call_indices_go_on_over_a_pause_and_are_never_shared() -> None:
    def judge(made: ToolCall) -> Any:
        return Ask("ok?") if made.args["amount"] in (1, 3) else None

    office = Office(guard(ToolCall, judge), asked=calls(pay(1, "a"), pay(2, "b"), pay(3, "c")))
    await office.start()
    await office.resume(Approve("a"), Approve("c"))

    indices = {event.tool_call_id: event.call_index for event in office.recorder.of(BeforeToolCall)}
    assert indices == {"a": 1, "b": 2, "c": 3}


async def test_a_guard_sees_the_same_call_index_before_and_after_the_pause() -> None:
    seen: list[tuple[str, int]] = []

    def judge(made: ToolCall) -> Any:
        seen.append((made.tool_call_id, made.call_index))
        return Ask("ok?")

    office = Office(guard(ToolCall, judge), asked=calls(pay(1, "a"), pay(2, "b")))
    await office.start()
    await office.resume(Approve("a"), Approve("b"))

    assert sorted(seen) == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]


async def test_a_call_that_hooks_turned_into_one_of_another_tool_shares_no_index_with_it() -> None:
    """`call_index`: "from 1, per tool and operation, never shared by parallel calls"."""
    office = Office(
        before(ToolCall, lambda c: replace(c, tool_name="pay", args={"amount": 7}) if c.tool_name == "look" else None),
        guard(ToolCall, lambda c: Ask("ok?") if c.args["amount"] == 7 else None),
        asked=calls(call("look", "a"), pay(1, "b")),
    )
    await office.start()
    await office.resume(Approve("a"))

    indices = [(event.tool_name, event.call_index) for event in office.recorder.of(BeforeToolCall)]
    assert sorted(indices) == [("pay", 1), ("pay", 2)]


async def test_before_tool_call_of_a_call_that_was_asked_about_fires_once_over_pause_and_resume() -> None:
    office = Office(guard(ToolCall, asking))
    await office.start()
    await office.resume(Approve("p1"))

    assert len(office.recorder.of(BeforeToolCall)) == len(office.recorder.of(AfterToolCall)) == 1


# Rejections.


async def test_a_rejected_call_stops_the_run() -> None:
    office = Office(guard(ToolCall, asking))
    await office.start()

    result = await office.resume(Reject("p1", "too dear"))

    assert result.reason == "interrupted"
    assert office.paid == []
    assert "too dear" in told(result.messages)["p1"]


async def test_a_rejection_that_continues_tells_the_model() -> None:
    office = Office(guard(ToolCall, asking), asked=calls(pay(1, "a"), pay(2, "b")))
    await office.start()

    result = await office.resume(Reject("a", "too dear", and_continue=True), Approve("b"))

    assert result.reason == "done"
    assert office.paid == [2]
    assert "too dear" in told(result.messages)["a"]


async def test_a_denial_on_resume_that_stops_ends_the_run() -> None:
    office = Office(guard(ToolCall, asking), asked=calls(pay(1, "a"), pay(2, "b")))
    await office.start()

    def judge(made: ToolCall) -> Any:
        return Deny("enough", stop=True) if made.args["amount"] == 1 else None

    result = await office.resume(Approve("a"), Approve("b"), hooks=[guard(ToolCall, judge)])

    assert result.reason == "interrupted"
    assert result.denied is not None
    assert result.denied.reason == "enough"
    assert office.paid == [2]


# Words and values.


@for_each("prompt", ["", "Bitte prüfen ☎\n\x00", "x" * 100_000])
async def test_any_prompt_survives_the_store(prompt: str) -> None:
    office = Office(guard(ToolCall, lambda c: Ask(prompt)))

    assert (await office.start()).pending[0].prompt == prompt

    state = await office.store.load("op")
    assert state is not None
    assert state.pending[0].prompt == prompt
    assert (await office.resume(Approve("p1"))).reason == "done"


async def test_nested_arguments_that_hooks_made_survive_the_store_and_run_as_they_were_shown() -> None:
    got: list[Any] = []
    deep = {"list": [1, {"a": [None, 1.5, "ü"]}], "flag": True, "empty": {}}

    def made_anew(*turns: Any) -> Agent:
        @tool
        async def store_it(data: dict[str, Any]) -> str:
            got.append(data)
            return "ok"

        return agent_of(*turns, id="keeper", tools=[store_it])

    store = JsonStore()
    hooks = [
        before(ToolCall, lambda c: replace(c, args={"data": deep})),
        guard(ToolCall, lambda c: Ask("ok?")),
    ]
    first = await exec_agent(
        made_anew(calls(call("store_it", data={}))), "go", hooks=hooks, operation_id="op", store=store
    )
    assert first.pending[0].args == {"data": deep}
    await resume_agent(made_anew(says()), "op", [Approve("t1")], hooks=hooks, store=store)

    assert got == [deep]


async def test_a_person_asked_by_a_hook_that_may_be_missing_on_resume_is_still_obeyed() -> None:
    office = Office(guard(ToolCall, asking), before(ToolCall, rewriting(3)))
    await office.start()

    result = await office.resume(Approve("p1"), hooks=[], allow_missing_hooks=True)

    assert result.reason == "done"
    assert office.paid == [3]


async def test_what_a_before_wrote_into_metadata_is_there_for_the_after_over_a_pause() -> None:
    """AGENT-33 F28: pre and post got different metadata. "one `metadata` dict shared by every hook of that call"."""
    hooks = Hooks("timer")
    seen: list[Any] = []

    @hooks.before(ToolCall)
    def note(made: ToolCall) -> None:
        made.metadata["ticket"] = 42

    @hooks.after(ToolCall)
    def read(made: ToolCall, result: Any) -> None:
        seen.append(made.metadata.get("ticket"))

    office = Office(hooks, guard(ToolCall, asking))
    await office.start()
    await office.resume(Approve("p1"))

    assert seen == [42]


async def test_an_ask_in_a_sub_agent_waits_in_its_own_operation() -> None:
    paid: list[Any] = []
    child = Agent(
        id="helper", model=paying(paid, calls(pay())).model, tools=paying(paid).tools, hooks=[guard(ToolCall, asking)]
    )
    recorder = Recorder()
    agent = agent_of(calls(call("helper", toolset="agent", instruction="pay")), says(), sub_agents=[child])
    store = JsonStore()

    result = await exec_agent(agent, "go", hooks=[recorder.hooks], store=store)

    assert result.reason == "done"
    assert "waits for a person" in told(result.messages)["t1"]
    child_id = next(name for name in recorder.by_operation() if name != result.operation_id)
    later = Agent(id="helper", model=paying([], says("paid it")).model, tools=child.tools, hooks=child.hooks)
    assert (await resume_agent(later, child_id, [Approve("p1")], store=store)).output == "paid it"
    assert paid == [5]


async def test_a_hook_that_rewrites_after_a_pause_in_the_next_step_is_free_again() -> None:
    """Only the call that was approved is pinned."""
    paid: list[Any] = []
    store = JsonStore()
    hooks = [before(ToolCall, rewriting(3)), guard(ToolCall, lambda c: Ask("ok?") if c.step_index == 0 else None)]
    await exec_agent(paying(paid, calls(pay(9))), "go", hooks=hooks, operation_id="op", store=store)

    await resume_agent(paying(paid, calls(pay(8, "p2")), says()), "op", [Approve("p1")], hooks=hooks, store=store)

    assert paid == [3, 3]


# A hook that asks before others further inside were heard.


@pytest.mark.parametrize("kind", ["before", "around"])
async def test_an_approval_does_not_silence_a_before_that_was_not_heard_when_the_person_was_asked(kind: str) -> None:
    heard: list[str] = []

    async def asks(made: ToolCall, call_next: Any = None) -> Ask:
        heard.append("asks")
        return Ask("ok?")

    def refuses(made: ToolCall) -> Deny:
        heard.append("refuses")
        return Deny("destructive")

    outer = before(ToolCall, asks, priority=100) if kind == "before" else around(ToolCall, asks, priority=100)
    office = Office(outer, before(ToolCall, refuses, priority=200))
    await office.start()
    assert heard == ["asks"]

    result = await office.resume(Approve("p1"))

    assert office.paid == []
    assert told(result.messages)["p1"] == "destructive"
    assert heard.count("refuses") == 1


@for_each("ids", ["abcd", "dcba", "aaaa", "abbc", "cbba"])
async def test_each_before_is_heard_once_over_the_pause_and_none_rewrites_after_it(ids: str) -> None:
    heard: list[int] = []

    def rewrites(to: int, *, asks: bool = False) -> Any:
        def handler(made: ToolCall) -> Any:
            heard.append(to)
            return Ask("ok?") if asks else replace(made, args={"amount": to})

        return handler

    office = Office(
        before(ToolCall, rewrites(1), priority=100, id=f"hook {ids[0]}"),
        before(ToolCall, rewrites(2, asks=True), priority=200, id=f"hook {ids[1]}"),
        before(ToolCall, rewrites(3), priority=300, id=f"hook {ids[2]}"),
        before(ToolCall, rewrites(4), priority=400, id=f"hook {ids[3]}"),
    )
    result = await office.start()
    assert result.pending[0].args == {"amount": 1}

    await office.resume(Approve("p1"))

    assert heard == [1, 2, 3, 4]
    assert office.paid == [1]


async def test_if_the_hook_that_asked_is_missing_on_resume_every_before_is_heard() -> None:
    heard: list[str] = []

    def refuses(made: ToolCall) -> Deny:
        heard.append("refuses")
        return Deny("destructive")

    judge = before(ToolCall, refuses, priority=200, id="judge")
    office = Office(before(ToolCall, asking, priority=100, id="asks"), judge)
    await office.start()
    assert heard == []

    result = await office.resume(Approve("p1"), hooks=[judge], allow_missing_hooks=True)

    assert (heard, office.paid) == (["refuses"], [])
    assert told(result.messages)["p1"] == "destructive"


async def test_an_around_that_is_heard_after_the_approval_cannot_change_what_was_approved() -> None:
    heard: list[str] = []

    async def rewrites(made: ToolCall, call_next: Any) -> Any:
        heard.append("in")
        result = await call_next(replace(made, args={"amount": 1}))
        heard.append("out")
        return result

    office = Office(before(ToolCall, asking, priority=100), around(ToolCall, rewrites, priority=200))
    result = await office.start()
    assert result.pending[0].args == {"amount": 9}
    assert heard == []

    await office.resume(Approve("p1"))

    assert office.paid == [9]
    assert heard == ["in", "out"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_before_that_is_heard_after_the_approval_has_one_record(*, fails: bool) -> None:
    def judges(made: ToolCall) -> None:
        if fails:
            raise ValueError("broken")

    office = Office(
        before(ToolCall, asking, priority=100, id="asks"),
        before(ToolCall, judges, priority=200, id="judges", on_error="open"),
    )
    await office.start()
    with recorded() as sent:
        await office.resume(Approve("p1"))

    records = [each.status for each in sent if each.hook_id == "judges"]
    assert records == ["error" if fails else "ok"]
