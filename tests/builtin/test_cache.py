"""Answers that are given again."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import AfterToolCall, BeforeToolCall, Hooks, ModelCall, OnToolCallError, ToolCall, exec_agent, tool
from hookline.builtin import cache, deny_tools, redact
from hookline.calls import ToolResult
from hookline.errors import HookDefinitionError

from .scenes import Clock, agent_of, asks, says, told

pytestmark = pytest.mark.anyio


class Counting:
    """A tool that says how often it ran."""

    def __init__(self, **answer: Any) -> None:
        self.ran = 0
        self.answer = answer

    @property
    def tool(self) -> Any:
        @tool(name="read")
        async def read(key: str = "", n: int = 0) -> ToolResult:
            """Read."""
            self.ran += 1
            return ToolResult(content=f"{key}{n} #{self.ran}", metadata={"source": "disk"}, **self.answer)

        return read


async def run(reader: Counting, hooks: list[Any], *args: dict[str, Any], tenant_id: str = "") -> list[str]:
    agent = agent_of(*[asks("read", **each) for each in args], says(), tools=[reader.tool])
    return told(await exec_agent(agent, "hi", hooks=hooks, tenant_id=tenant_id))


async def test_a_repeated_call_is_answered_without_the_tool_also_in_another_run() -> None:
    reader, hooks = Counting(), cache(ToolCall)

    first = await run(reader, [hooks], {"key": "a", "n": 1}, {"n": 1, "key": "a"}, {"key": "b"})
    second = await run(reader, [hooks], {"key": "a", "n": 1})

    assert first == ["a1 #1", "a1 #1", "b0 #2"]
    assert second == ["a1 #1"]


async def test_an_event_says_that_the_answer_came_from_the_cache() -> None:
    watch = Hooks("watch")
    seen: list[AfterToolCall] = []
    watch.on(AfterToolCall)(seen.append)

    await run(Counting(), [cache(ToolCall), watch], {"key": "a"}, {"key": "a"})

    assert [(event.mocked, event.answered_by, dict(event.metadata)) for event in seen] == [
        (False, None, {"source": "disk"}),
        (True, "cache", {"source": "disk", "cached": True}),
    ]


async def test_tenants_never_share_an_answer() -> None:
    reader, hooks = Counting(), cache(ToolCall)

    texts = [(await run(reader, [hooks], {"key": "a"}, tenant_id=tenant))[0] for tenant in ("x", "y", "", "x", "y", "")]

    assert texts == ["a0 #1", "a0 #2", "a0 #3", "a0 #1", "a0 #2", "a0 #3"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "b"]),
            st.sampled_from(["x", "y"]),
            st.dictionaries(st.text(max_size=2), JSON, max_size=2),
        ),
        max_size=12,
    )
)
def test_an_answer_is_only_ever_given_to_an_equal_call_of_the_same_tenant(
    calls: list[tuple[str, str, dict[str, Any]]],
) -> None:
    hooks = cache(ToolCall)
    recall, keep = (hook.handler for hook in hooks.observers)
    shared: dict[str, Any] = {
        "operation_id": "op",
        "toolset": "local",
        "call_index": 1,
        "step_index": 0,
        "tool_call_id": "t",
    }

    for tenant, name, args in calls:
        before = BeforeToolCall(**shared, tenant_id=tenant, tool_name=name, args=args)
        recall(before)  # type: ignore[misc]
        asked = repr((tenant, name, sorted_repr(args)))
        if before.mocked:
            assert before.__dict__["answer"].content == asked
        else:
            keep(AfterToolCall(**shared, tenant_id=tenant, tool_name=name, args=args, content=asked, success=True))  # type: ignore[misc]


def sorted_repr(value: Any) -> str:
    if isinstance(value, dict):
        return repr(sorted((key, sorted_repr(item)) for key, item in value.items()))
    if isinstance(value, list):
        return repr([sorted_repr(item) for item in value])
    return repr(value)


async def test_a_failure_is_never_kept() -> None:
    reader = Counting(success=False)
    hooks = cache(ToolCall)

    assert await run(reader, [hooks], {"key": "a"}, {"key": "a"}) == ["a0 #1", "a0 #2"]

    seen: list[OnToolCallError] = []
    watch = Hooks("watch")
    watch.on(OnToolCallError)(seen.append)
    await exec_agent(agent_of(asks("broken"), asks("broken"), says()), "hi", hooks=[hooks, watch])
    assert [event.mocked for event in seen] == [False, False]


async def test_a_mock_of_another_hook_is_not_kept() -> None:
    reader, hooks, mocks = Counting(), cache(ToolCall), Hooks("mocks")

    @mocks.on(BeforeToolCall)
    def mock(event: BeforeToolCall) -> None:
        event.mock("mocked")

    assert await run(reader, [mocks, hooks], {"key": "a"}) == ["mocked"]
    assert await run(reader, [hooks], {"key": "a"}) == ["a0 #1"]


async def test_a_guard_is_not_outwitted_by_an_answer_that_another_run_was_given() -> None:
    reader, hooks = Counting(), cache(ToolCall)
    await run(reader, [hooks], {"key": "secret"})

    texts = await run(reader, [hooks, deny_tools("read")], {"key": "secret"})

    assert texts == ["local/read is denied by the rule 'read'"]


async def test_what_after_hooks_hide_is_hidden_in_a_repeated_answer_too() -> None:
    reader, hooks = Counting(), cache(ToolCall)
    await run(reader, [hooks], {"key": "ada@lovelace.org "})

    texts = await run(reader, [hooks, redact(["email"])], {"key": "ada@lovelace.org "})

    assert texts == ["[redacted] 0 #1"]


async def test_an_answer_grows_old() -> None:
    clock = Clock()
    reader, hooks = Counting(), cache(ToolCall, ttl=60, clock=clock)

    texts = []
    for at in (0, 59, 60, 61):
        clock.now = 100.0 + at
        texts += await run(reader, [hooks], {"key": "a"})

    assert texts == ["a0 #1", "a0 #1", "a0 #2", "a0 #2"]


async def test_the_answer_that_was_unused_for_longest_goes_first() -> None:
    reader, hooks = Counting(), cache(ToolCall, max_entries=2)

    await run(reader, [hooks], *[{"key": key} for key in "abaca"])
    texts = await run(reader, [hooks], {"key": "a"}, {"key": "b"})

    assert texts == ["a0 #1", "b0 #4"]


async def test_only_the_tools_that_are_named_are_cached() -> None:
    reader = Counting()

    assert await run(reader, [cache(ToolCall, tools="other")], {"key": "a"}, {"key": "a"}) == ["a0 #1", "a0 #2"]


async def test_equal_calls_at_the_same_time_all_run_and_wait_for_nobody() -> None:
    started = 0
    all_there = anyio.Event()

    @tool(name="meet")
    async def meet() -> str:
        """Wait until all three are here."""
        nonlocal started
        started += 1
        if started == 3:
            all_there.set()
        await all_there.wait()
        return "met"

    agent = agent_of(asks("meet", "meet", "meet"), says(), tools=[meet])

    with anyio.fail_after(5):
        result = await exec_agent(agent, "hi", hooks=[cache(ToolCall)])

    assert told(result) == ["met"] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"call": ModelCall}, "pass ToolCall; got <class 'hookline.calls.ModelCall'>"),
        ({"call": "ToolCall"}, "pass ToolCall; got 'ToolCall'"),
        ({"call": ToolCall, "ttl": 0}, "`ttl` must be a number above 0"),
        ({"call": ToolCall, "max_entries": 0}, "`max_entries` must be a whole number from 1"),
        ({"call": ToolCall, "tools": ""}, "name tools by globs"),
    ],
)
def test_a_cache_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HookDefinitionError, match=message):
        cache(**arguments)
