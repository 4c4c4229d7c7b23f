"""Laws 6 and 13: what a hook may not return is a failure of that hook, and what it edits in place reaches nobody."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import pytest

from hookline.calls import (
    AgentCall,
    AgentResult,
    Ask,
    CompactCall,
    CompactResult,
    Continue,
    Deny,
    MemoryCall,
    MemoryResult,
    Message,
    ModelCall,
    ModelResponse,
    RequestCall,
    RequestResult,
    Respond,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
    ToolSpec,
    Usage,
)
from hookline.errors import HookExecutionError, HookReturnError, HookUsageError
from tests.tables import for_each

from .calls import (
    CALLS,
    Tool,
    after,
    around,
    before,
    guard,
    hook,
    replace,
    run,
    statuses,
    tool_call,
    turns,
    with_args,
)

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]


class Junk:
    """Everything about it raises."""

    def _no(self, *args: object) -> Any:
        raise RuntimeError("junk")

    __bool__ = __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __len__ = __iter__ = __call__ = __format__ = _no  # type: ignore[assignment]


ANYTHING: dict[str, Any] = {
    "zero": 0,
    "false": False,
    "true": True,
    "empty text": "",
    "text": "allow",
    "empty dict": {},
    "arguments": {"arguments": {"q": "y"}},
    "allow": {"allow": True},
    "list": [],
    "exception": ValueError("returned"),
    "class": Deny,
    "not implemented": NotImplemented,
    "ellipsis": ...,
    "another call": ModelCall(messages=[]),
    "another result": ModelResponse(content="x"),
    "deny without text": Deny(None),  # type: ignore[arg-type]
    "ask without text": Ask(42),  # type: ignore[arg-type]
    "continue": Continue("more"),
    "tuple": (None, None),
    "junk": Junk(),
}
ALSO_WRONG: dict[str, dict[str, Any]] = {
    "before": {"a result": ToolResult(content="x")},
    "guard": {"a result": ToolResult(content="x"), "respond": Respond("x"), "a call": tool_call()},
    "around": {"a call": tool_call()},
    "after": {"a call": tool_call(), "respond": Respond("x"), "ask": Ask("really?")},
}
WRONG = [(kind, name) for kind in KINDS for name in (*ANYTHING, *ALSO_WRONG[kind])]


@for_each("kind, name", WRONG)
@pytest.mark.parametrize(
    ("on_error", "is_async"), [("open", True), ("closed", False)], ids=["async open", "sync closed"]
)
async def test_a_wrong_return_value_is_a_failure_of_that_hook(
    kind: str, name: str, on_error: str, *, is_async: bool
) -> None:
    value = {**ANYTHING, **ALSO_WRONG[kind]}[name]
    tool = Tool()

    async def later(*args: Any) -> Any:
        return value

    outcome = await run([hook(kind, later if is_async else lambda *args: value, on_error=on_error)], terminal=tool)

    assert statuses(outcome) == [(kind, "error")]
    assert outcome.executions[0].error
    assert len(tool.calls) == (on_error == "open" or kind == "after")
    if on_error == "open":
        assert outcome.result is tool.answer
        assert outcome.call.args == {"q": "x"}
    else:
        assert outcome.denied is not None
        assert outcome.denied.reason.startswith("the hook failed, and it fails closed: ")
        assert outcome.refusal is not None
        cause = outcome.refusal.__cause__
        assert isinstance(cause, HookExecutionError)
        assert isinstance(cause.__cause__, HookReturnError)
        assert (cause.__cause__.hook_id, cause.__cause__.point) == (kind, "ToolCall")


@for_each("kind", ["before", "guard", "after"])
@for_each("on_error", ["open", "closed"])
async def test_a_plain_handler_that_returns_an_awaitable_says_how_to_mend_it(kind: str, on_error: str) -> None:
    tool = Tool()

    outcome = await run([hook(kind, lambda *args: turns(1), on_error=on_error)], terminal=tool)

    assert statuses(outcome) == [(kind, "error")]
    assert "async def" in str(outcome.executions[0].error)
    assert (outcome.denied is None) == (on_error == "open")


@for_each("kind", KINDS)
@for_each(("call", "result"), CALLS, ids=lambda value: type(value).__name__)
async def test_a_wrong_value_is_wrong_for_every_class_of_calls(kind: str, call: Any, result: Any) -> None:
    other_call, other_result = CALLS[(CALLS.index((call, result)) + 1) % len(CALLS)]
    value = other_result if kind in ("after", "around") else other_call

    outcome = await run([hook(kind, lambda *args: value, call=type(call))], call, Tool(result))

    assert outcome.denied is not None
    assert statuses(outcome) == [(kind, "error")]


@for_each("kind", ["before", "guard", "around"])
async def test_only_after_a_whole_run_may_a_hook_continue_it(kind: str) -> None:
    call, result = CALLS[0]

    outcome = await run([hook(kind, lambda *args: Continue("more"), call=AgentCall)], call, Tool(result))

    assert outcome.continues == []
    assert statuses(outcome) == [(kind, "error")]


@for_each(("call", "result"), CALLS[1:], ids=lambda value: type(value).__name__)
async def test_only_an_agent_call_can_be_continued(call: Any, result: Any) -> None:
    outcome = await run([after(lambda call, result: Continue("more"), call=type(call))], call, Tool(result))

    assert outcome.continues == []
    assert outcome.denied is not None
    assert statuses(outcome) == [("after", "error")]


WRONG_FIELDS: list[tuple[type, str, Any]] = [
    (AgentResult, "output", None),
    (AgentResult, "reason", 1),
    (StepResult, "should_continue", "yes"),
    (StepResult, "content", b""),
    (ModelResponse, "content", None),
    (ModelResponse, "reasoning", ["x"]),
    (ModelResponse, "usage", {"input_tokens": 1}),
    (ModelResponse, "usage", Usage(input_tokens="7")),  # type: ignore[arg-type]
    (ModelResponse, "finish_reason", 0),
    (ModelResponse, "tool_calls", ["search"]),
    (ModelResponse, "tool_calls", None),
    (CompactResult, "summary", 3),
    (RequestResult, "status", "200"),
    (RequestResult, "status", True),
    (RequestResult, "body", "text"),
    (MemoryResult, "stored", 1),
]


@for_each("kind", ["after", "around"])
@for_each(("of", "field", "value"), WRONG_FIELDS, ids=lambda value: getattr(value, "__name__", repr(value)))
async def test_a_result_with_a_field_of_another_type_is_the_hooks_failure(
    of: type, field: str, value: Any, kind: str
) -> None:
    call, result = next(pair for pair in CALLS if type(pair[1]) is of)

    async def spoil(led: Any, given: Any) -> Any:
        return replace(await given(led) if kind == "around" else given, **{field: value})

    outcome = await run([hook(kind, spoil, call=type(call))], call=call, terminal=Tool(answer=result))
    opened = await run([hook(kind, spoil, call=type(call), on_error="open")], call=call, terminal=Tool(answer=result))

    assert outcome.denied is not None
    assert f"gave a {of.__name__} whose `{field}` " in outcome.denied.reason
    assert opened.result is result
    assert statuses(outcome) == statuses(opened) == [(kind, "error")]


@pytest.mark.parametrize("kind", ["after", "around"])
async def test_a_tool_result_without_text_is_the_hooks_failure(kind: str) -> None:
    async def spoil(call: Any, given: Any) -> Any:
        return replace(await given(call) if kind == "around" else given, content=3)

    outcome = await run([hook(kind, spoil)])

    assert outcome.denied is not None
    assert "gave a result that cannot be used" in outcome.denied.reason


class Unreadable(Mapping[str, Any]):
    """A mapping that nobody can iterate over."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        raise TypeError("unreadable")


