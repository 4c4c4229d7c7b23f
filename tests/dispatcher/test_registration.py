"""Registering hooks: what is accepted, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

import fnmatch
import functools
import gc
import math
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ids import without_address

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    BeforeStep,
    BeforeToolCall,
    Deny,
    Event,
    Hook,
    HookDispatcher,
    HooklineError,
    Hooks,
    HookType,
    Interceptor,
    OnComplete,
    OnToolCallError,
    Respond,
    ScriptedModel,
    ToolCall,
    exec_agent,
)
from hookline._checks import tool_test
from hookline.builtin._tools import Globs
from hookline.delivery import Webhook
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.evals import match
from tests.tables import for_each

from .samples import answered, asked, failed, soon, step, turns

pytestmark = pytest.mark.anyio


def accept(event: object) -> None:
    """A handler that does nothing."""


async def accept_later(event: object) -> None:
    """An async handler that does nothing."""


def generator(event: object) -> Iterator[int]:
    yield 1


async def async_generator(event: object) -> AsyncIterator[int]:
    yield 1


class CallableGenerator:
    def __call__(self, event: object) -> Iterator[int]:
        yield 1


class CallableAsyncGenerator:
    async def __call__(self, event: object) -> AsyncIterator[int]:
        yield 1


class Nobody:
    """No event at all."""


def hook(**changes: Any) -> Hook:
    return Hook(**{"id": "h", "type": BeforeStep, "handler": accept, **changes})


BAD_HOOKS: dict[str, dict[str, Any]] = {
    "no handler": {"handler": None},
    "not callable": {"handler": "print"},
    "no arguments": {"handler": lambda: None},
    "two arguments": {"handler": lambda event, other: None},
    "a required keyword": {"handler": lambda event, *, other: None},
    "a partial with nothing left": {"handler": functools.partial(accept, 1)},
    "a generator": {"handler": generator},
    "an async generator": {"handler": async_generator},
    "a partial of a generator": {"handler": functools.partial(generator)},
    "a callable object whose __call__ is a generator": {"handler": CallableGenerator()},
    "a callable object whose __call__ is an async generator": {"handler": CallableAsyncGenerator()},
    "empty id": {"id": ""},
    "id of no text": {"id": 3},
    "id of None": {"id": None},
    "unknown wire name": {"type": "beforeLunch"},
    "class that is no event": {"type": Nobody},
    "builtin class": {"type": str},
    "event instead of class": {"type": step()},
    "the union": {"type": Event},
    "None as event": {"type": None},
    "unhashable event": {"type": ["beforeStep"]},
    "tool on an event without": {"tool": "*"},
    "empty tool": {"type": BeforeToolCall, "tool": ""},
    "tool of no text": {"type": BeforeToolCall, "tool": 3},
    "timeout 0": {"timeout": 0},
    "timeout negative": {"timeout": -1.0},
    "timeout minus infinity": {"timeout": -math.inf},
    "timeout NaN": {"timeout": math.nan},
    "timeout beyond every float": {"timeout": 10**400},
    "timeout True": {"timeout": True},
    "timeout False": {"timeout": False},
    "timeout text": {"timeout": "3"},
    "timeout complex": {"timeout": 1j},
    "webhook without delivery": {"handler": None, "webhook": 3},
    "webhook of wrong types": {"handler": None, "webhook": Webhook(url=None)},  # type: ignore[arg-type]
    "webhook that JSON cannot carry": {"webhook": Webhook(url="https://example.org", key="\ud800")},
    "id that JSON cannot carry": {"id": "\ud800", "webhook": {"url": "https://example.org"}},
}
BAD_ENTRIES: dict[str, object] = {
    **{name: hook(**changes) for name, changes in BAD_HOOKS.items()},
    "None": None,
    "a function": accept,
    "an async function": accept_later,
    "a string": "hooks",
    "an event class": BeforeStep,
    "a class of hooks": Hooks,
    "a list": [hook()],
    "a dict": {},
}
BAD = pytest.mark.parametrize("bad", BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())


@BAD
async def test_a_bad_entry_is_refused_and_nothing_changes(bad: Any) -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: seen.append("bundle"))
    plain = Hook(id="plain", type=BeforeStep, handler=lambda event: seen.append("plain"))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("live", [hook(handler=lambda event: seen.append("live"))])

        for operation_id in ("live", "new"):
            with pytest.raises(HookDefinitionError) as caught:
                dispatcher.register(operation_id, [bundle, plain, bad, bundle])

            assert "hooks[2]" in str(caught.value)
            assert isinstance(caught.value, HooklineError)
            assert isinstance(caught.value, ValueError)
        assert list(dispatcher.operations) == ["live"]
        assert not dispatcher.has_hooks("new")
        dispatcher.dispatch(step("live"))
        dispatcher.dispatch(step("new"))
        assert seen == ["live"]
        assert await dispatcher.unregister("new") == await dispatcher.unregister("never")


DECORATED = {  # `webhook` is no keyword of the decorator, and `id=None` is its default
    name: changes
    for name, changes in BAD_HOOKS.items()
    if "webhook" not in changes and changes.get("id", "") is not None
}


@for_each("changes", DECORATED.values())
async def test_the_decorator_refuses_what_register_refuses(changes: dict[str, Any]) -> None:
    bundle = Hooks("bundle")
    given_hook = {"type": BeforeStep, "handler": accept, **changes}

    with pytest.raises(HookDefinitionError):
        bundle.on(
            given_hook["type"],
            tool=given_hook.get("tool"),
            timeout=given_hook.get("timeout"),
            id=given_hook.get("id"),
        )(given_hook["handler"])

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])
        assert not dispatcher.has_hooks("op", BeforeStep)
        assert not dispatcher.has_hooks("op", BeforeToolCall)


@for_each("batch", [None, 3, "hooks", b"hooks", Hooks("x"), hook(), accept], ids=without_address)
async def test_a_batch_that_is_no_list_of_hooks_is_refused(batch: Any) -> None:
    async with HookDispatcher() as dispatcher:
        with pytest.raises(HookDefinitionError):
            dispatcher.register("op", batch)

        assert not dispatcher.operations


async def test_a_batch_that_raises_while_it_is_read_changes_nothing() -> None:
    def broken() -> Iterator[Hook]:
        yield hook()
        raise LookupError("no more")

    async with HookDispatcher() as dispatcher:
        with pytest.raises(LookupError):
            dispatcher.register("op", broken())

        assert not dispatcher.operations
        assert not dispatcher.has_hooks("op")


async def test_any_iterable_of_hooks_is_taken() -> None:
    async with HookDispatcher() as dispatcher:
        for number, batch in enumerate([[hook()], (hook(),), iter([hook()]), {"a": hook()}.values()]):
            dispatcher.register(f"op{number}", batch)

            assert dispatcher.has_hooks(f"op{number}", BeforeStep)


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 6), name=st.sampled_from(sorted(BAD_ENTRIES)))
def test_the_error_says_which_entry_is_bad(position: int, name: str) -> None:
    from hookline.hooks import hook_batch

    batch: list[Any] = [hook() if number % 2 else Hooks(f"b{number}") for number in range(6)]
    batch.insert(position, BAD_ENTRIES[name])

    with pytest.raises(HookDefinitionError, match=rf"hooks\[{position}\]"):
        hook_batch(batch)


@for_each("operation_id", ["", None, 3, b"op"])
async def test_an_operation_id_is_text(operation_id: Any) -> None:
    async with HookDispatcher() as dispatcher:
        with pytest.raises(HooklineError):
            dispatcher.register(operation_id, [hook()])

        assert not dispatcher.operations


@for_each(
    "arguments",
    [
        {"hook_timeout": 0},
        {"hook_timeout": -1},
        {"hook_timeout": math.nan},
        {"hook_timeout": True},
        {"hook_timeout": None},
        {"hook_timeout": "1"},
        {"max_queued": 0},
        {"max_queued": -1},
        {"max_queued": 1.5},
        {"max_queued": True},
        {"max_queued": None},
    ],
)
def test_a_dispatcher_refuses_arguments_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(HookDefinitionError):
        HookDispatcher(**arguments)


@for_each(
    "arguments",
    [{"id": ""}, {"id": 3}, {"priority": -1}, {"priority": 1001}, {"priority": True}, {"priority": 1.0}, {"tenant_id": 3}, {"tenant_id": None}],
)  # fmt: skip
def test_a_bundle_refuses_arguments_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(HookDefinitionError):
        Hooks(**{"id": "bundle", **arguments})


def test_the_decorator_returns_the_function_unchanged() -> None:
    bundle = Hooks("bundle")

    assert bundle.on(BeforeStep)(accept) is accept
    assert bundle.on(BeforeToolCall, tool="*/x", timeout=3, id="mine")(accept_later) is accept_later


async def test_ids_need_not_be_unique_and_every_one_runs() -> None:
    seen: list[int] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register(
            "op", [hook(handler=lambda event, number=number: seen.append(number)) for number in range(4)]
        )

        dispatcher.dispatch(step())

        assert seen == [0, 1, 2, 3]


async def test_one_function_may_be_registered_many_times() -> None:
    seen: list[str] = []

    def note(event: BeforeStep) -> None:
        seen.append("x")

    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(bundle.on(BeforeStep)(note))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle, hook(handler=note), hook(handler=note)])

        dispatcher.dispatch(step())

        assert seen == ["x"] * 4


@for_each("named", [BeforeStep, HookType.BEFORE_STEP, "beforeStep"])
async def test_a_hook_names_its_event_by_class_or_by_wire_name(named: Any) -> None:
    seen: list[BeforeStep] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(type=named, handler=seen.append)])

        dispatcher.dispatch(event := step())

        assert seen == [event]


async def test_what_is_registered_is_appended() -> None:
    seen: list[int] = []
    async with HookDispatcher() as dispatcher:
        for number in range(5):
            dispatcher.register("op", [hook(handler=lambda event, number=number: seen.append(number))])

        dispatcher.dispatch(step())

        assert seen == [0, 1, 2, 3, 4]
        assert list(dispatcher.operations) == ["op"]


async def test_an_operation_without_hooks_is_live() -> None:
    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [])

        assert list(dispatcher.operations) == ["op"]
        assert registration.operation_id == "op"
        assert not dispatcher.has_hooks("op")
        dispatcher.register("op", [])
        dispatcher.register("op", [hook()])
        assert dispatcher.has_hooks("op")
        await dispatcher.unregister("op")
        assert list(dispatcher.operations) == []


async def test_an_empty_bundle_is_not_a_hook() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hooks("empty")])

        assert not dispatcher.has_hooks("op", BeforeStep)
        assert not dispatcher.has_hooks("op")


async def test_a_run_is_refused_for_the_plain_interceptors_that_only_the_dispatcher_has() -> None:
    agent = Agent(id="clerk", model=ScriptedModel(["done"]))
    watch = Hook(id="watch", type=BeforeStep, handler=accept)
    refuse = Interceptor(id="refuse", call=ToolCall, kind="guard", handler=lambda call: None)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("watched", [watch])
        dispatcher.register("guarded", [watch, refuse])

        assert (await exec_agent(agent, "go", operation_id="watched", dispatcher=dispatcher)).output == "done"
        with pytest.raises(HookUsageError, match="The interceptors refuse of operation 'guarded'"):
            await exec_agent(agent, "go", operation_id="guarded", dispatcher=dispatcher)


async def test_plain_hooks_and_bundles_of_one_call_run_in_the_order_in_which_they_were_given() -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: seen.append("bundle"))
    before, after = (
        Hook(id=name, type=BeforeStep, handler=lambda event, name=name: seen.append(name))
        for name in ("before", "after")
    )

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [before, bundle, after, bundle])
        dispatcher.dispatch(step())

    assert seen == ["before", "bundle", "after", "bundle"]


async def test_a_bundle_extended_after_it_was_registered_counts_from_the_next_registration_on() -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: seen.append("first"))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("old", [bundle])
        bundle.on(BeforeStep)(lambda event: seen.append("second"))
        bundle.on(OnComplete)(accept)

        dispatcher.dispatch(step("old"))

        assert seen == ["first"]
        assert not dispatcher.has_hooks("old", OnComplete)
        dispatcher.register("new", [bundle])
        dispatcher.dispatch(step("new"))
        assert seen == ["first", "first", "second"]
        assert dispatcher.has_hooks("new", OnComplete)


async def test_the_list_that_was_given_may_be_changed_afterwards() -> None:
    batch = [hook()]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", batch)
        batch.clear()

        assert dispatcher.has_hooks("op", BeforeStep)


# --- Registration.remove


async def test_remove_takes_back_one_registration_only() -> None:
    seen: list[str] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(handler=lambda event: seen.append("a"))])
        middle = dispatcher.register("op", [hook(handler=lambda event: seen.append("b"))])
        dispatcher.register("op", [hook(handler=lambda event: seen.append("c"))])

        middle.remove()

        dispatcher.dispatch(step())
        assert seen == ["a", "c"]


async def test_remove_twice_does_nothing_the_second_time() -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: seen.append("x"))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])
        second = dispatcher.register("op", [bundle])

        second.remove()
        second.remove()

        dispatcher.dispatch(step())
        assert seen == ["x"]


async def test_remove_the_last_hook_leaves_a_live_operation_without_hooks() -> None:
    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [hook(), hook(type=BeforeToolCall)])

        registration.remove()

        assert list(dispatcher.operations) == ["op"]
        for event in (None, BeforeStep, BeforeToolCall):
            assert not dispatcher.has_hooks("op", event)
        assert await dispatcher.dispatch_before_tool_call(asked()) is None


async def test_remove_after_unregister_and_after_leaving_does_nothing() -> None:
    async with HookDispatcher() as dispatcher:
        first = dispatcher.register("op", [hook()])
        await dispatcher.unregister("op")
        first.remove()
        second = dispatcher.register("op", [hook()])
    second.remove()

    assert list(dispatcher.operations) == []


async def test_remove_after_unregister_does_not_touch_a_later_operation_of_that_id() -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: seen.append("x"))
    async with HookDispatcher() as dispatcher:
        old = dispatcher.register("op", [bundle])
        await dispatcher.unregister("op")
        dispatcher.register("op", [bundle])

        old.remove()

        dispatcher.dispatch(step())
        assert seen == ["x"]


async def test_remove_keeps_the_order_of_what_stays() -> None:
    seen: list[str] = []
    a, b = Hooks("a"), Hooks("b")
    a.on(BeforeStep)(lambda event: seen.append("a"))
    b.on(BeforeStep)(lambda event: seen.append("b"))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [a])
        dispatcher.register("op", [b])
        last = dispatcher.register("op", [a])

        last.remove()

        dispatcher.dispatch(step())
        assert seen == ["a", "b"]


async def test_remove_of_one_operation_leaves_the_others_with_that_bundle_alone() -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: seen.append(event.operation_id))
    async with HookDispatcher() as dispatcher:
        first = dispatcher.register("a", [bundle])
        dispatcher.register("b", [bundle])

        first.remove()

        dispatcher.dispatch(step("a"))
        dispatcher.dispatch(step("b"))
        assert seen == ["b"]


async def test_what_was_queued_before_remove_is_still_delivered() -> None:
    seen: list[int] = []

    async def note(event: BeforeStep) -> None:
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [hook(handler=note)])
        dispatcher.dispatch(step(index=1))
        registration.remove()
        dispatcher.dispatch(step(index=2))

        report = await dispatcher.unregister("op")

        assert seen == [1]
        assert (report.delivered, report.dropped) == (1, 0)


async def test_remove_takes_back_a_whole_mixed_batch() -> None:
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(accept)
    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [hook(), bundle, hook(type=OnComplete), bundle])

        registration.remove()

        assert not dispatcher.has_hooks("op")


@pytest.mark.parametrize("backwards", [False, True])
@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=5), data=st.data())
def test_removing_is_as_if_it_had_never_been_registered(
    batches: list[list[int]], data: st.DataObject, *, backwards: bool
) -> None:
    import anyio

    removed = data.draw(st.sets(st.integers(0, len(batches) - 1)))

    async def main() -> None:
        seen: list[int] = []
        bundles = [Hooks(f"b{number}") for number in range(4)]
        for number, bundle in enumerate(bundles):
            bundle.on(BeforeStep)(lambda event, number=number: seen.append(number))
        async with HookDispatcher() as dispatcher:
            registrations = [dispatcher.register("op", [bundles[i] for i in batch]) for batch in batches]
            for index in sorted(removed, reverse=backwards):
                registrations[index].remove()

            dispatcher.dispatch(step())

            assert seen == [i for index, batch in enumerate(batches) if index not in removed for i in batch]

    anyio.run(main)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["register", "register", "unregister", "remove"]), st.integers(0, 1), st.integers(0, 9)
        ),
        min_size=12,
        max_size=40,
    )
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_registration_removes_its_own_hooks_alone_whatever_operations_begin_and_end_meanwhile(
    backend: str, steps: list[tuple[str, int, int]]
) -> None:
    import anyio

    async def main() -> None:
        seen: list[int] = []
        bundles = [Hooks(f"b{number}") for number in range(3)]
        for number, bundle in enumerate(bundles):
            bundle.on(BeforeStep)(lambda event, number=number: seen.append(number))
        made: list[Any] = []
        live: dict[str, list[tuple[Any, int]]] = {}
        async with HookDispatcher() as dispatcher:
            for what, place, number in steps:
                operation_id = f"op{place}"
                if what == "register":
                    made.append(dispatcher.register(operation_id, [bundles[number % 3]]))
                    live.setdefault(operation_id, []).append((made[-1], number % 3))
                elif what == "unregister":
                    await dispatcher.unregister(operation_id)
                    live.pop(operation_id, None)
                elif made:
                    gone = made[number % len(made)]
                    gone.remove()
                    live = {name: [each for each in hooks if each[0] is not gone] for name, hooks in live.items()}

                assert set(dispatcher.operations) == set(live)
                for name, hooks in live.items():
                    seen.clear()
                    dispatcher.dispatch(step(name))
                    assert seen == [number for _, number in hooks]

    anyio.run(main, backend=backend)


# --- tool filters


@for_each(
    "pattern, tool, matches",
    [
        ("*", "local/search", True),
        ("*/search", "local/search", True),
        ("*/search", "a/b/search", True),
        ("*search", "local/search", True),
        ("local/*", "local/search", True),
        ("local/*", "local/deep/search", True),
        ("local/*", "remote/search", False),
        ("search", "local/search", True),
        ("search", "a/b/search", True),
        ("search", "local/research", False),
        ("search", "search/local", False),
        ("s*h", "local/search", True),
        ("l*h", "local/search", False),
        ("bank*", "bank/send", False),
        ("bank*", "agent/bank", True),
        ("local/search", "local/search", True),
        ("local/search", "local/search2", False),
        ("local/search", "xlocal/search", False),
        ("local/s?arch", "local/search", True),
        ("local?search", "local/search", False),
        ("[st]earch", "local/search", True),
        ("local/[st]earch", "local/search", True),
        ("local/[!st]earch", "local/search", False),
        ("*/Search", "local/search", False),
        ("local/search.v2", "local/searchXv2", False),
        ("local/a+b(c)", "local/a+b(c)", True),
        ("local/[", "local/[", True),
        ("*/", "local/", True),
        ("*", "local/with\nnewline", True),
        ("*/with*", "local/with\nnewline", True),
        ("*/bash", "local/bash\n", False),
        ("*/tür", "local/tür", True),
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_tool_filter_is_a_glob_over_identifier_and_name(
    pattern: str, tool: str, *, matches: bool, is_async: bool
) -> None:
    seen: list[str] = []
    toolset, _, tool_name = tool.rpartition("/")

    async def note_later(event: Any) -> None:
        seen.append(event.hook_type)

    def note(event: Any) -> None:
        seen.append(event.hook_type)

    handler = note_later if is_async else note
    bundle = Hooks("bundle")
    for kind in (BeforeToolCall, AfterToolCall, OnToolCallError):
        bundle.on(kind, tool=pattern)(handler)
    named = {"toolset": toolset, "tool_name": tool_name}
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])

        await dispatcher.dispatch_before_tool_call(asked(**named))
        dispatcher.dispatch(answered(**named))
        dispatcher.dispatch(failed(**named))
        report = await dispatcher.unregister("op")

    assert seen == (["beforeToolCall", "afterToolCall", "onToolCallError"] if matches else [])
    assert report.delivered == (2 if matches and is_async else 0)


@given(
    pattern=st.text("ab*?[]!-/", min_size=1, max_size=6), path=st.from_regex(r"[ab]{0,3}/[ab/]{1,4}", fullmatch=True)
)
def test_a_tool_pattern_without_a_slash_means_that_tool_wherever_it_comes_from(pattern: str, path: str) -> None:
    whole = pattern if "/" in pattern else f"*/{pattern}"

    expected = fnmatch.fnmatchcase(path, whole)

    assert bool(tool_test(pattern)(path)) is expected
    assert match.tool(pattern).may_match(path) is expected
    assert (Globs("here", (pattern,)).match(*path.split("/", 1)) is not None) is expected


@pytest.mark.parametrize("kind", [BeforeStep, AfterStep, OnComplete])
def test_a_tool_filter_on_an_event_without_a_tool_is_refused(kind: Any) -> None:
    with pytest.raises(HookDefinitionError, match="tool"):
        Hooks("bundle").on(kind, tool="*/search")(accept)


# --- what kind of function a handler is


class CallsLater:
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    async def __call__(self, event: object) -> None:
        await turns(1)
        self.seen.append("object")

    async def method(self, event: object) -> None:
        await turns(1)
        self.seen.append("method")

    @classmethod
    async def of_class(cls, event: object) -> None:
        await turns(1)

    @staticmethod
    async def of_nobody(event: object) -> None:
        await turns(1)


def passing_on(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def made_async(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(event: Any) -> None:
        await turns(1)
        function(event)

    return wrapper


def async_handlers(seen: list[str]) -> dict[str, Any]:
    async def plain(event: object) -> None:
        await turns(1)
        seen.append("plain")

    async def two(first: object, event: object) -> None:
        await turns(1)
        seen.append("partial")

    def sync_note(event: object) -> None:
        seen.append("sync inside")

    return {
        "async def": plain,
        "partial": functools.partial(two, 1),
        "partial of a partial": functools.partial(functools.partial(two, 1)),
        "partial by keyword": functools.partial(two, event=1),
        "wraps": passing_on(plain),
        "wraps twice": passing_on(passing_on(plain)),
        "partial of wraps": functools.partial(passing_on(two), 1),
        "wraps of partial": passing_on(functools.partial(two, 1)),
        "callable object": CallsLater(seen),
        "partial of a callable object": functools.partial(CallsLater(seen)),
        "bound method": CallsLater(seen).method,
        "wraps of a bound method": passing_on(CallsLater(seen).method),
        "class method": CallsLater.of_class,
        "static method": CallsLater.of_nobody,
        "an async wrapper around a plain function": made_async(sync_note),
        "an async wrapper around a partial": made_async(functools.partial(sync_note)),
    }


@for_each("name", list(async_handlers([])))
async def test_an_async_handler_is_queued_however_it_is_dressed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(handler=async_handlers(seen)[name])])

        dispatcher.dispatch(step())
        assert seen == []
        report = await dispatcher.unregister("op")

    assert caplog.records == []
    assert (report.delivered, report.dropped) == (1, 0)
    assert len(seen) == (0 if name in ("class method", "static method") else 1)


@for_each("name", list(async_handlers([])))
async def test_an_async_handler_of_a_tool_call_is_awaited_however_it_is_dressed(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(type=BeforeToolCall, handler=async_handlers(seen)[name])])

        await dispatcher.dispatch_before_tool_call(asked())

    assert caplog.records == []
    assert len(seen) == (0 if name in ("class method", "static method") else 1)


class Calls:
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def __call__(self, event: object) -> None:
        self.seen.append("x")

    def method(self, event: object) -> None:
        self.seen.append("x")


@for_each(
    "make",
    [
        lambda seen: lambda event: seen.append("x"),
        lambda seen: functools.partial(lambda first, event: seen.append(first), "x"),
        lambda seen: passing_on(lambda event: seen.append("x")),
        lambda seen: Calls(seen),
        lambda seen: Calls(seen).method,
        lambda seen: lambda *args: seen.append("x"),
        lambda seen: lambda event, other=1: seen.append("x"),
        lambda seen: seen.append,
    ],
    ids=["lambda", "partial", "wraps", "object", "method", "star", "default", "builtin"],
)
async def test_a_plain_handler_runs_at_once_however_it_is_dressed(make: Any) -> None:
    seen: list[object] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(handler=make(seen))])

        dispatcher.dispatch(step())

        assert len(seen) == 1


async def test_a_decorator_that_supplies_an_argument_makes_a_handler_of_one_argument() -> None:
    seen: list[str] = []

    def with_database(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(event: object) -> None:
            function(event, "database")

        return wrapper

    bundle = Hooks("bundle")

    @bundle.on(BeforeStep)
    @with_database
    def note(event: object, database: str) -> None:
        seen.append(database)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])

        dispatcher.dispatch(step())

    assert seen == ["database"]


def test_a_class_as_handler_does_not_hang_the_registration() -> None:
    assert Hooks("bundle").on(BeforeStep)(list) is list


async def test_the_default_id_names_bundle_and_function_and_a_given_one_is_verbatim() -> None:
    from .samples import recorded

    bundle = Hooks("audit")

    @bundle.on(BeforeStep)
    def note(event: BeforeStep) -> None:
        pass

    bundle.on(BeforeStep, id="anything at all / ünïcode")(note)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])
        with recorded() as records:
            dispatcher.dispatch(step())

    assert [record.hook_id for record in records] == ["audit.note", "anything at all / ünïcode"]


# --- lanes of plain hooks


async def test_the_plain_hooks_of_one_call_share_a_lane_and_those_of_two_calls_do_not() -> None:
    import anyio

    seen: list[str] = []
    gate = anyio.Event()

    def noting(name: str) -> Any:
        async def note(event: BeforeStep) -> None:
            if name == "first":
                await gate.wait()
            seen.append(name)

        return note

    async with HookDispatcher() as dispatcher, soon():
        bundle = Hooks("between")
        bundle.on(BeforeStep)(noting("bundle"))
        dispatcher.register("op", [hook(handler=noting("first")), bundle, hook(handler=noting("behind"))])
        dispatcher.register("op", [hook(handler=noting("other call"))])

        dispatcher.dispatch(step())
        await turns()

        assert sorted(seen) == ["bundle", "other call"]
        gate.set()
        report = await dispatcher.unregister("op")
        assert seen[2:] == ["first", "behind"]
        assert report.delivered == 3


async def test_an_operation_may_be_registered_for_very_often(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    many = 3 * sys.getrecursionlimit() // 2
    async with HookDispatcher() as dispatcher:
        for number in range(many):
            handler = functools.partial(lambda number, event: seen.append(number), number)
            dispatcher.register("op", [hook(id=str(number), handler=handler)])

        dispatcher.dispatch(step())

        assert seen == list(range(many))
        assert not caplog.records


@pytest.mark.parametrize("at_once", [True, False], ids=["one registration", "two registrations"])
async def test_a_bundle_given_twice_runs_twice_and_counts_once_per_event(at_once: bool) -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")

    @bundle.on(BeforeStep)
    async def note(event: BeforeStep) -> None:
        seen.append("x")

    async with HookDispatcher() as dispatcher:
        for bundles in [[bundle, bundle]] if at_once else [[bundle], [bundle]]:
            dispatcher.register("op", bundles)

        dispatcher.dispatch(step())
        report = await dispatcher.unregister("op")

        assert seen == ["x", "x"]
        assert (report.delivered, report.dropped) == (1, 0)


async def test_a_bundle_is_collected_when_nobody_needs_it_any_more() -> None:
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(accept)
    bundle.on(BeforeStep)(accept_later)
    async with HookDispatcher() as dispatcher:
        for number in range(3):
            dispatcher.register(f"op{number}", [bundle])
            dispatcher.dispatch(step(f"op{number}"))
            await dispatcher.unregister(f"op{number}")
        gone = weakref.ref(bundle)

        del bundle

        gc.collect()
        assert gone() is None


async def test_a_bundle_registered_by_nobody_elses_reference_still_works() -> None:
    seen: list[str] = []

    def make() -> Hooks:
        bundle = Hooks("bundle")
        bundle.on(BeforeStep)(lambda event: seen.append("x"))
        return bundle

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [make()])
        gc.collect()

        dispatcher.dispatch(step())

        assert seen == ["x"]


async def test_a_usage_error_is_not_a_definition_error() -> None:
    assert not issubclass(HookUsageError, HookDefinitionError)
    assert issubclass(HookUsageError, HooklineError)


SHAPES = [
    "def handler(a): ...",
    "def handler(a, b): ...",
    "def handler(a, b, c): ...",
    "def handler(): ...",
    "def handler(*args): ...",
    "def handler(a, *args): ...",
    "def handler(**options): ...",
    "def handler(a, **options): ...",
    "def handler(a, b=1): ...",
    "def handler(a=1, b=2, c=3): ...",
    "def handler(a, /, b=1): ...",
    "def handler(a, /): ...",
    "def handler(a, *, b): ...",
    "def handler(a, *, b=1): ...",
    "def handler(a, b, *, c=1): ...",
    "def handler(a, *, b, c=1): ...",
    "async def handler(a): ...",
    "async def handler(a, b): ...",
    "async def handler(*, a): ...",
    "def handler(a): yield",
    "async def handler(a): yield",
    "def handler(a, b): yield",
    "def handler(a) -> None: ...",
    "def handler(a) -> 'None': ...",
    "def handler(a) -> Deny: ...",
    "def handler(a) -> 'Deny | None': ...",
    "async def handler(a) -> 'Respond': ...",
    "async def handler(a, b) -> 'unknown': ...",
]


@for_each("kind", ["on", "before", "guard", "after", "around", "after, wait=False"])
@for_each("shape", SHAPES)
def test_a_plain_function_is_refused_with_the_words_that_a_decorated_one_is_refused_with(shape: str, kind: str) -> None:
    outcomes = []
    for marked in (False, True):
        names: dict[str, Any] = {"Deny": Deny, "Respond": Respond}
        exec(shape, names)
        handler = names["handler"]
        if marked:
            handler.mark = "a decorator was here"
        bundle = Hooks("bundle")
        method, _, option = kind.partition(", ")
        decorate = getattr(bundle, method)
        add = decorate(BeforeStep) if kind == "on" else decorate(ToolCall, **({"wait": False} if option else {}))
        try:
            add(handler)
        except HookDefinitionError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("taken")

    assert outcomes[0] == outcomes[1]


async def test_a_decorated_function_that_wraps_an_async_one_is_async() -> None:
    seen: list[str] = []

    async def inner(event: BeforeStep) -> None:
        seen.append("inner")

    @functools.wraps(inner)
    def outer(event: BeforeStep) -> Any:
        return inner(event)

    async with HookDispatcher() as dispatcher:
        bundle = Hooks("bundle")
        bundle.on(BeforeStep)(outer)
        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step())
        before = list(seen)
        report = await dispatcher.unregister("op")

    assert (before, seen, report.delivered) == ([], ["inner"], 1)


@for_each("others", [0, 1, 2])
async def test_an_ended_operations_registration_removes_nothing_of_the_next_one_with_the_same_bundle(
    others: int,
) -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: seen.append("shared"))
    async with HookDispatcher() as dispatcher:
        ended = dispatcher.register("op", [bundle])
        await dispatcher.unregister("op")
        for _ in range(1 + others):
            dispatcher.register("op", [bundle])

        ended.remove()
        dispatcher.dispatch(step())

    assert seen == ["shared"] * (1 + others)


@for_each("others", [0, 1, 2])
async def test_a_removed_registration_keeps_no_handler(others: int) -> None:
    def handler(event: BeforeStep) -> None: ...

    gone = weakref.ref(handler)
    async with HookDispatcher() as dispatcher:
        for _ in range(others):
            dispatcher.register("op", [Hook(id="other", type=BeforeStep, handler=accept)])
        registration = dispatcher.register("op", [Hook(id="own", type=BeforeStep, handler=handler)])
        del handler
        registration.remove()
        gc.collect()

        assert gone() is None
        assert registration.operation_id in dispatcher.operations
        assert dispatcher.has_hooks("op", BeforeStep) is (others > 0)


async def test_hooks_are_added_to_an_operation_whose_hooks_were_all_removed() -> None:
    seen: list[str] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="first", type=BeforeStep, handler=accept)]).remove()
        second = dispatcher.register("op", [Hook(id="2", type=BeforeStep, handler=lambda event: seen.append("second"))])
        third = dispatcher.register("op", [Hook(id="3", type=BeforeStep, handler=lambda event: seen.append("third"))])
        dispatcher.dispatch(step())
        second.remove()
        dispatcher.dispatch(step())
        third.remove()
        dispatcher.dispatch(step())

    assert seen == ["second", "third", "third"]


@for_each("event", [Event, "noEvent", 3, [], BeforeStep(operation_id="op", step_index=0)])
@for_each("operation_id", ["op", "unknown"])
async def test_only_the_sixteen_events_can_be_asked_for(operation_id: str, event: Any) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="own", type=BeforeStep, handler=accept)])

        with pytest.raises(HookUsageError, match="is not one of the sixteen events"):
            dispatcher.has_hooks(operation_id, event)


@pytest.mark.parametrize("kind", [BeforeStep, BeforeToolCall])
async def test_has_hooks_takes_a_class_a_name_and_none(kind: type[Any]) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="own", type=kind, handler=accept)])
        dispatcher.register("bare", [])

        for event in (kind, kind.hook_type, str(kind.hook_type), None):
            assert dispatcher.has_hooks("op", event)
            assert not dispatcher.has_hooks("bare", event)
            assert not dispatcher.has_hooks("unknown", event)
        assert not dispatcher.has_hooks("op", AfterStep)
        assert not dispatcher.has_hooks("op", HookType.AFTER_STEP)


@pytest.mark.parametrize("operation_id", ["op", "unknown"])
async def test_what_is_no_event_to_dispatch_is_refused_for_every_operation(operation_id: str) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="own", type=BeforeStep, handler=accept)])

        with pytest.raises(HookUsageError, match="Use `await dispatcher"):
            dispatcher.dispatch(asked(operation_id))
        with pytest.raises(HookUsageError, match="Only the sixteen events"):
            dispatcher.dispatch(3)  # type: ignore[arg-type]
