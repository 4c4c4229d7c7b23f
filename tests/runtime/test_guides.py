"""`Guide`: an answer is discarded and the model asked again, so often and no oftener, and nobody sees what was discarded."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterStep,
    Agent,
    AgentCall,
    Approve,
    BeforeStep,
    BeforeToolCall,
    Compaction,
    Deny,
    Guide,
    HookExecution,
    Hooks,
    ModelCall,
    ModelResponse,
    OnComplete,
    Respond,
    StepCall,
    ToolCall,
    Usage,
    exec_agent,
    interrupt,
    resume_agent,
    signals,
)
from hookline.errors import AgentDefinitionError, HookDefinitionError, TransientModelError
from hookline.interceptors import Chain
from hookline.runtime import recover_agent
from tests.tables import for_each

from .durable import Died, Disk, DyingStore
from .interception import JsonStore, after, around, before, contents, guard, noting_phases, pay, paying, session_of
from .scenes import Recorder, agent_of, assert_consistent, assert_order, calls, says
from .test_streaming import Pieces, said

pytestmark = pytest.mark.anyio


def send_back(*feedback: str, **options: Any) -> Any:
    """An `after(ModelCall)` that sends the first answers back with these."""
    left = list(feedback)
    return after(ModelCall, lambda made, answer: Guide(left.pop(0)) if left else None, **options)


async def play(agent: Agent, *hooks: Any, **options: Any) -> tuple[Any, Recorder]:
    recorder = Recorder()
    with anyio.fail_after(5):
        result = await exec_agent(agent, "go", hooks=[recorder.hooks, *hooks], **options)
    assert_consistent(result.messages, [each.tool_call_id for each in result.pending])
    assert_order(recorder.events)
    return result, recorder


async def test_the_answer_is_discarded_and_the_model_is_asked_again_with_the_feedback() -> None:
    asked: list[list[tuple[str, str]]] = []
    watch = before(ModelCall, lambda made: asked.append([(each.role, each.content) for each in made.messages]))

    result, _ = await play(agent_of(says("rude"), says("kind")), watch, send_back("be kind", id="manners"))

    assert asked == [[("user", "go")], [("user", "go"), ("user", "be kind")]]
    assert contents(result.messages) == ["go", "be kind", "kind"]
    assert result.messages[1].details == {"hookline.hooks": ["manners"]}
    assert (result.reason, result.output, result.steps) == ("done", "kind", 1)


async def test_each_asking_counts_in_usage_cost_and_model_calls_and_none_is_a_step() -> None:
    turns = [says(str(n), tokens=10 * n, cost=0.5) for n in range(1, 4)]

    result, recorder = await play(agent_of(*turns), send_back("again", "again"))

    assert result.usage == Usage(input_tokens=60, cost_usd=1.5)
    assert len(recorder.of(BeforeStep)) == 1
    (step,) = recorder.of(AfterStep)
    assert (step.content, step.step_cost_usd, step.total_cost_usd, step.total_input_tokens) == ("3", 1.5, 1.5, 60)
    (end,) = recorder.of(OnComplete)
    assert (end.llm_calls, end.steps, end.cost_usd, end.total_tokens) == (3, 1, 1.5, 60)


async def test_tool_calls_of_a_discarded_answer_do_not_run() -> None:
    paid: list[Any] = []
    agent = paying(paid, calls(pay(100), content="pay a lot"), calls(pay(1)), says())

    result, recorder = await play(agent, send_back("pay less"))

    assert paid == [1]
    assert [event.args for event in recorder.of(BeforeToolCall)] == [{"amount": 1}]
    assert contents(result.messages) == ["go", "pay less", "", "paid 1", "done"]


async def test_several_are_joined_by_a_blank_line_in_the_order_in_which_the_hooks_ran() -> None:
    hooks = [send_back("outer", priority=1, id="outer"), send_back("inner", priority=2, id="inner")]

    result, _ = await play(agent_of(says("one"), says("two")), *hooks)

    assert contents(result.messages) == ["go", "inner\n\nouter", "two"]
    assert result.messages[1].details == {"hookline.hooks": ["inner", "outer"]}


@pytest.mark.parametrize("inner", ["guides", "denies"])
async def test_a_denial_beats_a_guide_wherever_it_stands(inner: str) -> None:
    guides, denies = send_back("again", priority=2), after(ModelCall, lambda c, r: Deny("enough"), priority=1)
    if inner == "denies":
        guides, denies = send_back("again", priority=1), after(ModelCall, lambda c, r: Deny("enough"), priority=2)

    result, recorder = await play(agent_of(says("one", tokens=3), says("never")), guides, denies)

    assert (result.reason, result.denied.reason, result.usage.input_tokens) == ("interrupted", "enough", 3)
    assert contents(result.messages) == ["go"]
    assert recorder.completion.llm_calls == 1


async def test_a_denial_of_a_later_asking_ends_the_run_and_everything_is_paid() -> None:
    answers: list[str] = []

    def judge(made: ModelCall, answer: ModelResponse) -> Any:
        answers.append(answer.content)
        return Guide("again") if len(answers) == 1 else Deny("enough")

    result, recorder = await play(agent_of(says("one", tokens=3), says("two", tokens=4)), after(ModelCall, judge))

    assert (result.reason, result.output, result.usage.input_tokens) == ("interrupted", "", 7)
    assert recorder.completion.llm_calls == 2


@for_each("limit", [0, 1, 3])
async def test_the_last_answer_stands_and_the_record_says_so(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    records: list[HookExecution] = []

    def keep(sender: object, execution: HookExecution) -> None:
        records.append(execution)

    agent = agent_of(*(says(str(n)) for n in range(10)), max_guides=limit)
    with signals.hook_executed.connected_to(keep), caplog.at_level(logging.WARNING, "hookline"):
        result, _ = await play(agent, after(ModelCall, lambda c, r: Guide("again"), id="never-content"))

    assert (result.output, result.reason) == (str(limit), "done")
    judged = [record for record in records if record.hook_id == "never-content"]
    assert [(record.status, bool(record.error)) for record in judged] == [*[("ok", False)] * limit, ("ok", True)]
    assert "max_guides" in (judged[-1].error or "")
    assert "never-content" in caplog.text


async def test_the_limit_is_of_each_step() -> None:
    agent = paying([], *[calls(pay())] * 4, *[says("done")] * 4, max_guides=3)

    result, recorder = await play(agent, after(ModelCall, lambda c, r: Guide("again")))

    assert (result.steps, recorder.completion.llm_calls) == (2, 8)


async def test_hooks_see_how_often_the_model_can_still_be_asked_so_that_one_can_deny_instead() -> None:
    left: list[Any] = []

    def judge(made: ModelCall, answer: ModelResponse) -> Any:
        left.append(made.metadata.get("hookline.guides_left"))
        return Deny("it never learns") if left[-1] == 0 else Guide("again")

    agent = agent_of(says("one"), says("two"), says("three"), max_guides=2)
    result, _ = await play(agent, after(ModelCall, judge))
    assert left == [None, 1, 0]
    assert result.denied.reason == "it never learns"

    left.clear()
    await play(agent_of(says("one"), max_guides=0), after(ModelCall, judge))
    assert left == [0]


async def test_each_asking_is_a_call_of_its_own_for_the_hooks() -> None:
    seen: list[dict[str, Any]] = []

    def note(made: ModelCall) -> None:
        seen.append(dict(made.metadata))
        made.metadata["mine"] = True

    await play(agent_of(says("one"), says("two")), before(ModelCall, note), send_back("again"))

    assert seen == [{}, {"hookline.guides_left": 2}]


async def test_empty_feedback_discards_the_answer_and_adds_no_message() -> None:
    result, _ = await play(agent_of(says("one"), says("two"), says("three")), send_back("", "", priority=1))
    assert contents(result.messages) == ["go", "three"]

    both, _ = await play(agent_of(says("one"), says("two")), send_back("", priority=1), send_back("more", priority=2))
    assert contents(both.messages) == ["go", "more", "two"]


async def test_an_answer_of_a_hook_can_be_discarded_too_and_costs_nothing() -> None:
    answers = iter([Respond("canned"), None])

    result, recorder = await play(
        agent_of(says("real", tokens=5)), before(ModelCall, lambda c: next(answers)), send_back("be real", priority=1)
    )

    assert (result.output, result.usage.input_tokens, recorder.completion.llm_calls) == ("real", 5, 1)


async def test_a_failure_of_a_later_asking_is_the_failure_of_the_run_and_the_first_one_is_paid() -> None:
    result, recorder = await play(agent_of(says("one", tokens=3), RuntimeError("gone")), send_back("again"))

    assert (result.reason, str(result.error), result.usage.input_tokens) == ("error", "gone", 3)
    assert recorder.completion.llm_calls == 2


async def test_a_later_asking_is_retried_like_any_other() -> None:
    turns = [says("one"), TransientModelError("busy"), says("two")]

    result, _ = await play(agent_of(*turns), send_back("again"))

    assert contents(result.messages) == ["go", "again", "two"]


async def test_an_interrupt_between_two_askings_ends_the_run() -> None:
    def judge(made: ModelCall, answer: ModelResponse) -> Guide:
        interrupt(made.operation_id)
        return Guide("again")

    recorder = Recorder()
    with anyio.fail_after(5):
        result = await exec_agent(
            agent_of(says("one"), says("two")), "go", hooks=[recorder.hooks, after(ModelCall, judge)]
        )

    assert (result.reason, recorder.completion.llm_calls) == ("interrupted", 1)


@for_each("call", [AgentCall, StepCall, ToolCall])
async def test_a_guide_for_another_call_is_a_wrong_return_value(call: Any) -> None:
    result, _ = await play(paying([], calls(pay()), says()), after(call, lambda c, r: Guide("again")))

    withheld = result.denied.reason if call is not ToolCall else contents(result.messages, "tool")[0]
    assert "returned Guide(feedback='again')" in withheld
    assert "or Guide" not in withheld


@for_each("kind", ["before", "guard", "around"])
async def test_only_an_after_hook_returns_a_guide(kind: str) -> None:
    async def surround(made: ModelCall, call_next: Any) -> Any:
        await call_next(made)
        return Guide("again")

    make = {"before": before, "guard": guard, "around": around}[kind]
    handler = surround if kind == "around" else lambda made: Guide("again")
    result, _ = await play(agent_of(says("one"), says("two")), make(ModelCall, handler))

    assert "returned Guide" in result.denied.reason


@for_each("feedback", [None, 3, ["again"]])
async def test_feedback_that_is_no_text_is_a_wrong_return_value(feedback: Any) -> None:
    result, _ = await play(agent_of(says("one")), after(ModelCall, lambda c, r: Guide(feedback)))

    assert "returned Guide" in result.denied.reason


@pytest.mark.parametrize("limit", [-1, "x", None, True, 1.5])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(AgentDefinitionError, match="max_guides"):
        agent_of(says(), max_guides=limit)


def test_an_observer_that_is_annotated_to_return_a_guide_is_refused() -> None:
    hooks = Hooks("demo")

    def observe(event: AfterStep) -> Guide | None: ...

    with pytest.raises(HookDefinitionError, match="annotated to return Guide"):
        hooks.on(AfterStep)(observe)  # type: ignore[type-var]

    def beside(made: ModelCall, answer: ModelResponse) -> Guide | None: ...

    with pytest.raises(HookDefinitionError, match="annotated to return Guide"):
        hooks.after(ModelCall, wait=False)(beside)


async def test_a_guide_that_an_observer_returns_denies_the_tool_call() -> None:
    """Law 9: whoever returns a decision there means it."""
    hooks, paid = Hooks("demo"), list[Any]()
    hooks.on(BeforeToolCall, id="observer")(lambda event: Guide("again"))  # type: ignore[arg-type,return-value]

    result, _ = await play(paying(paid, calls(pay()), says()), hooks)

    assert paid == []
    assert "Guide" in contents(result.messages, "tool")[0]


async def test_a_bare_chain_names_the_feedback_and_asks_nobody_again() -> None:
    asked: list[ModelCall] = []

    async def model(made: ModelCall) -> ModelResponse:
        asked.append(made)
        return says("one")

    chain = Chain([after(ModelCall, lambda c, r: Guide("outer")), after(ModelCall, lambda c, r: Guide("inner"))])
    outcome = await chain.run(ModelCall(messages=[]), model)

    assert (outcome.guides, outcome.result.content, len(asked)) == (["inner", "outer"], "one", 1)


# Streams.


async def test_nothing_of_a_discarded_answer_is_given_away_when_text_is_checked() -> None:
    for outer in ([], [after(AgentCall, lambda c, r: None)], [after(StepCall, lambda c, r: None)]):
        got: list[str] = []
        model = Pieces(["bad ", "words", said("bad words")], ["good ", "words", said("good words")])

        await exec_agent(Agent(id="a", model=model), "hi", on_token=got.append, hooks=[*outer, send_back("be good")])

        assert "".join(got) == "good words"
        assert model.closed == 2


async def test_nothing_of_a_discarded_answer_is_given_away_if_the_model_does_not_stream_the_next_one() -> None:
    got: list[str] = []
    answers = iter([None, Respond("canned")])
    model = Pieces(["bad", said("bad")])

    await exec_agent(
        Agent(id="a", model=model),
        "hi",
        on_token=got.append,
        hooks=[before(ModelCall, lambda c: next(answers)), send_back("be good", priority=1)],
    )

    assert got == ["canned"]


async def test_a_reader_of_incremental_text_reads_discarded_text_as_well() -> None:
    got: list[str] = []
    model = Pieces(["bad ", said("bad ")], ["good", said("good")])

    await exec_agent(
        Agent(id="a", model=model), "hi", on_token=got.append, release="incremental", hooks=[send_back("be good")]
    )

    assert got == ["bad ", "good"]


# Sessions, pauses, crashes, compaction.


async def test_a_session_moves_to_its_model_once_per_asking() -> None:
    moves: list[str] = []
    async with session_of(agent_of(says("one"), says("two")), hooks=[noting_phases(moves)]) as session:
        await session.run("go", hooks=[send_back("again")])

    assert moves.count("processing_user_input>awaiting_llm_response") == 2
    assert moves.count("awaiting_llm_response>analyzing_llm_response") == 2


async def test_the_prompt_of_a_run_that_resumes_is_the_users_and_not_the_feedback() -> None:
    store, seen = JsonStore(), list[list[str]]()
    watch = guard(AgentCall, lambda made: seen.append(contents(made.input)))
    agent = paying([], says("one"), calls(pay()), needs_approval=True)
    paused, _ = await play(agent, watch, send_back("use the tool"), store=store)
    assert paused.reason == "waiting_for_human"

    result = await resume_agent(
        paying([], says(), needs_approval=True),
        paused.operation_id,
        [Approve("p1")],
        hooks=[watch, send_back()],
        store=store,
    )

    assert seen == [["go"], ["go"]]
    assert contents(result.messages) == ["go", "use the tool", "", "paid 5", "done"]


async def test_a_crash_between_two_askings_forgets_neither_the_feedback_nor_the_count() -> None:
    for at in range(2, 5):
        disk, answers = Disk(), list[str]()

        def judge(made: ModelCall, answer: ModelResponse) -> Guide:
            answers.append(answer.content)  # noqa: B023
            return Guide(f"not {answer.content}")

        hook = after(ModelCall, judge, id="judge")
        turns = [says(str(n), tokens=1) for n in range(9)]
        try:
            store = DyingStore(disk, dies_at=at, written=True)
            await exec_agent(agent_of(*turns, max_guides=2), "go", hooks=[hook], operation_id="op", store=store)
        except (Died, BaseExceptionGroup):
            pass
        assert store.dead
        known = len(answers)

        rest = agent_of(*turns[known:], max_guides=2)
        result = await recover_agent(rest, "op", hooks=[hook], store=DyingStore(disk))

        feedback = [message.content for message in result.messages if message.role == "user"][1:]
        assert len(feedback) == 2, (at, feedback)
        assert result.usage.input_tokens >= 3


async def test_a_compaction_keeps_the_prompt_and_not_the_feedback_in_its_place() -> None:
    async def summarize(messages: Any) -> str:
        return "summed up"

    agent = paying(
        [],
        says("one"),
        calls(pay(), tokens=100),
        says(),
        compaction=Compaction(max_tokens=10, summarize=summarize, keep_last=0),
    )
    result, _ = await play(agent, send_back("use the tool"))

    assert contents(result.messages) == ["Summary of the conversation so far:\nsummed up", "go", "done"]


# The law.

CHOICES = st.lists(st.lists(st.sampled_from(["pass", "guide", "deny"]), min_size=1, max_size=3), min_size=1, max_size=6)


@given(st.integers(0, 3), CHOICES)
@settings(max_examples=60)
def test_the_conversation_and_the_totals_follow_from_what_the_hooks_said(limit: int, askings: list[list[str]]) -> None:
    """`askings` says for each asking what each hook does, from the innermost to the outermost; then all pass."""
    asking = [-1]

    def begin(made: ModelCall) -> None:
        asking[0] += 1

    def judge(place: int) -> Any:
        def handler(made: ModelCall, answer: ModelResponse) -> Any:
            said = askings[asking[0]] if asking[0] < len(askings) else []
            choice = said[place] if place < len(said) else "pass"
            return {"pass": None, "guide": Guide(f"{asking[0]}.{place}"), "deny": Deny("no")}[choice]

        return handler

    hooks = [before(ModelCall, begin), *(after(ModelCall, judge(n), priority=500 - n) for n in range(3))]
    agent = agent_of(*(says(str(n), tokens=1) for n in range(9)), max_guides=limit)
    result = anyio.run(lambda: exec_agent(agent, "go", hooks=hooks))

    messages, asked, denied = ["go"], 0, False
    for choices in askings:
        asked += 1
        guides = [f"{asked - 1}.{place}" for place, choice in enumerate(choices) if choice == "guide"]
        if "deny" in choices:
            denied = True
            break
        if not guides or asked > limit:
            break
        messages.append("\n\n".join(guides))
    else:
        asked += 1
    if not denied:
        messages.append(str(asked - 1))
    assert contents(result.messages) == messages
    assert result.usage.input_tokens == asked
    assert (result.reason == "interrupted") is denied
