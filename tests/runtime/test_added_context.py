"""`add_context` in a run: where the model reads the text, and that it outlives a pause, a crash and a compaction."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    AgentCall,
    Approve,
    Ask,
    Compaction,
    Continue,
    Deny,
    Hooks,
    ModelCall,
    OnToolCallError,
    Reject,
    Respond,
    ToolCall,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.runtime import InMemoryHistory, OperationState, recover_agent
from hookline.runtime._state import WaitingCall
from hookline.signals import hook_executed
from tests.tables import for_each

from .durable import Died, Disk, DyingStore
from .interception import JsonStore, after, around, before, contents, guard, pay, paying, session_of
from .scenes import Recorder, agent_of, ask, assert_consistent, call, calls, says, told

pytestmark = pytest.mark.anyio


def context(hook_id: str, text: str) -> str:
    """How the model reads a text."""
    return f"Context from hook {hook_id!r}: {text}"


def adds(text: str, value: Any = None) -> Any:
    def handler(made: Any, *rest: Any) -> Any:
        made.add_context(text)
        return value

    return handler


async def play(agent: Agent, *hooks: Any, prompt: Any = "go", **options: Any) -> tuple[Any, Recorder]:
    recorder = Recorder()
    with anyio.fail_after(5):
        result = await exec_agent(agent, prompt, hooks=[recorder.hooks, *hooks], **options)
    assert_consistent(result.messages, [each.tool_call_id for each in result.pending])
    return result, recorder


# Tool calls.


async def test_the_model_reads_the_text_with_the_result_of_the_call() -> None:
    hooks = [before(ToolCall, adds("only EUR"), id="currency"), after(ToolCall, adds("ask again"), id="reminder")]

    result, recorder = await play(paying([], calls(pay()), says()), *hooks)

    shown = "\n\n".join(["paid 5", context("currency", "only EUR"), context("reminder", "ask again")])
    assert told(result.messages) == {"p1": shown}
    (event,) = recorder.of(AfterToolCall)
    assert event.content == "paid 5"  # the tool's own result
    assert [each.content for each in recorder.of(AfterStep)[0].tools_result] == [shown]  # what the model was told


@for_each(
    ("value", "content"),
    [
        (Deny("too much"), "too much"),
        (Respond("paid by another"), "paid by another"),
        (Respond(ValueError("no money")), "ValueError: no money"),
    ],
)
async def test_the_model_reads_the_text_also_if_the_tool_does_not_run(value: Any, content: str) -> None:
    paid: list[Any] = []

    result, _ = await play(paying(paid, calls(pay()), says()), before(ToolCall, adds("limit is 4", value), id="limit"))

    assert told(result.messages) == {"p1": f"{content}\n\n{context('limit', 'limit is 4')}"}
    assert paid == []


async def test_the_model_reads_the_text_with_a_withheld_result_and_with_an_error() -> None:
    @tool
    async def breaks() -> str:
        raise RuntimeError("it broke")

    agent = agent_of(calls(call("breaks")), says(), tools=[breaks])
    result, recorder = await play(agent, guard(ToolCall, adds("known bug"), id="bugs"))
    assert told(result.messages) == {"t1": f"RuntimeError: it broke\n\n{context('bugs', 'known bug')}"}
    assert recorder.of(OnToolCallError)[0].error == "it broke"

    withheld, _ = await play(
        paying([], calls(pay()), says()), after(ToolCall, adds("secret", Deny("private")), id="dlp")
    )
    (text,) = told(withheld.messages).values()
    assert text.startswith("The tool ran, but hook 'dlp' withheld its result: private")
    assert text.endswith(context("dlp", "secret"))


async def test_a_call_of_an_unknown_tool_has_its_context_too() -> None:
    result, _ = await play(agent_of(calls(call("nope")), says()), before(ToolCall, adds("it was renamed"), id="names"))

    assert told(result.messages)["t1"].endswith(context("names", "it was renamed"))


async def test_a_text_for_a_tool_without_output_stands_alone() -> None:
    @tool
    async def silent() -> str:
        return ""

    agent = agent_of(calls(call("silent")), says(), tools=[silent])
    result, _ = await play(agent, before(ToolCall, adds("done"), id="hook"))

    assert told(result.messages) == {"t1": context("hook", "done")}


async def test_parallel_calls_have_each_their_own_context() -> None:
    async def note(made: ToolCall) -> None:
        await anyio.lowlevel.checkpoint()
        made.add_context(f"about {made.tool_call_id}")

    turn = calls(pay(1, "a"), pay(2, "b"), pay(3, "c"))
    result, _ = await play(paying([], turn, says()), before(ToolCall, note, id="hook"))

    assert told(result.messages) == {
        name: f"paid {n}\n\n{context('hook', f'about {name}')}" for n, name in enumerate("abc", 1)
    }


@for_each("decision", ["approve", "reject and continue", "reject and stop"])
async def test_a_text_is_kept_while_the_call_waits_for_a_person(decision: str) -> None:
    store = JsonStore()
    hooks = [before(ToolCall, adds("over the limit"), id="limit"), guard(ToolCall, lambda c: Ask("pay?"), id="person")]
    agent = paying([], calls(pay()), says())
    paused, _ = await play(agent, *hooks, store=store)
    assert paused.reason == "waiting_for_human"

    given = {"approve": Approve("p1"), "reject and continue": Reject("p1", "no", and_continue=True)}
    result = await resume_agent(
        paying([], says()), paused.operation_id, [given.get(decision, Reject("p1", "no"))], hooks=hooks, store=store
    )

    first = "paid 5" if decision == "approve" else "A person refused this call: no"
    assert told(result.messages) == {"p1": f"{first}\n\n{context('limit', 'over the limit')}"}


async def test_a_hook_that_judges_a_call_again_replaces_its_text_from_before_the_pause() -> None:
    store, times = JsonStore(), iter(["first", "second"])

    def judge(made: ToolCall) -> Ask:
        made.add_context(next(times))
        return Ask("pay?")

    hooks = [before(ToolCall, adds("kept"), id="before"), guard(ToolCall, judge, id="guard")]
    paused, _ = await play(paying([], calls(pay()), says()), *hooks, store=store)

    result = await resume_agent(paying([], says()), paused.operation_id, [Approve("p1")], hooks=hooks, store=store)

    assert told(result.messages) == {
        "p1": "\n\n".join(["paid 5", context("before", "kept"), context("guard", "second")])
    }


def test_states_of_earlier_versions_have_no_context() -> None:
    old = msgspec.json.decode(b'{"callIndex": 2, "metadata": {"a": 1}}', type=WaitingCall)
    assert (old.call_index, old.context or []) == (2, [])
    state = msgspec.json.decode(
        b'{"operationId": "op", "agentId": "a", "steering": {"continues": 1}, "openStep": {"index": 3}}',
        type=OperationState,
    )
    assert state.steering is not None
    assert not state.steering.context
    assert state.open_step is not None
    assert not state.open_step.guides


async def test_a_text_outlives_the_process_that_ran_the_tool() -> None:
    disk = Disk()

    def build() -> Agent:
        @tool
        async def pay(amount: int) -> str:
            raise Died

        return Agent(id="payer", model=paying([], calls(call("pay", "p1", amount=5)), says()).model, tools=[pay])

    hook = before(ToolCall, adds("EUR"), id="currency")
    with pytest.raises((Died, BaseExceptionGroup)):
        await exec_agent(build(), "go", hooks=[hook], operation_id="op", store=(store := DyingStore(disk, dies_at=4)))
    assert store.dead

    agent = Agent(id="payer", model=agent_of(says()).model, tools=build().tools)
    result = await recover_agent(agent, "op", hooks=[hook], store=DyingStore(disk))

    (text,) = told(result.messages).values()
    assert text.endswith(context("currency", "EUR"))


# Runs.


async def test_the_model_reads_the_text_of_a_run_after_the_prompt() -> None:
    asked: list[list[tuple[str, str]]] = []
    hooks = [
        before(AgentCall, adds("it is Tuesday"), id="date"),
        guard(AgentCall, adds("be brief"), id="style"),
        before(ModelCall, lambda made: asked.append([(each.role, each.content) for each in made.messages])),
    ]

    result, _ = await play(agent_of(says("hello"), instructions="be kind"), *hooks)

    shown = f"{context('date', 'it is Tuesday')}\n\n{context('style', 'be brief')}"
    assert asked == [[("system", "be kind"), ("user", "go"), ("user", shown)]]
    assert contents(result.messages) == ["be kind", "go", shown, "hello"]
    assert result.messages[2].details == {"hookline.hooks": ["date", "style"]}


async def test_an_around_adds_to_the_prompt_before_call_next_and_to_the_next_input_after_it() -> None:
    async def surround(made: AgentCall, call_next: Any) -> Any:
        if made.input[0].content == "go":
            made.add_context("on the way in")
        result = await call_next(made)
        made.add_context("on the way out")
        return result

    left = ["and then?"]
    hooks = [
        around(AgentCall, surround, id="both"),
        after(AgentCall, lambda made, result: Continue(left.pop()) if left else None, id="more"),
    ]

    result, _ = await play(agent_of(says("one"), says("two")), *hooks)

    assert contents(result.messages) == [
        "go",
        context("both", "on the way in"),
        "one",
        f"and then?\n\n{context('both', 'on the way out')}",
        "two",
    ]


async def test_what_is_added_after_a_run_that_does_not_continue_reaches_nobody() -> None:
    result, _ = await play(agent_of(says("one")), after(AgentCall, adds("too late")))

    assert contents(result.messages) == ["go", "one"]


async def test_each_continuation_is_a_call_of_its_own() -> None:
    left = ["more"]
    hooks = [
        before(AgentCall, lambda made: made.add_context(f"about {made.input[0].content}"), id="note"),
        after(AgentCall, lambda made, result: Continue(left.pop()) if left else None),
    ]

    result, _ = await play(agent_of(says("one"), says("two")), *hooks)

    assert contents(result.messages) == [
        "go",
        context("note", "about go"),
        "one",
        "more",
        context("note", "about more"),
        "two",
    ]


async def test_a_denied_run_shows_nobody_the_text() -> None:
    result, _ = await play(agent_of(says("never")), before(AgentCall, adds("why", Deny("closed"))))

    assert contents(result.messages) == ["go"]
    assert result.denied.reason == "closed"


async def test_a_run_that_resumes_has_the_text_once_and_calls_its_prompt_the_users() -> None:
    store, seen = JsonStore(), []

    async def surround(made: AgentCall, call_next: Any) -> Any:
        seen.append(contents(made.input))
        made.add_context("it is Tuesday")
        return await call_next(made)

    hooks = [around(AgentCall, surround, id="date"), guard(AgentCall, adds("be brief"), id="style")]
    agent = paying([], calls(pay()), says(), needs_approval=True)
    paused, _ = await play(agent, *hooks, store=store)

    result = await resume_agent(
        paying([], says(), needs_approval=True), paused.operation_id, [Approve("p1")], hooks=hooks, store=store
    )

    shown = f"{context('date', 'it is Tuesday')}\n\n{context('style', 'be brief')}"
    assert contents(result.messages) == ["go", shown, "", "paid 5", "done"]
    assert seen == [["go"], ["go"]]


async def test_a_hook_that_runs_again_on_a_resume_replaces_its_text_in_the_conversation() -> None:
    store, days = JsonStore(), iter(["Tuesday", "Wednesday"])
    hooks = [
        guard(AgentCall, lambda made: made.add_context(next(days)), id="day"),
        before(AgentCall, adds("be brief"), id="style"),
    ]
    agent = paying([], calls(pay()), says(), needs_approval=True)
    paused, _ = await play(agent, *hooks, store=store)
    assert contents(paused.messages)[1] == f"{context('style', 'be brief')}\n\n{context('day', 'Tuesday')}"

    result = await resume_agent(
        paying([], says(), needs_approval=True), paused.operation_id, [Approve("p1")], hooks=hooks, store=store
    )

    assert contents(result.messages) == [
        "go",
        f"{context('style', 'be brief')}\n\n{context('day', 'Wednesday')}",
        "",
        "paid 5",
        "done",
    ]


async def test_a_text_that_is_new_on_a_resume_comes_after_the_prompt() -> None:
    store = JsonStore()
    agent = paying([], calls(pay()), says(), needs_approval=True)
    paused, _ = await play(agent, store=store)

    result = await resume_agent(
        paying([], says(), needs_approval=True),
        paused.operation_id,
        [Approve("p1")],
        hooks=[guard(AgentCall, adds("be brief"), id="style")],
        store=store,
    )

    assert contents(result.messages) == ["go", context("style", "be brief"), "", "paid 5", "done"]
    assert_consistent(result.messages)


async def test_a_compaction_keeps_the_prompt_of_the_user_and_not_the_text_in_its_place() -> None:
    async def summarize(messages: Any) -> str:
        return "summed up"

    agent = paying(
        [],
        calls(pay(), tokens=100),
        says(),
        compaction=Compaction(max_tokens=10, summarize=summarize, keep_last=0),
    )
    result, _ = await play(agent, before(AgentCall, adds("it is Tuesday"), id="date"))

    assert contents(result.messages) == ["Summary of the conversation so far:\nsummed up", "go", "done"]


async def test_a_session_keeps_the_text_as_part_of_its_conversation() -> None:
    async with session_of(agent_of(says("one"), says("two")), memory=InMemoryHistory()) as session:
        await session.run("first", hooks=[before(AgentCall, adds("note"), id="hook")])
        result = await session.run("second")

    assert contents(result.messages) == ["first", context("hook", "note"), "one", "second", "two"]


async def test_a_sub_agent_reads_the_text_of_its_own_run() -> None:
    bundle = Hooks("notes", inherit=True)
    bundle.before(AgentCall, id="notes")(lambda made: made.add_context(f"for {made.agent_id}"))
    seen: list[list[str]] = []
    bundle.before(ModelCall, id="seen")(lambda made: seen.append(contents(made.messages)))
    child = agent_of(says("helped"), id="helper")

    await play(agent_of(calls(ask("helper")), says(), sub_agents=[child]), bundle)

    assert seen[0] == ["go", context("notes", "for tester")]
    assert seen[1] == ["go", context("notes", "for helper")]


async def test_a_hook_without_waiting_cannot_add_context_in_a_run() -> None:
    failures: list[Any] = []

    def keep(source: object, execution: Any) -> None:
        failures.append((execution.hook_id, execution.status))

    hooks = Hooks("beside")
    hooks.after(ToolCall, wait=False, id="beside")(adds("late"))
    with hook_executed.connected_to(keep):
        result, _ = await play(paying([], calls(pay()), says()), hooks)

    assert ("beside", "error") in failures
    assert told(result.messages) == {"p1": "paid 5"}
