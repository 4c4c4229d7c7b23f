"""`ModelTape`: what it records of model calls, how it finds them again, and what its files hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    Agent,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolRequest,
    Usage,
    exec_agent,
    tool,
)
from hookline.errors import HookUsageError
from hookline.evals.errors import CassetteConflictError, CassetteError, CassetteFileError, CassetteVersionError
from hookline.evals.tapes import ModelTape

pytestmark = pytest.mark.anyio

KEY = "sk-proj-Zq83hTq0LoopbackSecret7"


@tool
def price(item: str) -> str:
    """Return the price of an item."""
    return "4 EUR"


def said(text: str, *calls: ToolRequest) -> ModelResponse:
    usage = Usage(input_tokens=10, output_tokens=5, cost_usd=0.25)
    return ModelResponse(content=text, tool_calls=list(calls), usage=usage)


def agent(*turns: Any, name: str = "loop-1", **options: Any) -> Agent:
    given = {"id": "clerk", "tools": [price], "instructions": "Be a clerk.", **options}
    return Agent(model=ScriptedModel(turns[0] if len(turns) == 1 and callable(turns[0]) else turns, name=name), **given)


def buyer(call_id: str = "call_x") -> Agent:
    return agent(said("", ToolRequest("price", {"item": "tea"}, tool_call_id=call_id)), said("It is 4 EUR."))


async def recorded(path: Path, made: Agent, prompt: str = "What does tea cost?") -> None:
    with ModelTape(path=path, mode="rewrite") as tape:
        await exec_agent(made, prompt, hooks=[tape.hooks])


async def test_a_replay_gives_the_answers_with_their_usage_and_asks_nobody(tmp_path: Path) -> None:
    await recorded(tmp_path / "t.yaml", buyer("provider-7"))
    tape = ModelTape(path=tmp_path / "t.yaml", mode="none")

    result = await exec_agent(agent(), "What does tea cost?", hooks=[tape.hooks])

    assert (result.reason, result.output) == ("done", "It is 4 EUR.")
    assert result.usage == Usage(input_tokens=20, output_tokens=10, cost_usd=0.5) == tape.saved
    assert (tape.replayed, tape.asked, tape.misses, tape.unused()) == (2, 0, [], [])
    assert [call.tool_call_id for message in result.messages for call in message.tool_calls] == ["provider-7"]


async def test_the_question_is_what_the_model_is_asked_after_all_other_hooks() -> None:
    tape, hooks = ModelTape(), Hooks("later")

    @hooks.before(ModelCall, priority=900)
    def translate(call: ModelCall) -> ModelCall:
        messages = [Message(role="user", content="Tee?")]
        return msgspec.structs.replace(call, settings={"temperature": 0.5}, messages=messages)

    await exec_agent(agent(said("4")), "Tea?", hooks=[tape.hooks, hooks])

    (call,) = tape.calls
    assert call.question.settings == {"temperature": 0.5}
    assert call.question.messages == [{"role": "user", "content": "Tee?"}]
    assert call.question.model == "loop-1"
    assert [each["tool"] for each in call.question.tools] == ["local/price"]


async def test_a_streamed_call_is_recorded_as_its_response_and_replayed_as_a_stream(tmp_path: Path) -> None:
    path, first, again = tmp_path / "t.yaml", list[str](), list[str]()
    with ModelTape(path=path) as tape:
        await exec_agent(agent(said("It is 4 EUR.")), "Tea?", hooks=[tape.hooks], on_token=first.append)

    tape = ModelTape(path=path, mode="none")
    await exec_agent(agent(), "Tea?", hooks=[tape.hooks], on_token=again.append)

    assert len(first) > 1
    assert "".join(first) == "".join(again) == "It is 4 EUR."


async def test_the_nth_equal_question_gets_the_nth_answer(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    with ModelTape(path=path) as tape:
        for answer in ("one", "two"):
            await exec_agent(agent(said(answer)), "Tea?", hooks=[tape.hooks])

    tape = ModelTape(path=path, mode="none")
    results = [await exec_agent(agent(), "Tea?", hooks=[tape.hooks]) for _ in range(3)]
    assert [each.output for each in results[:2]] == ["one", "two"]
    assert results[2].reason != "done"
    assert "it was recorded 2 times, and is asked once more" in tape.misses[0]

    tape = ModelTape(path=path, mode="none", allow_repeats=True)
    assert [(await exec_agent(agent(), "Tea?", hooks=[tape.hooks])).output for _ in range(4)] == [
        *("one", "two", "two", "two")
    ]


async def test_mode_all_replaces_answers_one_by_one_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    with ModelTape(path=path) as tape:
        for prompt, answer in (("Tea?", "one"), ("Tea?", "two"), ("Juice?", "three")):
            await exec_agent(agent(said(answer)), prompt, hooks=[tape.hooks])

    with ModelTape(path=path, mode="all") as tape:
        await exec_agent(agent(said("another")), "Tea?", hooks=[tape.hooks])

    assert [call.answer.content for call in ModelTape(path=path).calls] == ["another", "two", "three"]
    played = ModelTape(path=path, mode="none")
    outputs = [(await exec_agent(agent(), "Tea?", hooks=[played.hooks])).output for _ in range(2)]
    assert outputs == ["another", "two"]


async def test_sub_agents_are_on_the_tape() -> None:
    tape = ModelTape()
    helper = agent(said("4"), id="helper")
    boss = agent(said("", ToolRequest("agent/helper", {"instruction": "Ask."})), said("Done."), sub_agents=[helper])

    await exec_agent(boss, "Tea?", hooks=[tape.hooks])

    assert [call.agent for call in tape.calls] == ["", "", "helper"]


async def test_secrets_are_not_recorded_and_make_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    call = ToolRequest("price", {"item": "tea", "password": "hunter2"}, tool_call_id="1")
    await recorded(path, agent(said(f"I use {KEY}", call), said("Done.")), f"My key is {KEY}. Tea?")

    text = path.read_text()
    assert KEY not in text
    assert "hunter2" not in text
    tape = ModelTape(path=path, mode="none")
    result = await exec_agent(agent(), f"My key is {KEY.replace('q', 'r')}. Tea?", hooks=[tape.hooks])
    assert result.output == "Done."


@pytest.mark.parametrize(
    ("changed", "explained"),
    [
        ({"name": "loop-2"}, "it was to model 'loop-1'"),
        ({"tools": []}, "it also offered local/price"),
        ({"instructions": "Be a poet."}, '+  "content": "Be a poet."'),
    ],
)
async def test_a_miss_names_the_nearest_question_and_what_differs(
    tmp_path: Path, changed: dict[str, Any], explained: str
) -> None:
    await recorded(tmp_path / "t.yaml", buyer())
    tape = ModelTape(path=tmp_path / "t.yaml", mode="none")

    result = await exec_agent(agent(**changed), "What does tea cost?", hooks=[tape.hooks])

    assert result.reason != "done"
    assert "The model was not asked. The nearest recorded question is call 1 of 2" in tape.misses[0]
    assert explained in tape.misses[0]
    assert result.denied is not None
    assert result.denied.reason == tape.misses[0]


async def test_a_tape_whose_tool_answered_differently_shows_which_message_differs(tmp_path: Path) -> None:
    await recorded(tmp_path / "t.yaml", buyer())

    @tool(name="price")
    def cheaper(item: str) -> str:
        """Return the price of an item."""
        return "3 EUR"

    tape = ModelTape(path=tmp_path / "t.yaml", mode="none")
    await exec_agent(agent(tools=[cheaper]), "What does tea cost?", hooks=[tape.hooks])

    assert "The nearest recorded question is call 2 of 2, and message 4 of 4 (tool) differs" in tape.misses[0]


async def test_an_error_of_the_model_is_not_recorded(tmp_path: Path) -> None:
    with ModelTape(path=tmp_path / "t.yaml") as tape:
        result = await exec_agent(agent(ValueError("broken")), "Tea?", hooks=[tape.hooks])

    assert str(result.error) == "broken"
    assert len(tape) == 0


async def test_the_file_holds_each_message_and_tool_once_and_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    with ModelTape(path=path) as tape:
        await exec_agent(buyer(), "What does tea cost?", hooks=[tape.hooks])
    text = path.read_text()

    assert text.count("What does tea cost?") == 1
    assert text.count("Return the price of an item.") == 1
    assert "continues: 1" in text
    assert ModelTape(path=path).calls == tape.calls
    assert ModelTape(path=path).save() is None


async def test_equal_runs_give_equal_files_whatever_the_ids(tmp_path: Path) -> None:
    files = []
    for call_id in ("a", "b"):
        await recorded(tmp_path / f"{call_id}.yaml", buyer(call_id))
        text = (tmp_path / f"{call_id}.yaml").read_text()
        files.append(text.replace(f"id: {call_id}\n", "id: x\n").replace(f"name: {call_id}\n", ""))
    assert files[0] == files[1]


TAPE = """\
hookline_tape: 1
name: shop
tools:
- tool: local/price
  description: Return the price of an item.
  schema: {type: object}