async def test_an_answer_that_is_an_unreadable_mapping_is_the_hooks_failure() -> None:
    call = ModelCall(messages=[])

    outcome = await run([before(lambda call: Respond(Unreadable()), call=ModelCall)], call)

    assert outcome.denied is not None
    assert "These are not fields of a ModelResponse: unreadable" in outcome.denied.reason


@for_each("value", [None, 42, ["x"]])
async def test_a_continue_whose_input_is_no_text_is_a_wrong_value(value: Any) -> None:
    call, result = CALLS[0]

    outcome = await run([after(lambda call, result: Continue(value), call=AgentCall)], call, Tool(result))

    assert statuses(outcome) == [("after", "error")]


# --- changed calls


@for_each("name", ["operation_id", "tenant_id"])
@for_each("value", ["another", None, Junk()], ids=["text", "none", "junk"])
@for_each("on_error", ["open", "closed"])
async def test_a_hook_cannot_say_that_a_call_is_somebody_elses(name: str, value: Any, on_error: str) -> None:
    tool = Tool()

    outcome = await run([before(lambda call: replace(call, **{name: value}), on_error=on_error)], terminal=tool)

    assert statuses(outcome) == [("before", "error")]
    assert [getattr(call, name) for call in tool.calls] == ([getattr(tool_call(), name)] if on_error == "open" else [])
    assert getattr(outcome.call, name) == getattr(tool_call(), name)
    if on_error == "closed":
        assert outcome.refusal is not None
        assert outcome.refusal.__cause__ is not None
        assert isinstance(outcome.refusal.__cause__.__cause__, HookReturnError)


