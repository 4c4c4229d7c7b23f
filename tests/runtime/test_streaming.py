"""The text of a run while it is written: whole, in order, and never before a hook that may change it has seen it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import (
    Agent,
    AgentCall,
    AgentResult,
    AgentSession,
    Approve,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    Respond,
    ScriptedModel,
    StepCall,
    StepResult,
    TransientModelError,
    exec_agent,
    interrupt,
    resume_agent,
    stream_agent,
    tool,
)
from hookline.errors import HookUsageError, ModelAnswerError
from tests.tables import for_each

from .scenes import AT_ONCE, Recorder, call, calls

pytestmark = pytest.mark.anyio


class Pieces:
    """A model whose turns are what its stream yields or raises, in order."""

    name = "pieces"
    provider = "test"

    def __init__(self, *turns: Iterable[object]) -> None:
        self.turns = [list(turn) for turn in turns]
        self.closed = 0

    async def respond(self, call: ModelCall) -> ModelResponse:
        raise AssertionError("a model that can stream was asked for a whole answer")

    async def stream(self, call: ModelCall) -> AsyncIterator[Any]:
        try:
            for item in self.turns.pop(0):
                await anyio.lowlevel.checkpoint()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, anyio.Event):
                    item.set()
                    await anyio.sleep_forever()
                yield item
        finally:
            self.closed += 1


def said(text: str) -> ModelResponse:
    return ModelResponse(content=text)


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def agent(model: Any, **more: Any) -> Agent:
    return Agent(id="a", model=model, retry=AT_ONCE, **more)


async def test_text_is_given_as_it_is_written() -> None:
    got: list[str] = []

    result = await exec_agent(agent(Pieces(["Hel", "", "lo", said("Hello")])), "hi", on_token=got.append)

    assert got == ["Hel", "lo"]
    assert (result.reason, result.output) == ("done", "Hello")


async def test_nobody_streams_unless_somebody_reads() -> None:
    class Both(Pieces):
        async def respond(self, call: ModelCall) -> ModelResponse:
            return said("whole")

    assert (await exec_agent(agent(Both()), "hi")).output == "whole"


async def test_a_model_that_cannot_stream_gives_its_text_at_once() -> None:
    class Whole:
        name, provider = "whole", "test"

        async def respond(self, call: ModelCall) -> ModelResponse:
            return said("all of it")

    got: list[str] = []
    await exec_agent(agent(Whole()), "hi", on_token=got.append)

    assert got == ["all of it"]


async def test_an_async_reader_holds_the_model_up() -> None:
    order: list[str] = []

    class Slow(Pieces):
        async def stream(self, call: ModelCall) -> AsyncIterator[Any]:
            for piece in ("a", "b"):
                order.append(f"wrote {piece}")
                yield piece
            yield said("ab")

    async def read(piece: str) -> None:
        await anyio.lowlevel.checkpoint()
        order.append(f"read {piece}")

    await exec_agent(agent(Slow()), "hi", on_token=read)

    assert order == ["wrote a", "read a", "wrote b", "read b"]


async def test_the_events_are_those_of_a_run_without_streaming() -> None:
    turns = [calls(call("add", a=1, b=2), content="let me see"), said("three it is")]
    plain, streamed = Recorder(), Recorder()

    await exec_agent(agent(ScriptedModel(turns), tools=[add]), "hi", hooks=[plain.hooks])
    await exec_agent(agent(ScriptedModel(turns), tools=[add]), "hi", hooks=[streamed.hooks], on_token=lambda _: None)

    assert streamed.names() == plain.names()


@for_each("kind", [ModelCall, StepCall, AgentCall])
@for_each("how", ["after", "around"])
async def test_nothing_is_given_before_a_hook_that_may_change_it_has_seen_it(kind: Any, how: str) -> None:
    log: list[str] = []
    hooks = Hooks("guard")
    if how == "after":

        @hooks.after(kind)
        def look(call: Any, result: Any) -> None:
            log.append("judged")

    else:

        @hooks.around(kind)
        async def surround(call: Any, call_next: Any) -> Any:
            result = await call_next(call)
            log.append("judged")
            return result

    await exec_agent(agent(Pieces(["a", "b", said("ab")])), "hi", hooks=[hooks], on_token=log.append)

    assert log == ["judged", "a", "b"]


async def test_incremental_release_gives_it_as_it_comes() -> None:
    log: list[str] = []
    hooks = Hooks("guard")

    @hooks.after(ModelCall)
    def look(call: Any, result: Any) -> None:
        log.append("judged")

    model = Pieces(["a", "b", said("ab")])
    await exec_agent(agent(model), "hi", hooks=[hooks], on_token=log.append, release="incremental")

    assert log == ["a", "b", "judged"]


async def test_hooks_that_cannot_change_the_answer_keep_nothing_back() -> None:
    log: list[str] = []
    hooks = Hooks("look")
    hooks.before(ModelCall)(lambda call: None)
    hooks.guard(ModelCall)(lambda call: None)

    @hooks.after(ModelCall, wait=False)
    def note(call: Any, result: Any) -> None:
        log.append("noted")

    await exec_agent(agent(Pieces(["a", said("a")])), "hi", hooks=[hooks], on_token=log.append)

    assert log == ["a", "noted"]


@for_each("kind", [ModelCall, StepCall, AgentCall])
async def test_withheld_text_is_given_to_nobody(kind: Any) -> None:
    hooks = Hooks("guard")
    hooks.after(kind)(lambda call, result: Deny("secret"))
    got: list[str] = []

    result = await exec_agent(agent(Pieces(["se", "cret", said("secret")])), "hi", hooks=[hooks], on_token=got.append)

    assert got == []
    assert result.reason == "interrupted"


async def test_text_of_another_tenants_hooks_is_not_kept_back() -> None:
    hooks = Hooks("theirs", tenant_id="other")
    hooks.after(ModelCall)(lambda call, result: Deny("theirs"))
    got: list[str] = []

    await exec_agent(agent(Pieces(["a", said("a")])), "hi", hooks=[hooks], on_token=got.append, tenant_id="mine")

    assert got == ["a"]


async def test_changed_text_is_given_changed() -> None:
    hooks = Hooks("redact")

    @hooks.after(ModelCall)
    def redact(call: Any, result: ModelResponse) -> ModelResponse:
        return ModelResponse(content=result.content.replace("4711", "…"))

    got: list[str] = []
    model = Pieces(["it is ", "4711", said("it is 4711")])
    await exec_agent(agent(model), "hi", hooks=[hooks], on_token=got.append)

    assert got == ["it is …"]


async def test_an_answer_of_a_hook_is_text_too() -> None:
    hooks = Hooks("cache")
    hooks.before(ModelCall)(lambda call: Respond(said("from the cache")))
    got: list[str] = []

    await exec_agent(agent(Pieces()), "hi", hooks=[hooks], on_token=got.append)

    assert got == ["from the cache"]


async def test_what_hooks_make_of_a_step_is_kept_for_those_of_the_run() -> None:
    hooks = Hooks("redact")
    got: list[str] = []

    @hooks.after(StepCall)
    def redact(call: StepCall, result: StepResult) -> StepResult:
        return msgspec.structs.replace(result, content=result.content.replace("secret", "****"))

    @hooks.after(AgentCall)
    def look(call: AgentCall, result: AgentResult) -> None:
        return None

    turns = [calls(call("add", a=1, b=2), content="secret "), said("end")]
    await exec_agent(agent(ScriptedModel(turns), tools=[add]), "hi", hooks=[hooks], on_token=got.append)

    assert got == ["**** ", "end"]


@pytest.mark.parametrize("release", ["checked", "incremental"])
async def test_an_answer_in_place_of_a_step_is_text_too(release: Any) -> None:
    hooks = Hooks("answers")
    got: list[str] = []

    @hooks.before(StepCall)
    def answer(call: StepCall) -> Respond:
        return Respond(StepResult(should_continue=False, content="of a hook"))

    await exec_agent(agent(Pieces()), "hi", hooks=[hooks], on_token=got.append, release=release)

    assert got == ["of a hook"]


async def test_text_between_tool_calls_is_given_too() -> None:
    hooks = Hooks("output")
    hooks.after(AgentCall)(lambda call, result: None)
    turns = [calls(call("add", a=1, b=2), content="let me see. "), said("three")]
    got: list[str] = []

    await exec_agent(agent(ScriptedModel(turns), tools=[add]), "hi", hooks=[hooks], on_token=got.append)

    assert got == ["let ", "me ", "see. ", "three"]


async def test_a_cut_stream_of_which_nothing_was_given_is_tried_again() -> None:
    hooks = Hooks("guard")
    hooks.after(ModelCall)(lambda call, result: None)
    model = Pieces(["half", TransientModelError("cut")], ["whole", said("whole")])
    got: list[str] = []

    result = await exec_agent(agent(model), "hi", hooks=[hooks], on_token=got.append)

    assert (result.reason, got) == ("done", ["whole"])


async def test_a_cut_stream_of_which_something_was_given_is_one_error() -> None:
    model = Pieces(["half", TransientModelError("cut")], ["whole", said("whole")])
    events, got = Recorder(), list[str]()

    result = await exec_agent(agent(model), "hi", hooks=[events.hooks], on_token=got.append)

    assert (result.reason, got) == ("error", ["half"])
    assert isinstance(result.error, TransientModelError)
    assert events.names() == ["beforeStep", "afterStep", "onComplete", "onError"]


@for_each(
    ("turn", "problem"),
    [
        (["a"], "ended without a ModelResponse"),
        ([said("a"), "b"], "went on with 'b'"),
        (["a", 7], "holds 7"),
    ],
)
async def test_a_stream_that_is_none_is_one_error_of_the_model(turn: list[object], problem: str) -> None:
    model = Pieces(turn)

    result = await exec_agent(agent(model), "hi", on_token=lambda _: None)

    assert isinstance(result.error, ModelAnswerError)
    assert problem in str(result.error)
    assert model.closed == 1


async def test_a_stream_that_is_a_coroutine_says_what_it_should_be() -> None:
    class Wrong(Pieces):
        async def stream(self, call: ModelCall) -> Any:  # type: ignore[override]
            return "text"

    result = await exec_agent(agent(Wrong()), "hi", on_token=lambda _: None)

    assert "instead of an async iterator" in str(result.error)


async def test_an_interrupted_stream_is_closed_and_gives_no_more() -> None:
    hanging = anyio.Event()
    model = Pieces(["a", hanging, "b", said("ab")])
    got: list[str] = []

    async with anyio.create_task_group() as group:
        results = []

        async def run() -> None:
            results.append(await exec_agent(agent(model), "hi", operation_id="op", on_token=got.append))

        group.start_soon(run)
        await hanging.wait()
        interrupt("op")

    assert (results[0].reason, got, model.closed) == ("interrupted", ["a"], 1)


async def test_a_reader_that_fails_is_told_of_once_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def read(piece: str) -> None:
        raise OSError("the client has gone")

    with caplog.at_level(logging.ERROR, "hookline"):
        result = await exec_agent(agent(Pieces(["a", "b", said("ab")])), "hi", on_token=read)

    assert (result.reason, result.output) == ("done", "ab")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # only there can code raise a cancellation by itself
@pytest.mark.parametrize("kind", [None, ModelCall, AgentCall])
async def test_a_reader_that_ends_as_cancelled_harms_nobody_either(kind: Any) -> None:
    keeps = Hooks("keeps")
    if kind is not None:
        keeps.after(kind)(lambda call, result: None)

    async def read(piece: str) -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    result = await exec_agent(agent(Pieces(["a", "b", said("ab")])), "hi", hooks=[keeps], on_token=read)

    assert (result.reason, result.output) == ("done", "ab")


@pytest.mark.parametrize("wrong", [{"on_token": "print"}, {"release": "soon"}])
async def test_a_reader_that_cannot_work_is_refused_before_the_run(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError, match=next(iter(wrong))):
        await exec_agent(agent(Pieces()), "hi", **wrong)


async def test_sub_agents_write_to_their_caller_only() -> None:
    child = Agent(id="child", model=ScriptedModel([said("for my caller")]))
    turns = [calls(call("child", toolset="agent", instruction="go")), said("for you")]
    got: list[str] = []

    await exec_agent(agent(ScriptedModel(turns), sub_agents=[child]), "hi", on_token=got.append)

    assert "".join(got) == "for you"


async def test_sessions_and_resumed_runs_give_their_text_too() -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    def payer() -> Agent:
        return agent(ScriptedModel([calls(call("pay", amount=1), content="may I? "), said("done")]), tools=[pay])

    got: list[str] = []
    one = payer()
    await exec_agent(one, "pay", operation_id="op", on_token=got.append)
    await resume_agent(one, "op", [Approve("t1")], on_token=got.append)
    async with AgentSession(payer()) as session:
        await session.run("pay", on_token=got.append)
        await session.resume([Approve("t1")], on_token=got.append)

    assert "".join(got) == "may I? done" * 2


@settings(max_examples=150, deadline=None)
@example(pieces=["secret"], kind=AgentCall, incremental=False, changed="")
@example(pieces=["secret"], kind=StepCall, incremental=False, changed="")
@example(pieces=["secret"], kind=ModelCall, incremental=False, changed="")
@given(
    pieces=st.lists(st.text(max_size=5), max_size=6),
    kind=st.sampled_from([None, ModelCall, StepCall, AgentCall]),
    incremental=st.booleans(),
    changed=st.one_of(st.none(), st.text(max_size=5)),
)
def test_what_is_given_is_what_the_run_says(
    pieces: list[str], kind: Any, incremental: bool, changed: str | None
) -> None:
    """The text that a reader gets is the output of the run, but in incremental release what the model wrote, if it did."""
    hooks = Hooks("change")
    text = "".join(pieces)
    if kind is not None:

        @hooks.after(kind)
        def change(call: Any, result: Any) -> Any:
            if changed is None:
                return None
            field = "output" if kind is AgentCall else "content"
            return type(result)(
                **{name: changed if name == field else getattr(result, name) for name in result.__struct_fields__}
            )

    got: list[str] = []

    async def main() -> Any:
        model = Pieces([*pieces, said(text)])
        release: Any = "incremental" if incremental else "checked"
        return await exec_agent(agent(model), "hi", hooks=[hooks], on_token=got.append, release=release)

    result = anyio.run(main)

    assert "".join(got) == (text if incremental and text else result.output)


class TestIterator:
    async def test_it_gives_the_text_and_then_the_result(self) -> None:
        async with stream_agent(agent(Pieces(["a", "b", said("ab")])), "hi") as text:
            got = [piece async for piece in text]

        assert got == ["a", "b"]
        assert (text.result.reason, text.result.operation_id) == ("done", text.operation_id)

    async def test_leaving_it_early_interrupts_the_run(self) -> None:
        model = Pieces(["a", anyio.Event(), said("ab")])
        async with stream_agent(agent(model), "hi") as text:
            async for _piece in text:
                break

        assert text.result.reason == "interrupted"
        assert model.closed == 1

    async def test_leaving_it_with_an_error_raises_that_error_alone(self) -> None:
        with pytest.raises(KeyError, match="mine"):
            async with stream_agent(agent(Pieces(["a", anyio.Event(), said("ab")])), "hi") as text:
                async for _piece in text:
                    raise KeyError("mine")

        assert text.result.reason == "interrupted"

    async def test_a_cancelled_reader_leaves_nothing_running(self) -> None:
        hanging, model = anyio.Event(), None
        model = Pieces([hanging, said("ab")])
        ended = Recorder()

        async def read() -> None:
            async with stream_agent(agent(model), "hi", hooks=[ended.hooks]) as text:
                async for _piece in text:
                    pass

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await hanging.wait()
            group.cancel_scope.cancel()

        assert ended.names()[-1] == "onComplete"
        assert model.closed == 1

    async def test_an_error_of_the_model_ends_the_text(self) -> None:
        async with stream_agent(agent(Pieces(["a", ValueError("broken")])), "hi") as text:
            got = [piece async for piece in text]

        assert (got, text.result.reason) == (["a"], "error")

    async def test_misuse_is_raised_where_the_text_is_read(self) -> None:
        with pytest.raises(HookUsageError, match="prompt"):
            async with stream_agent(agent(Pieces()), 7) as text:  # type: ignore[arg-type]
                async for _piece in text:
                    pass

        with pytest.raises(HookUsageError, match=r"no result because it could not begin: A prompt must be"):
            _ = text.result

    async def test_it_is_entered_once_and_read_inside(self) -> None:
        text = stream_agent(agent(Pieces([said("a")])), "hi")
        with pytest.raises(HookUsageError, match="inside"):
            await anext(text)
        async with text:
            with pytest.raises(HookUsageError, match="no result"):
                _ = text.result
            with pytest.raises(HookUsageError, match="already entered"):
                await text.__aenter__()
            async for _piece in text:
                pass

    async def test_several_tasks_may_read_and_each_piece_comes_once(self) -> None:
        got: list[str] = []

        async with stream_agent(agent(Pieces(["a", "b", said("ab")])), "hi") as text:

            async def read() -> None:
                got.extend([piece async for piece in text])

            with anyio.fail_after(5):
                async with anyio.create_task_group() as group:
                    group.start_soon(read)
                    group.start_soon(read)

        assert sorted(got) == ["a", "b"]