calls:
- model: loop-1
  tools: [local/price]
  messages:
  - role: user
    content: Tea?
  answer:
    content: It is 4 EUR.
    usage: {input_tokens: 1, output_tokens: 2, cost_usd: 0.5}
"""


@pytest.mark.parametrize(
    ("before", "after", "line", "problem"),
    [
        ("hookline_tape: 1", "hookline_cassette: 1", 1, "it does not begin with `hookline_tape`"),
        ("hookline_tape: 1", "hookline_tape: one", 1, "`hookline_tape` is the format's version, a whole number"),
        ("hookline_tape: 1", "hookline_tape: 2", 1, "its format version is 2, and this hookline reads 1"),
        ("name: shop", "names: shop", 2, "`names` is not a field of a tape"),
        ("name: shop", "name: 7", 2, "`name` is text; got 7. Put it in quotes"),
        ("tools: [local/price]", "tools: [local/prize]", 9, "the tool 'local/prize' is not among the `tools`"),
        ("  tools: [local/price]", "  continues: 1", 9, "`continues` is the number of an earlier call"),
        ("- model: loop-1", "- models: loop-1", 8, "`models` is not a field of a call"),
        ("    content: Tea?\n", "", 10, "a message cannot be read: Object missing required field `content`"),
        ("  description: Return the price of an item.\n", "", 4, "a tool cannot be read"),
        ("    usage: {input_tokens: 1, output_tokens: 2, cost_usd: 0.5}\n", "", 13, "missing required field `usage`"),
        ("output_tokens: 2", "output_tokens: two", 13, "an answer cannot be read: Expected `int`, got `str`"),
        (TAPE[TAPE.index("  answer:") :], "", 8, "this call has no `answer`"),
        (" cost_usd: 0.5}\n", " cost_usd: 0.5}", 15, "it is cut off in its last line"),
        (TAPE[TAPE.index("calls:") :], "calls: none\n", 7, "`calls` is a list; got 'none'"),
    ],
)
def test_a_file_that_is_no_whole_tape_is_refused_with_its_line(
    tmp_path: Path, before: str, after: str, line: int, problem: str
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(TAPE.replace(before, after, 1))

    with pytest.raises(CassetteFileError) as raised:
        ModelTape(path=path, mode="none")

    assert problem in str(raised.value)
    assert raised.value.line == line
    assert str(raised.value).startswith("The tape ")
    assert isinstance(raised.value, CassetteVersionError) == ("version is 2" in problem)


async def test_a_tape_edited_by_hand_is_replayed_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    await recorded(path, agent(said("It is 4 EUR.")), "Tea?")
    path.write_text(path.read_text().replace("It is 4 EUR.", "It is 5 EUR."))

    tape = ModelTape(path=path, mode="none")
    assert (await exec_agent(agent(), "Tea?", hooks=[tape.hooks])).output == "It is 5 EUR."


def test_a_tape_of_another_version_can_be_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(TAPE.replace("hookline_tape: 1", "hookline_tape: 7"))

    assert len(ModelTape(path=path, mode="rewrite")) == 0


async def test_a_file_that_another_process_has_written_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    one, other = ModelTape(path=path), ModelTape(path=path)
    for tape in (one, other):
        await exec_agent(agent(said("4")), "Tea?", hooks=[tape.hooks])
    one.save()
    held = path.read_bytes()

    with pytest.raises(CassetteConflictError, match="The tape 't' was not saved"):
        other.save()
    assert path.read_bytes() == held


async def test_parallel_runs_record_each_of_their_questions_once(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"

    async def answer(call: ModelCall) -> ModelResponse:
        await anyio.lowlevel.checkpoint()
        return said(f"re: {call.messages[-1].content}")

    with ModelTape(path=path) as tape:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(lambda n=number: exec_agent(agent(answer), f"q{n % 10}", hooks=[tape.hooks]))

    tape = ModelTape(path=path, mode="none")
    assert len(tape) == 20
    for number in range(20):
        result = await exec_agent(agent(), f"q{number % 10}", hooks=[tape.hooks])
        assert result.output == f"re: q{number % 10}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelTape(""),
        lambda: ModelTape(mode="replay"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(HookUsageError, match="of a ModelTape is"):
        make()


async def test_a_failure_to_save_does_not_hide_the_error_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    with pytest.raises(ValueError, match="first") as raised, ModelTape(path=path) as tape:
        await exec_agent(agent(said("4")), "Tea?", hooks=[tape.hooks])
        path.write_text("something else")
        raise ValueError("first")
    assert "The tape 't' was not saved" in raised.value.__notes__[0]


def sequence_of(calls: Sequence[Any]) -> list[str]:
    return [call.answer.content for call in calls]


async def test_new_episodes_replays_what_is_known_and_records_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    await recorded(path, agent(said("one")), "Tea?")

    with ModelTape(path=path, mode="new_episodes") as tape:
        outputs = [
            (await exec_agent(agent(said("two")), prompt, hooks=[tape.hooks])).output for prompt in ("Tea?", "Juice?")
        ]

    assert outputs == ["one", "two"]
    assert (tape.replayed, tape.asked) == (1, 1)
    assert sequence_of(ModelTape(path=path).calls) == ["one", "two"]


async def test_a_tape_error_is_a_cassette_error() -> None:
    assert issubclass(CassetteConflictError, CassetteError)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["Tea?", "Juice?", "1", "1.0", " "]), st.text(max_size=12)), max_size=8))
def test_a_replay_gives_the_answers_of_the_recording_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, said_in_order: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("law") / "t.yaml"

    async def ask_all(tape: ModelTape, *, answers: bool) -> list[str]:
        outputs = []
        for prompt, answer in said_in_order:
            made = agent(ModelResponse(content=answer)) if answers else agent()
            outputs.append((await exec_agent(made, prompt, hooks=[tape.hooks])).output)
        return outputs

    async def check() -> None:
        with ModelTape(path=path, redact=None) as tape:
            first = await ask_all(tape, answers=True)
        if said_in_order:
            again = ModelTape(path=path, mode="none", redact=None)
            assert await ask_all(again, answers=False) == first == [answer for _, answer in said_in_order]
            assert again.misses == again.unused() == []
            assert again.calls == tape.calls

    anyio.run(check)