WHOSE: list[tuple[str, Any, Any]] = [
    ("agent_id", "clerk", "boss"),
    ("user_id", "ann", "bob"),
    ("tags", ("old",), ("new",)),
    ("tool_call_id", "t1", "t2"),
    ("call_index", 1, 2),
    ("call_index", 2, 1),
    ("call_index", 1, True),
    ("step_index", 3, 2),
    ("step_index", 0, None),
]


@for_each("kind", ["before", "around"])
@for_each(("name", "old", "new"), WHOSE, ids=str)
async def test_nor_which_call_of_a_run_it_is_nor_who_runs_it(kind: str, name: str, old: Any, new: Any) -> None:
    tool = Tool()

    def forge(call: Any, *call_next: Any) -> Any:
        changed = replace(call, **{name: new})
        return call_next[0](changed) if call_next else changed

    outcome = await run([hook(kind, forge)], tool_call(**{name: old}), tool)

    assert outcome.denied is not None
    assert f"changed `{name}` from {old!r} to {new!r}" in outcome.denied.reason
    assert tool.calls == []
    assert getattr(outcome.call, name) == old


@pytest.mark.parametrize("name", ["operation_id", "tenant_id"])
async def test_call_next_refuses_a_call_that_is_somebody_elses(name: str) -> None:
    tool = Tool()

    async def forge(call: Any, call_next: Any) -> Any:
        with pytest.raises(HookUsageError, match=name):
            await call_next(replace(call, **{name: "another"}))
        return await call_next(call)

    outcome = await run([around(forge)], terminal=tool)

    assert outcome.denied is None
    assert tool.calls == [tool_call()]


@for_each("value", [None, "text", {}, ToolResult(content="x"), ModelCall(messages=[]), Junk()], ids=lambda value: type(value).__name__)  # fmt: skip
@for_each("on_error", ["open", "closed"])
async def test_call_next_with_something_else_is_the_hooks_failure(value: Any, on_error: str) -> None:
    tool = Tool()

    async def wrong(call: Any, call_next: Any) -> Any:
        return await call_next(value)

    outcome = await run([around(wrong, on_error=on_error)], terminal=tool)

    assert statuses(outcome) == [("around", "error")]
    assert tool.calls == ([tool_call()] if on_error == "open" else [])
    assert outcome.call == tool_call()


async def test_a_changed_call_with_arguments_that_are_no_mapping_is_the_hooks_failure() -> None:
    tool = Tool()

    outcome = await run([before(lambda call: replace(call, args=["rm"]))], terminal=tool)

    assert outcome.denied is not None
    assert tool.calls == []


