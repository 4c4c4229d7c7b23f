"""What the tests of traces share: spans of a model's library and of tools, beside ours, in runs of any stage."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

import msgspec
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hookline import Hooks, ModelCall
from hookline.evals.adapter_contract import Scene, Stage
from hookline.evals.adapter_contract._scenes import DELEGATING, PARALLEL, PLAIN
from hookline.otel import TracingHooks
from tests.otel.scenes import assert_sound

SCENES: dict[str, Scene] = {"plain": PLAIN, "parallel": PARALLEL, "sub-agent": DELEGATING}

SWITCHES = ("agent_spans", "model_spans", "tool_spans")
SUBSETS = [dict(zip(SWITCHES, chosen, strict=True)) for chosen in product((True, False), repeat=3)]
LEFT_OUT = {"agent_spans": "invoke_agent", "model_spans": "chat", "tool_spans": "execute_tool"}
"""The kind of span that each switch leaves to others."""

THEIRS = "their model"
TOOL = "their tool"

Play = Callable[[Scene, list[Any]], Awaitable[Any]]
"""Plays a scene with hooks."""


class Library:
    """A tracer provider that keeps its spans, and the model's library that makes some of them."""

    def __init__(self) -> None:
        self.kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracer = self.provider.get_tracer("model library")

    def around(self, function: Callable[..., Awaitable[Any]], name: str = THEIRS) -> Callable[..., Awaitable[Any]]:
        """A function with a span of the library around it."""

        @functools.wraps(function)
        async def spanned(*given: Any, **options: Any) -> Any:
            with self.tracer.start_as_current_span(name):
                return await function(*given, **options)

        return spanned

    def scene(self, scene: Scene) -> Scene:
        """A scene whose tools have spans of a library inside of them."""
        tools = {name: self.around(work, TOOL) for name, work in scene.tools.items()}
        agents = {name: self.scene(each) for name, each in scene.agents.items()}
        return msgspec.structs.replace(scene, tools=tools, agents=agents)

    async def trace(self, play: Play, scene: Scene, hooks: Callable[[TracingHooks], list[Any]], **switches: Any) -> Any:
        """Play a scene inside of a span `request`, and give the tree of all spans under it."""
        self.kept.clear()
        tracing = TracingHooks(self.provider, **switches)
        with self.tracer.start_as_current_span("request"):
            await play(self.scene(scene), hooks(tracing))
        return tree_of(self.kept.get_finished_spans())


def tree_of(spans: Any) -> Any:
    """The one tree of spans, each as its name and its children; what runs in parallel in the order of names."""
    assert_sound(spans, traces=1)
    below: dict[int | None, list[ReadableSpan]] = {}
    for span in spans:
        below.setdefault(span.parent.span_id if span.parent is not None else None, []).append(span)

    def tree(span: ReadableSpan) -> Any:
        children = sorted(below.get(span.context.span_id, ()), key=lambda each: each.start_time or 0)
        steps = [each for each in children if each.name == "agent_step"]
        others = [each for each in children if each.name != "agent_step"]
        return (span.name, *map(tree, steps), *sorted(map(tree, others), key=repr))

    (root,) = below[None]
    return tree(root)


def without(tree: Any, kinds: set[str]) -> Any:
    """A tree without some kinds of spans, whose children are where they were."""

    def lifted(node: Any) -> list[Any]:
        children = [each for child in node[1:] for each in lifted(child)]
        if node[0].split(" ")[0] in kinds:
            return children
        steps = [each for each in children if each[0] == "agent_step"]
        return [(node[0], *steps, *sorted((each for each in children if each[0] != "agent_step"), key=repr))]

    (found,) = lifted(tree)
    return found


def alone(tracing: TracingHooks) -> list[Any]:
    return [tracing]


def with_passing_hooks(tracing: TracingHooks) -> list[Any]:
    hooks = Hooks("passing", inherit=True)
    hooks.guard(ModelCall)(lambda call: None)
    hooks.after(ModelCall)(lambda call, answer: None)
    return [hooks, tracing]


BUNDLES: Mapping[str, Any] = {"alone": alone, "with hooks of model calls": with_passing_hooks}


async def check_every_subset(play: Play, library: Library, bundles: str, scene: Scene, *, models: bool = True) -> None:
    """Whatever is left to others, all else is where it was; a library's own spans of model calls are in the step.

    Args:
        play: Plays a scene.
        library: Makes the spans of others.
        bundles: Which hooks are beside the telemetry.
        scene: The scene.
        models: Whether its models are asked in this process.
    """
    whole = await library.trace(play, scene, BUNDLES[bundles])
    names = str(whole)
    assert ("('chat" in names) == (THEIRS in names) == models
    for chosen in SUBSETS:
        expected = without(whole, {LEFT_OUT[each] for each, kept in chosen.items() if not kept})
        assert await library.trace(play, scene, BUNDLES[bundles], **chosen) == expected, chosen


def play_of(stage: Stage) -> Play:
    async def play(scene: Scene, hooks: list[Any]) -> None:
        await stage.play(scene, hooks)

    return play


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in the place of an attribute."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# Beside the framework's own telemetry.

ALL_LEFT = dict.fromkeys(SWITCHES, False)
CALLS = {"chat", "generate_content", "text_completion", "execute_tool"}


def operation_of(span: ReadableSpan) -> str:
    return str((span.attributes or {}).get("gen_ai.operation.name", ""))


def is_ours(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name == "hookline"


async def check_beside(play: Play, library: Library, scene: Scene, *, inside: Collection[str]) -> None:
    """Hookline and the framework each tell their part once, and no step is inside of one of its calls.

    Args:
        play: Plays a scene with the framework's own telemetry on.
        library: Whose provider that telemetry is sent to.
        scene: The scene.
        inside: The kinds of the framework's spans that are inside of our steps; others have a parent that it names.
    """
    await play(scene, [])
    alone = sorted(each.name for each in library.kept.get_finished_spans())
    library.kept.clear()
    with library.tracer.start_as_current_span("request"):
        await play(scene, [TracingHooks(library.provider, hook_spans=True, **ALL_LEFT)])

    spans = library.kept.get_finished_spans()
    assert_sound(spans, traces=1)
    ours = [each for each in spans if is_ours(each)]
    theirs = [each for each in spans if not is_ours(each) and each.name != "request"]
    assert sorted(each.name for each in theirs) == alone
    assert {each.name.split(" ")[0] for each in ours} <= {"agent_step", "call_agent", "hook"}
    by_id = {each.context.span_id: each for each in spans}

    def above(span: ReadableSpan) -> list[ReadableSpan]:
        parent = by_id.get(span.parent.span_id) if span.parent is not None else None
        return [parent, *above(parent)] if parent is not None else []

    for span in theirs:
        if operation_of(span) in inside:
            assert "agent_step" in [each.name for each in above(span)], tree_of(spans)
    for span in (each for each in ours if each.name == "agent_step"):
        assert operation_of(above(span)[0]) not in CALLS, tree_of(spans)
    if any(operation_of(each) == "invoke_agent" for each in theirs):
        for span in (each for each in ours if each.name == "agent_step"):
            assert "invoke_agent" in [operation_of(each) for each in above(span)], tree_of(spans)


@contextmanager
def global_provider(provider: TracerProvider) -> Iterator[None]:
    """Make a provider that of the process, for telemetry that takes no other."""
    with replaced(trace, "_TRACER_PROVIDER", provider):
        yield
