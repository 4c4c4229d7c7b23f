"""Streamed answers: when the first piece came and how the others followed, on the `chat` span and as metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import pytest

from hookline import Agent, Hooks, ModelCall, ModelResponse, ScriptedModel, exec_agent, instrumentation
from hookline.errors import ModelError, TransientModelError
from hookline.otel import MetricsHooks
from hookline.runtime import ModelRetry, stream_agent

from .capture import Sink

pytestmark = pytest.mark.anyio

STREAM, FIRST = "gen_ai.request.stream", "gen_ai.response.time_to_first_chunk"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
NEXT_CHUNK = "gen_ai.client.operation.time_per_output_chunk"

BUNDLES = pytest.mark.parametrize("swapped", [False, True], ids=["tracing first", "metrics first"])


class Clock:
    """The clock that streams are measured with; it stands still but for `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(instrumentation, "perf_counter", clock)
    return clock


class Streaming:
    """A model that takes so many seconds for each piece of its answers.

    Args:
        clock: The clock that it advances.
        answers: Of each answer the pieces with their seconds; an exception breaks it off.
    """

    name, provider = "streaming", "tests"

    def __init__(self, clock: Clock, *answers: Iterable[tuple[float, str] | Exception]) -> None:
        self.clock, self.answers = clock, list(answers)

    async def respond(self, call: ModelCall) -> ModelResponse:
        return ModelResponse(content="at once", model="streaming-1")

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        said = ""
        for piece in self.answers.pop(0):
            if isinstance(piece, Exception):
                raise piece
            await anyio.lowlevel.checkpoint()
            self.clock.advance(piece[0])
            said += piece[1]
            yield piece[1]
        yield ModelResponse(content=said, model="streaming-1")


def ignore(piece: str) -> None:
    pass


def agent_of(model: Any) -> Agent:
    return Agent(id="tester", model=model, retry=ModelRetry(first_wait=0.0))


def both(sink: Sink, *, swapped: bool) -> list[Hooks]:
    hooks: list[Hooks] = [sink.tracing(), sink.metrics()]
    return hooks[::-1] if swapped else hooks


def values(sink: Sink, metric: str) -> list[tuple[int, float]]:
    return [(point.count, round(point.sum, 6)) for point in sink.points(metric)]


def span_id(sink: Sink, name: str) -> int:
    context = sink.one(name).context
    assert context is not None
    return context.span_id


@BUNDLES
async def test_the_first_piece_and_the_following_ones_are_timed(clock: Clock, swapped: bool) -> None:
    sink, model = Sink(), Streaming(clock, [(0.5, "Tea "), (0.25, "is "), (0.125, "hot.")])

    await exec_agent(agent_of(model), "go", hooks=both(sink, swapped=swapped), on_token=ignore)

    attributes = dict(sink.one("chat").attributes or {})
    assert (attributes[STREAM], attributes[FIRST]) == (True, 0.5)
    (first,) = sink.points(FIRST_CHUNK)
    assert {each.span_id for each in first.exemplars} == {span_id(sink, "chat")}
    (following,) = sink.points(NEXT_CHUNK)
    assert (first.count, first.sum, following.count, following.sum) == (1, 0.5, 2, 0.375)
    for point in (first, following):
        assert dict(point.attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "tests",
            "gen_ai.request.model": "streaming",
            "gen_ai.response.model": "streaming-1",
        }


async def test_metrics_alone_time_a_stream(clock: Clock) -> None:
    sink, model = Sink(), Streaming(clock, [(2.0, "a"), (1.0, "b")])

    await exec_agent(agent_of(model), "go", hooks=[sink.metrics()], on_token=ignore)

    assert (values(sink, FIRST_CHUNK), values(sink, NEXT_CHUNK)) == ([(1, 2.0)], [(1, 1.0)])


@pytest.mark.parametrize("reads", [False, True], ids=["nobody reads", "the model cannot stream"])
async def test_an_answer_that_is_not_streamed_has_no_times(clock: Clock, reads: bool) -> None:
    sink, model = Sink(), Streaming(clock)
    whole: Any = type("Whole", (), {"name": "whole", "provider": "tests", "respond": model.respond})()

    agent, options = (agent_of(whole), {"on_token": ignore}) if reads else (agent_of(model), dict[str, Any]())
    await exec_agent(agent, "go", hooks=both(sink, swapped=False), **options)

    assert {STREAM, FIRST}.isdisjoint(sink.one("chat").attributes or {})
    assert (sink.points(FIRST_CHUNK), sink.points(NEXT_CHUNK)) == ([], [])


async def test_an_answer_without_text_is_streamed_but_has_no_first_piece(clock: Clock) -> None:
    sink, model = Sink(), Streaming(clock, [])

    await exec_agent(agent_of(model), "go", hooks=both(sink, swapped=False), on_token=ignore)

    attributes = dict(sink.one("chat").attributes or {})
    assert (attributes[STREAM], FIRST in attributes, sink.points(FIRST_CHUNK)) == (True, False, [])


async def test_an_answer_that_is_tried_again_is_timed_from_its_own_request(clock: Clock) -> None:
    sink = Sink()
    model = Streaming(clock, [TransientModelError("busy")], [(0.75, "Tea"), (0.25, "!")])
    clock.advance(40)

    result = await exec_agent(agent_of(model), "go", hooks=both(sink, swapped=False), on_token=ignore)

    assert result.output == "Tea!"
    assert (sink.one("chat").attributes or {})[FIRST] == 0.75
    assert (values(sink, FIRST_CHUNK), values(sink, NEXT_CHUNK)) == ([(1, 0.75)], [(1, 0.25)])


async def test_a_stream_that_breaks_keeps_the_time_of_its_first_piece(clock: Clock) -> None:
    sink, model = Sink(), Streaming(clock, [(0.5, "Tea "), ModelError("gone")])

    result = await exec_agent(agent_of(model), "go", hooks=both(sink, swapped=False), on_token=ignore)

    assert result.reason == "error"
    attributes = dict(sink.one("chat").attributes or {})
    assert (attributes[STREAM], attributes[FIRST], attributes["error.type"]) == (True, 0.5, "ModelError")
    assert (values(sink, FIRST_CHUNK), values(sink, NEXT_CHUNK)) == ([(1, 0.5)], [])


async def test_a_stream_that_is_left_early_keeps_the_time_of_its_first_piece(clock: Clock) -> None:
    sink, model = Sink(), Streaming(clock, [(0.5, "Tea "), (0.25, "is "), (0.25, "hot.")])

    async with stream_agent(agent_of(model), "go", hooks=both(sink, swapped=False)) as run:
        async for _ in run:
            break

    attributes = dict(sink.one("chat").attributes or {})
    assert (attributes[STREAM], attributes[FIRST]) == (True, 0.5)
    assert [count for count, _ in values(sink, FIRST_CHUNK)] == [1]


async def test_text_that_hooks_hold_back_is_timed_when_the_model_sends_it(clock: Clock) -> None:
    sink, model, seen = Sink(), Streaming(clock, [(0.5, "Tea "), (0.25, "is hot.")]), list[float]()
    hooks = Hooks("slow")

    @hooks.after(ModelCall)
    def take_time(call: ModelCall, response: ModelResponse) -> None:
        clock.advance(10)

    await exec_agent(
        agent_of(model), "go", hooks=[hooks, *both(sink, swapped=False)], on_token=lambda _: seen.append(clock.now)
    )

    assert min(seen) > 1010
    assert (sink.one("chat").attributes or {})[FIRST] == 0.5


async def test_each_answer_of_a_run_is_timed_on_its_own(clock: Clock) -> None:
    sink, model = Sink(), Streaming(clock, [(0.5, "a"), (0.5, "b")], [(0.25, "c")])
    hooks = Hooks("again")

    async with anyio.create_task_group() as group:
        for _ in range(2):
            bundles = [hooks, *both(sink, swapped=False)]
            group.start_soon(lambda bundles: exec_agent(agent_of(model), "go", hooks=bundles, on_token=ignore), bundles)
            await anyio.wait_all_tasks_blocked()

    assert sorted(values(sink, FIRST_CHUNK)) == [(2, 0.75)]
    assert sorted((span.attributes or {})[FIRST] for span in sink.named("chat")) == [0.25, 0.5]


async def test_model_metrics_and_model_spans_left_to_others_leave_the_times_out(clock: Clock) -> None:
    sink, model = Sink(), Streaming(clock, [(0.5, "a"), (0.5, "b")])
    hooks = [sink.tracing(model_spans=False), MetricsHooks(sink.meter_provider, model_metrics=False)]

    result = await exec_agent(agent_of(model), "go", hooks=hooks, on_token=ignore)

    assert result.output == "ab"
    assert (sink.points(FIRST_CHUNK), sink.points(NEXT_CHUNK)) == ([], [])


async def test_nothing_is_timed_where_nobody_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise AssertionError("nobody measures")

    monkeypatch.setattr(instrumentation, "perf_counter", refuse)

    result = await exec_agent(agent_of(ScriptedModel(["Tea is hot."])), "go", hooks=[Hooks("h")], on_token=ignore)

    assert (result.reason, result.output) == ("done", "Tea is hot.")