WRONG_CALL_FIELDS: list[tuple[type, str, Any]] = [
    (AgentCall, "instructions", 3),
    (AgentCall, "input", ["hi"]),
    (AgentCall, "input", [Message(role="nobody", content="hi")]),  # type: ignore[arg-type]
    (AgentCall, "input", [Message(role="user", content=None)]),  # type: ignore[arg-type]
    (AgentCall, "tools", ["search"]),
    (ModelCall, "model", None),
    (ModelCall, "messages", [{"role": "user", "content": "hi"}]),
    (ModelCall, "messages", [Message(role="boss", content="hi")]),  # type: ignore[arg-type]
    (ModelCall, "tools", [ToolSpec(name=3, description="", schema={})]),  # type: ignore[arg-type]
    (ToolCall, "tool_name", 3),
    (ToolCall, "toolset", None),
    (SubAgentCall, "callee_id", 3),
    (SubAgentCall, "instruction", ["help"]),
    (CompactCall, "messages", ["hi"]),
    (RequestCall, "method", None),
    (RequestCall, "path", b"/"),
    (MemoryCall, "key", 1),
]


@for_each("kind", ["before", "around"])
@for_each(("of", "field", "value"), WRONG_CALL_FIELDS, ids=lambda value: getattr(value, "__name__", repr(value)))
async def test_a_changed_call_with_a_field_of_another_type_is_the_hooks_failure(
    of: type, field: str, value: Any, kind: str
) -> None:
    call, result = next(pair for pair in CALLS if type(pair[0]) is of)
    tool = Tool(result)

    def spoil(led: Any, *call_next: Any) -> Any:
        changed = replace(led, **{field: value})
        return call_next[0](changed) if kind == "around" else changed

    outcome = await run([hook(kind, spoil, call=of)], call, tool)

    assert outcome.denied is not None
    assert "changed " in outcome.denied.reason
    assert ("messages" if field == "input" else field) in outcome.denied.reason
    assert tool.calls == []
    assert statuses(outcome) == [(kind, "error")]


@for_each("metadata", [None, 3, ["x"], "text"])
async def test_metadata_that_is_no_mapping_is_a_wrong_value(metadata: Any) -> None:
    outcome = await run([before(lambda call: replace(call, metadata=metadata))])

    assert statuses(outcome) == [("before", "error")]


