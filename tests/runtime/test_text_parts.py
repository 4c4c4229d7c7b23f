"""Hooks that judge an answer in parts: readers get all that they let pass, and nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hookline import (
    Agent,
    AgentCall,
    Chain,
    Deny,
    Guide,
    HookExecution,
    Hooks,
    InMemoryStore,
    ModelCall,
    ModelResponse,
    OperationResult,
    PartialResponse,
    StepCall,
    TextParts,
    ToolCall,
    TransientModelError,
    Usage,
    exec_agent,
    interrupt,
    signals,
    tool,
)
from hookline.errors import HookDefinitionError
from hookline.interceptors import open_text_judge
from tests.tables import for_each

from .scenes import AT_ONCE, call, calls
from .test_streaming import Pieces, said

pytestmark = pytest.mark.anyio

SECRET = "4711-XY"
EACH = TextParts(max_chars=1)


async def read(pieces: Sequence[Any], hooks: Sequence[Hooks], **more: Any) -> tuple[list[str], OperationResult]:
    """Return what a reader got of an answer, and the result of the run."""
    got: list[str] = []
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    turn = pieces if any(not isinstance(piece, str) for piece in pieces) else [*pieces, said(text)]
    agent = Agent(id="a", model=Pieces(turn), retry=AT_ONCE)
    result = await exec_agent(agent, "hi", hooks=hooks, on_token=got.append, **more)
    return got, result


def judging(judge: Callable[[ModelResponse], Any], parts: TextParts = EACH, **options: Any) -> Hooks:
    """A bundle with one hook that judges text in parts."""
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=parts, id="judge", **options)
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


def deny_secret(response: ModelResponse) -> Deny | None:
    return Deny("a secret") if SECRET in response.content else None


def mask_secret(response: ModelResponse) -> ModelResponse:
    return replace(response, content=response.content.replace(SECRET, "***"))


async def test_text_is_released_as_soon_as_it_is_judged() -> None:
    log: list[str] = []

    def judge(response: ModelResponse) -> None:
        log.append(f"judged {response.content}")

    agent = Agent(id="a", model=Pieces(["Hel", "lo", said("Hello")]))
    await exec_agent(agent, "hi", hooks=[judging(judge)], on_token=log.append)

    assert log == ["judged Hel", "Hel", "judged Hello", "lo", "judged Hello"]


async def test_the_hook_sees_which_text_is_new_and_the_whole_answer_at_the_end() -> None:
    seen: list[tuple[type, str, str, int | None]] = []

    def judge(response: ModelResponse) -> None:
        judged = response.judged if isinstance(response, PartialResponse) else None
        seen.append((type(response), response.content, response.finish_reason, judged))

    await read(["Hel", "lo"], [judging(judge)])

    assert seen == [
        (PartialResponse, "Hel", "incremental", 0),
        (PartialResponse, "Hello", "incremental", 3),
        (ModelResponse, "Hello", "stop", None),
    ]


async def test_the_hook_is_asked_once_for_so_many_characters() -> None:
    seen: list[str] = []

    got, _ = await read(list("abcdefgh"), [judging(lambda r: seen.append(r.content), TextParts(max_chars=3))])

    assert seen == ["abc", "abcdef", "abcdefgh"]
    assert got == ["abc", "def", "gh"]


async def test_a_denial_withholds_what_follows_and_ends_the_run() -> None:
    model = Pieces(["public, ", f"{SECRET}", " and a harmless tail", said("?")])
    got: list[str] = []

    result = await exec_agent(Agent(id="a", model=model), "hi", hooks=[judging(deny_secret)], on_token=got.append)

    assert got == ["public, "]
    assert (result.reason, result.output) == ("interrupted", "")
    assert result.denied is not None
    assert (result.denied.hook_id, result.denied.reason) == ("judge", "a secret")
    assert model.closed == 1  # the rest of the stream is not read


async def test_what_is_held_is_never_given_if_it_turns_out_to_be_a_secret() -> None:
    hooks = judging(deny_secret, TextParts(hold=len(SECRET) - 1, max_chars=1))

    got, result = await read(["the key is 47", "11-", "XY"], [hooks])

    assert "".join(got) == "the key is "[: len("".join(got))]
    assert "47" not in "".join(got)
    assert result.reason == "interrupted"


async def test_sentences_are_held_until_they_end() -> None:
    hooks = judging(lambda r: None, TextParts(hold="sentence", max_chars=1))

    got, _ = await read(["One. Tw", "o is 2", ".5! Th", "ree"], [hooks])

    assert got == ["One. ", "Two is 2.5! ", "Three"]


async def test_rewritten_text_is_given_rewritten() -> None:
    hooks = judging(mask_secret, TextParts(hold=len(SECRET) - 1, max_chars=1))

    got, result = await read(["the key is 47", "11-", "XY, keep ", "it well"], [hooks])

    assert "".join(got) == result.output == "the key is ***, keep it well"
    assert len(got) > 1


async def test_a_rewrite_of_text_that_readers_have_denies_the_answer() -> None:
    hooks = judging(mask_secret, EACH)

    got, result = await read(["the key is 47", "11-XY", " and more"], [hooks])

    assert got == ["the key is 47"]
    assert result.denied is not None
    assert "changed text that readers already have" in result.denied.reason


@pytest.mark.parametrize("on_error", ["closed", "open"])
async def test_a_rewrite_at_the_end_of_text_that_readers_have_denies_the_answer(on_error: Any) -> None:
    def judge(response: ModelResponse) -> ModelResponse | None:
        return None if isinstance(response, PartialResponse) else replace(response, content="other")

    got, result = await read(["some text"], [judging(judge, EACH, on_error=on_error)])

    assert got == ["some text"]
    assert (result.reason, result.output) == ("interrupted", "")


async def test_a_hook_judges_what_the_hooks_inside_of_it_have_released() -> None:
    seen: list[str] = []
    inner, outer = Hooks("inner", priority=900), Hooks("outer", priority=10)

    @inner.after(ModelCall, parts=TextParts(hold=len(SECRET) - 1, max_chars=1))
    def mask(call: ModelCall, response: ModelResponse) -> ModelResponse:
        return mask_secret(response)

    @outer.after(ModelCall, parts=EACH)
    def look(call: ModelCall, response: ModelResponse) -> Deny | None:
        seen.append(response.content)
        return deny_secret(response)

    got, result = await read(["key 4711", "-XY is masked", " for readers"], [outer, inner])

    assert "".join(got) == result.output == "key *** is masked for readers"
    assert all("4711" not in text for text in seen)


@pytest.mark.parametrize("how", ["after", "around"])
async def test_a_hook_that_judges_whole_answers_holds_all_text(how: str) -> None:
    hooks, log = judging(lambda r: None), list[str]()
    if how == "after":
        hooks.after(ModelCall)(lambda call, response: log.append("judged"))
    else:

        @hooks.around(ModelCall)
        async def surround(call: Any, call_next: Any) -> Any:
            log.append("judged")
            return await call_next(call)

    agent = Agent(id="a", model=Pieces(["a", "b", said("ab")]))
    await exec_agent(agent, "hi", hooks=[hooks], on_token=log.append)

    assert log == ["judged", "a", "b"]


@pytest.mark.parametrize("kind", [StepCall, AgentCall])
async def test_hooks_of_the_run_hold_text_unless_they_say_that_they_do_not(kind: Any) -> None:
    log: list[str] = []
    for hold in (True, False):
        hooks = judging(lambda r: None)
        hooks.after(kind, hold_text=hold)(lambda call, result: log.append("end"))
        agent = Agent(id="a", model=Pieces(["a", "b", said("ab")]))
        await exec_agent(agent, "hi", hooks=[hooks], on_token=log.append)

    assert log == ["end", "a", "b", "a", "b", "end"]


async def test_a_hook_that_holds_no_text_can_still_withhold_the_result() -> None:
    hooks = Hooks("output")
    hooks.after(AgentCall, hold_text=False)(lambda call, result: Deny("no"))

    got, result = await read(["a", "b"], [hooks])

    assert (got, result.output, result.reason) == (["a", "b"], "", "interrupted")


async def test_shadow_hooks_and_hooks_of_other_tenants_judge_no_parts() -> None:
    seen: list[ModelResponse] = []
    shadow, theirs = Hooks("shadow", shadow=True), Hooks("theirs", tenant_id="other")
    shadow.after(ModelCall, parts=EACH)(lambda call, response: seen.append(response))
    theirs.after(ModelCall, parts=EACH)(lambda call, response: seen.append(response))

    got, _ = await read(["a", "b"], [shadow, theirs], tenant_id="mine")

    assert got == ["a", "b"]
    assert [type(each) for each in seen] in ([], [ModelResponse])


def broken(response: ModelResponse) -> None:
    raise RuntimeError("broken")


async def test_a_hook_that_fails_closed_denies_the_answer() -> None:
    got, result = await read(["a", "b"], [judging(broken)])

    assert got == []
    assert result.denied is not None
    assert "RuntimeError: broken" in result.denied.reason


async def test_a_hook_that_fails_open_lets_text_pass() -> None:
    got, result = await read(["a", "b"], [judging(broken, on_error="open")])

    assert (got, result.reason) == (["a", "b"], "done")


@pytest.mark.parametrize(("on_error", "expected"), [("closed", []), ("open", ["a", "b"])])
async def test_a_hook_that_hangs_is_stopped_by_its_timeout(on_error: Any, expected: list[str]) -> None:
    hooks = Hooks("slow")

    @hooks.after(ModelCall, parts=EACH, timeout=0.01, on_error=on_error)
    async def hang(call: ModelCall, response: ModelResponse) -> None:
        if isinstance(response, PartialResponse):
            await anyio.sleep_forever()

    got, _ = await read(["a", "b"], [hooks])

    assert got == expected


async def test_a_cancelled_run_gives_nothing_of_a_part_that_is_being_judged() -> None:
    hooks, began = Hooks("slow"), anyio.Event()
    got: list[str] = []

    @hooks.after(ModelCall, parts=EACH, timeout=60)
    async def judge(call: ModelCall, response: ModelResponse) -> None:
        if "b" in response.content:
            began.set()
            await anyio.sleep_forever()

    model = Pieces(["a", "b", said("ab")])
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await exec_agent(Agent(id="a", model=model), "hi", hooks=[hooks], on_token=got.append)

        group.start_soon(run)
        await began.wait()
        group.cancel_scope.cancel()

    assert got == ["a"]
    assert model.closed == 1


async def test_an_interrupted_run_gives_nothing_further() -> None:
    got: list[str] = []

    def judge(response: ModelResponse) -> None:
        if "b" in response.content:
            interrupt("op")

    agent = Agent(id="a", model=Pieces(["a", "b", "c", said("abc")]))
    result = await exec_agent(agent, "hi", hooks=[judging(judge)], on_token=got.append, operation_id="op")

    assert result.reason == "interrupted"
    assert "c" not in "".join(got)


async def test_a_limit_of_time_judges_while_the_model_says_nothing() -> None:
    judged, given_away = anyio.Event(), anyio.Event()

    class Pausing:
        name = provider = "pausing"

        async def respond(self, call: ModelCall) -> ModelResponse:
            raise AssertionError

        async def stream(self, call: ModelCall) -> AsyncIterator[Any]:
            yield "first"
            await given_away.wait()  # nothing comes until the reader has this
            yield " last"
            yield said("first last")

    got: list[str] = []

    def take(piece: str) -> None:
        got.append(piece)
        given_away.set()

    hooks = judging(lambda r: judged.set(), TextParts(max_chars=1000, max_seconds=0.001))
    with anyio.fail_after(30):
        result = await exec_agent(Agent(id="a", model=Pausing()), "hi", hooks=[hooks], on_token=take)

    assert (got, result.output) == (["first", " last"], "first last")


async def test_a_limit_of_time_ends_a_model_that_says_nothing_after_a_denial() -> None:
    model = Pieces([SECRET, anyio.Event()])

    with anyio.fail_after(30):
        got, result = await read(model.turns[0], [judging(deny_secret, TextParts(max_chars=1000, max_seconds=0.001))])

    assert got == []
    assert result.denied is not None
    assert result.denied.reason == "a secret"


async def test_text_that_comes_while_a_hook_denies_the_text_before_is_not_judged() -> None:
    judging_first, judged = anyio.Event(), list[str]()

    class Pausing:
        name, provider = "pausing", ""

        async def respond(self, call: ModelCall) -> ModelResponse:
            raise AssertionError("it streams")

        async def stream(self, call: ModelCall) -> AsyncIterator[Any]:
            yield "one "
            await judging_first.wait()
            yield "two"  # waits until the hook has judged what came before

    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(max_chars=5, max_seconds=0.001))
    async def look(call: ModelCall, response: ModelResponse) -> Deny:
        judged.append(response.content)
        judging_first.set()
        await anyio.wait_all_tasks_blocked()
        return Deny("no")

    with anyio.fail_after(30):
        result = await exec_agent(Agent(id="a", model=Pausing()), "hi", hooks=[hooks], on_token=lambda piece: None)

    assert judged == ["one "]
    assert (result.reason, result.denied and result.denied.reason) == ("interrupted", "no")


async def test_an_answer_of_which_nothing_was_released_can_be_asked_for_again() -> None:
    model = Pieces(["ba", "d", said("bad")], ["go", "od", said("good")])
    hooks = judging(lambda r: Guide("better") if "ba" in r.content else None)
    got: list[str] = []

    result = await exec_agent(Agent(id="a", model=model), "hi", hooks=[hooks], on_token=got.append)

    assert (got, result.output) == (["go", "od"], "good")


@pytest.mark.parametrize("pieces", [["so ", "bad"], ["so ", "bad", " as this"]])
async def test_an_answer_that_readers_have_begun_to_read_is_not_asked_for_again(pieces: list[str]) -> None:
    hooks = judging(lambda r: Guide("better") if "bad" in r.content else None)

    got, result = await read(pieces, [hooks])

    assert got == ["so "]
    assert result.denied is not None
    assert "readers already have a part of the answer" in result.denied.reason


async def test_a_stream_that_breaks_before_anything_was_released_is_tried_again() -> None:
    model = Pieces(["ha", TransientModelError("cut")], ["whole", said("whole")])
    agent = Agent(id="a", model=model, retry=AT_ONCE)
    got: list[str] = []

    result = await exec_agent(agent, "hi", hooks=[judging(lambda r: None, TextParts(max_chars=4))], on_token=got.append)

    assert (got, result.reason) == (["whole"], "done")


async def test_the_rest_of_a_broken_stream_is_judged_and_not_released() -> None:
    seen: list[tuple[str, str]] = []
    hooks = judging(lambda r: seen.append((r.content, r.finish_reason)), TextParts(max_chars=5))

    got, result = await read(["clean", ", re", TransientModelError("cut")], [hooks])

    assert got == ["clean"]
    assert isinstance(result.error, TransientModelError)
    assert seen == [("clean", "incremental"), ("clean, re", "truncated")]


async def test_tool_calls_of_a_denied_answer_do_not_run() -> None:
    ran: list[str] = []

    @tool
    def act() -> str:
        """Act."""
        ran.append("act")
        return "done"

    answer = calls(call("act"), content=f"I act, {SECRET}")
    model = Pieces(["I act, ", SECRET, answer])
    got: list[str] = []
    await exec_agent(Agent(id="a", model=model, tools=[act]), "hi", hooks=[judging(deny_secret)], on_token=got.append)

    assert (ran, got) == ([], ["I act, "])


async def test_tool_calls_are_judged_by_their_own_guards() -> None:
    hooks, ran = judging(lambda r: None), list[str]()
    hooks.guard(ToolCall)(lambda call: Deny("not this"))

    @tool
    def act() -> str:
        """Act."""
        ran.append("act")
        return "done"

    model = Pieces(["I act", calls(call("act"), content="I act")], ["ok", said("ok")])
    got: list[str] = []
    await exec_agent(Agent(id="a", model=model, tools=[act]), "hi", hooks=[hooks], on_token=got.append)

    assert (ran, got) == ([], ["I act", "ok"])


async def test_nothing_of_a_denied_answer_is_stored() -> None:
    store = InMemoryStore()

    await read(["keep this, ", SECRET, " tail"], [judging(deny_secret)], store=store, operation_id="op")

    state = await store.load("op")
    kept = repr(state)
    assert SECRET not in kept
    assert "tail" not in kept


async def test_the_record_of_an_answer_that_was_denied_in_parts_is_one() -> None:
    records: list[HookExecution] = []

    def note(sender: object, execution: HookExecution) -> None:
        records.append(execution)

    with signals.hook_executed.connected_to(note):
        await read(["a", SECRET], [judging(deny_secret)])
        await read(["a", "b"], [judging(deny_secret)])

    found = [(each.hook_id, each.status, each.decision, each.reason) for each in records if each.hook_id == "judge"]
    assert found == [("judge", "denied", "denied", "a secret"), ("judge", "ok", "", "")]


async def test_a_bare_chain_denies_a_call_whose_text_is_denied() -> None:
    chain = Chain([judging(deny_secret)])
    released: list[str] = []

    async def terminal(given: ModelCall) -> ModelResponse:
        judge = open_text_judge(given)
        assert judge is not None
        released.append(await judge.add("a "))
        released.append(await judge.add(SECRET))
        return said("not reached")

    outcome = await chain.run(ModelCall(messages=[]), terminal)

    assert released == ["a "]
    assert outcome.denied is not None
    assert outcome.result is None
    assert [each.status for each in outcome.executions] == ["denied"]


def test_a_call_that_is_not_running_has_no_judge() -> None:
    assert open_text_judge(ModelCall(messages=[])) is None


@for_each(
    ("kind", "options", "problem"),
    [
        (AgentCall, {"parts": TextParts()}, "only a hook of after(ModelCall)"),
        (ModelCall, {"parts": TextParts(), "wait": False}, "only a hook of after(ModelCall) with wait=True"),
        (ModelCall, {"parts": 5}, "must be a TextParts or None"),
        (ModelCall, {"parts": TextParts(hold=-1)}, "`hold` must be"),
        (ModelCall, {"parts": TextParts(hold="word")}, "`hold` must be"),  # type: ignore[arg-type]
        (ModelCall, {"parts": TextParts(max_chars=0)}, "`max_chars` must be"),
        (ModelCall, {"parts": TextParts(max_seconds=0)}, "`max_seconds` must be a positive number"),
        (ToolCall, {"hold_text": False}, "of ModelCall, StepCall and AgentCall can have False"),
        (AgentCall, {"hold_text": "no"}, "`hold_text` must be"),
    ],
)
def test_what_cannot_work_is_refused(kind: Any, options: dict[str, Any], problem: str) -> None:
    hooks = Hooks("wrong")

    with pytest.raises(HookDefinitionError) as caught:
        hooks.after(kind, **options)(lambda call, result: None)

    assert problem in str(caught.value)


# The laws.

TEXTS = st.lists(st.sampled_from(["a", "b ", ". ", "4", "7", "11", "-", "XY", SECRET, SECRET[:4], "\n"]), max_size=14)


@st.composite
def chunkings(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = "".join(draw(TEXTS))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=10)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


HOLDS = st.one_of(st.integers(len(SECRET) - 1, 20), st.just("sentence"))


@given(chunking=chunkings(), hold=st.integers(len(SECRET) - 1, 20), most=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_law_nothing_of_a_banned_text_is_ever_given(chunking: tuple[str, list[str]], hold: int, most: int) -> None:
    text, pieces = chunking

    got, result = anyio.run(read, [*pieces, said(text)], [judging(deny_secret, TextParts(hold=hold, max_chars=most))])

    before = text.find(SECRET)
    if before < 0:
        assert "".join(got) == text == result.output
    else:
        assert text[:before].startswith("".join(got))
        assert result.denied is not None


@given(chunking=chunkings(), hold=st.integers(0, 20), most=st.integers(1, 12), until=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_law_released_text_was_judged_and_is_a_prefix(
    chunking: tuple[str, list[str]], hold: int, most: int, until: int
) -> None:
    text, pieces = chunking
    longest = 0
    passed: list[int] = []

    def judge(response: ModelResponse) -> Deny | None:
        nonlocal longest
        if len(response.content) > until:
            return Deny("too long")
        longest = len(response.content)
        return None

    got: list[str] = []

    def take(piece: str) -> None:
        got.append(piece)
        passed.append(longest)

    async def main() -> OperationResult:
        hooks = judging(judge, TextParts(hold=hold, max_chars=most))
        return await exec_agent(Agent(id="a", model=Pieces([*pieces, said(text)])), "hi", hooks=[hooks], on_token=take)

    result = anyio.run(main)

    assert text.startswith("".join(got))
    given_so_far = 0
    for piece, judged in zip(got, passed, strict=True):
        given_so_far += len(piece)
        assert given_so_far <= judged
    assert (result.denied is None) == (len(text) <= until)
    if result.denied is None:
        assert "".join(got) == text


@given(chunking=chunkings(), extra=st.integers(0, 10), most=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_law_rewritten_text_is_the_same_in_parts_and_as_a_whole(
    chunking: tuple[str, list[str]], extra: int, most: int
) -> None:
    text, pieces = chunking
    hooks = judging(mask_secret, TextParts(hold=len(SECRET) - 1 + extra, max_chars=most))

    got, result = anyio.run(read, [*pieces, said(text)], [hooks])

    assert "".join(got) == result.output == re.sub(re.escape(SECRET), "***", text)


@pytest.mark.parametrize("kind", ["after", "around"])
async def test_a_hook_of_the_model_call_that_holds_no_text_leaves_it_to_those_that_judge_parts(kind: str) -> None:
    seen, counting = list[str](), Hooks("counting", priority=10)
    if kind == "after":
        counting.after(ModelCall, hold_text=False)(lambda call, response: seen.append(response.content))
    else:

        @counting.around(ModelCall, hold_text=False)
        async def count(call: ModelCall, call_next: Any) -> Any:
            response = await call_next(call)
            seen.append(response.content)
            return response

    got, result = await read(
        ["the ", "key is ", SECRET], [judging(mask_secret, TextParts(hold=6, max_chars=1)), counting]
    )

    assert "".join(got) == result.output == "the key is ***"
    assert len(got) > 1
    assert len(seen) == 1


async def test_text_that_readers_have_is_not_given_again_if_a_hook_that_holds_none_changes_the_answer() -> None:
    changing = Hooks("changing", priority=10)
    changing.after(ModelCall, hold_text=False)(lambda call, response: replace(response, content="other"))

    got, result = await read(["one ", "two"], [judging(lambda r: None), changing])

    assert "".join(got) == "one two"
    assert result.output == "other"


async def test_the_usage_of_a_cut_answer_is_what_the_judge_knows_of_it() -> None:
    known = ModelResponse(usage=Usage(input_tokens=7, output_tokens=2, cost_usd=0.5))

    class Telling(Pieces):
        async def stream(self, call: ModelCall) -> AsyncIterator[Any]:
            judge = open_text_judge(call)
            assert judge is not None
            judge.read_so_far = lambda: known
            await judge.add(SECRET)
            yield "never"

    hooks = [judging(deny_secret)]
    result = await exec_agent(Agent(id="a", model=Telling([])), "hi", hooks=hooks, on_token=lambda text: None)

    assert result.denied is not None
    assert result.usage == known.usage