async def test_metadata_that_cannot_be_read_is_a_wrong_value() -> None:
    class Torn(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return key

        def __iter__(self) -> Iterator[str]:
            raise ValueError("torn")

        def __len__(self) -> int:
            return 1

    outcome = await run([before(lambda call: replace(call, metadata=Torn()))])

    assert outcome.denied is not None
    assert "cannot be used: ValueError: torn" in outcome.denied.reason


@pytest.mark.parametrize("kind", ["before", "around", "after"])
async def test_what_cannot_be_compared_with_what_was_there_is_a_change(kind: str) -> None:
    tool = Tool()

    async def odd(call: Any, *rest: Any) -> Any:
        if kind == "after":
            return replace(rest[0], metadata={"odd": Junk()})
        changed = with_args(call, q=Junk())
        return await rest[0](changed) if rest else changed

    outcome = await run([hook(kind, odd)], terminal=tool)

    assert outcome.denied is None
    assert [(each.status, each.decision) for each in outcome.executions] == [("ok", "changed")]
    if kind != "after":
        assert type(tool.calls[0].args["q"]) is Junk


@pytest.mark.parametrize("kind", ["before", "around", "after"])
async def test_what_a_hook_gives_back_as_it_was_is_no_change_even_if_it_cannot_be_compared(kind: str) -> None:
    async def giving_back(call: Any, *rest: Any) -> Any:
        if kind == "around":
            return await rest[0](call)
        return rest[0] if rest else call

    tool = Tool(ToolResult(content="x", metadata={"odd": Junk()}))
    outcome = await run([hook(kind, giving_back)], tool_call(args={"odd": Junk()}), tool)

    assert [(each.status, each.decision) for each in outcome.executions] == [("ok", "")]
    assert outcome.result is tool.answer


# --- metadata


async def test_one_metadata_dict_is_shared_by_every_hook_before_and_after() -> None:
    seen: list[int] = []

    async def noting(call: Any, call_next: Any) -> Any:
        seen.append(id(call.metadata))
        call.metadata["around in"] = True
        result = await call_next(with_args(call, n=1))
        call.metadata["around out"] = True
        return result

    def note(name: str) -> Any:
        def handler(call: Any, *rest: Any) -> Any:
            seen.append(id(call.metadata))
            call.metadata[name] = True
            return replace(call, args={"n": 2}) if name == "before" else None

        return handler

    call = tool_call()
    hooks = [
        around(noting),
        before(note("before")),
        guard(note("guard")),
        after(note("after")),
        after(note("last"), wait=False),
    ]
    outcome = await run(hooks, call)

    assert set(seen) == {id(call.metadata)}
    assert list(call.metadata) == ["around in", "before", "guard", "after", "around out", "last"]
    assert outcome.call.metadata is call.metadata


async def test_a_call_that_was_changed_with_other_metadata_still_shares_the_one_dict() -> None:
    seen: list[Any] = []
    call = tool_call(metadata={"old": 1})
    hooks = [
        before(lambda call: replace(call, metadata={"new": 2})),
        after(lambda call, result: seen.append(call.metadata)),
    ]

    await run(hooks, call)

    assert seen[0] is call.metadata
    assert call.metadata["new"] == 2


async def test_two_calls_do_not_share_their_metadata() -> None:
    first, second = tool_call(), tool_call()

    await run([before(lambda call: call.metadata.update(noted=1))], first)

    assert first.metadata == {"noted": 1}
    assert second.metadata == {}
    assert tool_call().metadata == {}


async def test_metadata_of_a_denied_call_is_kept() -> None:
    outcome = await run([before(lambda call: call.metadata.update(score=9)), guard(lambda call: Deny("no"))])

    assert outcome.call.metadata == {"score": 9}


# --- edits in place


EDITS: dict[str, Any] = {
    "set": lambda args: args.__setitem__("q", "edited"),
    "new key": lambda args: args.__setitem__("new", 1),
    "delete": lambda args: args.__delitem__("q"),
    "update": lambda args: args.update(q="edited"),
    "pop": lambda args: args.pop("q"),
    "popitem": lambda args: args.popitem(),
    "clear": lambda args: args.clear(),
    "setdefault": lambda args: args.setdefault("new", 1),
    "or": lambda args: args.__ior__({"q": "edited"}),
    "nested dict": lambda args: args["nested"].__setitem__("deep", "edited"),
    "nested list": lambda args: args["items"].append(4),
    "list item": lambda args: args["items"].__setitem__(0, "edited"),
    "list slice": lambda args: args["items"].__setitem__(slice(None), []),
    "list delete": lambda args: args["items"].__delitem__(0),
    "list plus": lambda args: args["items"].__iadd__([4]),
    "list times": lambda args: args["items"].__imul__(2),
    "list clear": lambda args: args["items"].clear(),
    "sort": lambda args: args["items"].sort(reverse=True),
    "reverse": lambda args: args["items"].reverse(),
    "insert": lambda args: args["items"].insert(0, 0),
    "extend": lambda args: args["items"].extend([0]),
    "remove": lambda args: args["items"].remove(1),
    "pop item": lambda args: args["items"].pop(),
    "dict in a list": lambda args: args["items"][2].__setitem__("in", "edited"),
    "list in a tuple": lambda args: args["pair"][0].append(1),
}


@for_each("name", EDITS)
@for_each("kind", KINDS)
async def test_edits_of_arguments_in_place_reach_nobody(name: str, kind: str) -> None:
    args = {"q": "x", "nested": {"deep": 1}, "items": [1, 2, {"in": 1}], "pair": ([], 1)}
    original = copy.deepcopy(args)
    call = tool_call(args=args)
    seen: list[Any] = []
    tool = Tool()

    def edit(call: Any, *rest: Any) -> Any:
        EDITS[name](call.args)
        return rest[0](call) if kind == "around" else None

    hooks = [
        hook(kind, edit, on_error="open", id="editor", priority=10),
        before(lambda call: seen.append(copy.deepcopy(call.args)), priority=20),
        guard(lambda call: seen.append(copy.deepcopy(call.args)), priority=20),
        after(lambda call, result: seen.append(copy.deepcopy(call.args)), priority=5),
    ]
    outcome = await run(hooks, call, tool)

    assert seen == [original] * 3
    assert tool.calls[0].args == outcome.call.args == call.args == args == original
    assert outcome.executions[[each.hook_id for each in outcome.executions].index("editor")].status == "error"


async def test_an_edit_of_the_callers_own_dict_after_the_call_was_made_reaches_nobody() -> None:
    args: dict[str, Any] = {"items": [1]}
    call = tool_call(args=args)
    tool = Tool()

    async def slow(call: Any) -> None:
        args["items"].append(2)
        args["new"] = 1
        await turns(1)

    await run([before(slow)], call, tool)

    assert tool.calls[0].args == {"items": [1]}


async def test_an_edit_of_a_dict_that_a_hook_has_put_into_the_call_reaches_nobody() -> None:
    mine: dict[str, Any] = {"items": [1]}
    tool = Tool()

    hooks = [
        before(lambda call: replace(call, args=mine), priority=1),
        before(lambda call: mine["items"].append(2), priority=2),
        guard(lambda call: mine.update(evil=True)),
    ]
    await run(hooks, terminal=tool)

    assert tool.calls[0].args == {"items": [1]}


async def test_read_only_arguments_read_like_any_other() -> None:
    import json

    seen: list[Any] = []
    call = tool_call(args={"a": [1, {"b": 2}]})

    def look(call: ToolCall) -> None:
        seen.extend([call.args == {"a": [1, {"b": 2}]}, json.loads(json.dumps(call.args)), {**call.args}, isinstance(call.args, dict)])  # fmt: skip
        mine = copy.deepcopy(call.args)
        mine["a"].append("mine")
        shallow = dict(call.args)
        shallow["mine"] = 1

    outcome = await run([before(look)], call)

    assert outcome.denied is None
    assert seen == [True, {"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True]
    assert call.args == {"a": [1, {"b": 2}]}


async def test_arguments_are_not_copied_for_every_hook() -> None:
    seen: list[int] = []
    hooks = [
        hook(kind, lambda call, *rest: seen.append(id(call.args)), on_error="open")
        for kind in ("before", "guard", "after")
    ]

    await run(hooks * 3)

    assert len(set(seen)) == 1


@for_each("kind", KINDS)
async def test_a_call_is_frozen(kind: str) -> None:
    tool = Tool()

    def edit(call: Any, *rest: Any) -> None:
        call.tool_name = "rm"

    outcome = await run([hook(kind, edit, on_error="open")], terminal=tool)

    assert tool.calls[0].tool_name == outcome.call.tool_name == "search"
    assert statuses(outcome) == [(kind, "error")]


OTHER_EDITS: dict[str, tuple[Any, Any]] = {
    "agent input": (AgentCall(input=[Message(role="user", content="hi")]), lambda call: call.input.append(1)),
    "agent message": (
        AgentCall(input=[Message(role="user", content="hi")]),
        lambda call: setattr(call.input[0], "content", "edited"),
    ),
    "model messages": (ModelCall(messages=[Message(role="user", content="hi")]), lambda call: call.messages.clear()),
    "arguments in a message": (
        ModelCall(
            messages=[
                Message(
                    role="assistant",
                    content="",
                    tool_calls=[ToolRequest(tool_name="ls", args={"p": "/"}, tool_call_id="1")],
                )
            ]
        ),
        lambda call: call.messages[0].tool_calls[0].args.update(p="edited"),
    ),
    "tools of a message": (
        ModelCall(
            messages=[
                Message(
                    role="assistant",
                    content="",
                    tool_calls=[ToolRequest(tool_name="ls", args={"p": "/"}, tool_call_id="1")],
                )
            ]
        ),
        lambda call: call.messages[0].tool_calls.clear(),
    ),
    "model settings": (ModelCall(messages=[], settings={"a": {"b": 1}}), lambda call: call.settings["a"].update(b=2)),
    "compact messages": (CompactCall(messages=[], token_count=1), lambda call: call.messages.append(1)),
    "request headers": (
        RequestCall(method="GET", path="/", headers={"a": "b"}),
        lambda call: call.headers.update(a="c"),
    ),
    "memory value": (MemoryCall(key="k", value=[{"a": [1]}]), lambda call: call.value[0]["a"].append(2)),
}


@for_each("name", OTHER_EDITS)
async def test_a_hook_that_fails_open_leaves_no_edit_in_any_other_call(name: str) -> None:
    call, edit = OTHER_EDITS[name]
    original = copy.deepcopy(call)
    seen: list[Any] = []

    async def terminal(call: Any) -> Any:
        seen.append(copy.deepcopy(call))
        return CALLS[[type(each) for each, _ in CALLS].index(type(call))][1]

    def half_made(call: Any) -> None:
        edit(call)
        raise ValueError

    await run([before(half_made, call=type(call), on_error="open")], call, terminal)

    assert seen == [original]


RESULT_EDITS: dict[str, tuple[Any, Any, Any]] = {
    "tool metadata": (
        tool_call(),
        lambda: ToolResult(content="x", metadata={"a": [1]}),
        lambda result: result.metadata["a"].append(2),
    ),
    "tool calls of a model": (
        ModelCall(messages=[]),
        lambda: ModelResponse(tool_calls=[ToolRequest(tool_name="ls", tool_call_id="1")]),
        lambda result: result.tool_calls.append(ToolRequest(tool_name="rm", tool_call_id="2")),
    ),
    "arguments of a model's tool call": (
        ModelCall(messages=[]),
        lambda: ModelResponse(tool_calls=[ToolRequest(tool_name="ls", args={"path": "/tmp"}, tool_call_id="1")]),
        lambda result: result.tool_calls[0].args.update(path="/"),
    ),
}


@for_each("name", RESULT_EDITS)
async def test_half_made_changes_of_a_result_by_a_failed_hook_are_not_seen(name: str) -> None:
    call, make, edit = RESULT_EDITS[name]

    def half_made(call: Any, result: Any) -> None:
        edit(result)
        raise ValueError

    outcome = await run([after(half_made, call=type(call), on_error="open")], call, Tool(make()))

    assert outcome.result == make()


async def test_tools_that_a_failed_hook_edits_are_not_seen_by_the_model() -> None:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    spec = ToolSpec(name="ls", description="", schema=parameters)
    call = ModelCall(messages=[], tools=[spec])
    seen: list[Any] = []

    def half_made(call: Any) -> None:
        call.tools[0].schema["properties"]["evil"] = {}
        raise ValueError

    async def terminal(call: Any) -> Any:
        seen.append(copy.deepcopy(call.tools[0].schema))
        return ModelResponse()

    await run([before(half_made, call=ModelCall, on_error="open")], call, terminal)

    assert seen == [{"type": "object", "properties": {"q": {"type": "string"}}}]


# --- the chain itself


@for_each(
    "call",
    [None, "text", object(), ToolCall, ToolResult(content="x"), {}, AgentResult(output="x")],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_what_is_no_call_cannot_be_led(call: Any) -> None:
    from hookline.interceptors import Chain

    with anyio.fail_after(5), pytest.raises(HookUsageError, match="call"):
        await Chain([]).run(call, Tool())
