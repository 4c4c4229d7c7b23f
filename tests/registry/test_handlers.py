"""Only what is installed or configured may be named as a handler; nothing else is ever imported."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import Agent, exec_agent
from hookline.calls import AgentCall, Message, ModelCall, ModelResponse, ToolCall
from hookline.delivery import KeyRing
from hookline.errors import HookUsageError
from hookline.events import AfterToolCall
from hookline.hooks import Hooks
from hookline.registry import DefinitionError, HandlerCatalog, HookDefinition
from hookline.registry import _catalog as catalog_module
from hookline.registry._build import Builder
from hookline.registry._catalog import BUILT_IN
from hookline.registry._definition import read_definition
from hookline.runtime import OperationResult
from tests.tables import for_each

from .scenes import FACTORIES, PAY, definition, pay

pytestmark = pytest.mark.anyio


def builder(*modules: str) -> Builder:
    return Builder(HandlerCatalog(modules), None, KeyRing())


def build(**fields: Any) -> Hooks:
    hook = builder(FACTORIES).build_new(read_definition(definition(id="hook_1", **fields)))
    assert isinstance(hook, Hooks)
    return hook


@for_each(
    "reference",
    [
        "os:system",
        "subprocess:run",
        "builtins:eval",
        "tests.registry:factories",
        "tests.registry.factories.say:say",
        "tests.registry.factories",
        "tests.registry.factories:",
        "tests.registry.factories:say.__globals__",
        "tests.registry.factories:_private",
        "tests.registry.factories:say ",
        "../factories:say",
        "hookline.registry._catalog:deny",
        "__import__",
        "",
        "x" * 300,
    ],
)
def test_what_is_not_allowed_is_refused(reference: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        builder(FACTORIES).build_new(definition(id="hook_1", handler=reference))

    assert (refused.value.code, refused.value.path) == ("handler_not_allowed", "$.handler")


def test_what_is_not_allowed_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harmful_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(DefinitionError):
        builder(FACTORIES).build_new(definition(id="hook_1", handler="harmful_module:run"))

    assert "harmful_module" not in sys.modules


def test_what_a_module_has_only_imported_may_not_be_named_unless_it_is_in_its_all() -> None:
    with pytest.raises(DefinitionError) as refused:
        build(handler=f"{FACTORIES}:getoutput", config={"cmd": "true"})

    assert refused.value.code == "handler_not_allowed"
    with pytest.raises(DefinitionError) as refused:
        build(handler=f"{FACTORIES}:check_output", config={"nothing": "1"})
    assert refused.value.code == "config_refused"


@for_each(
    "fields, code, says",
    [
        ({"handler": f"{FACTORIES}:gone"}, "handler_broken", "gone"),
        ({"handler": f"{FACTORIES}:number"}, "handler_not_allowed", "not defined"),
        ({"handler": f"{FACTORIES}:asynchronous"}, "handler_broken", "async"),
        ({"handler": f"{FACTORIES}:broken", "config": {"word": "w"}}, "config_refused", "cannot be made of 'w'"),
        ({"handler": f"{FACTORIES}:nothing"}, "point_not_served", "callable"),
        ({"handler": f"{FACTORIES}:say", "config": {"texte": "x"}}, "config_refused", "texte"),
        ({"handler": f"{FACTORIES}:counting"}, "config_refused", "most"),
        ({"handler": f"{FACTORIES}:unlike", "config": {"word": "x"}}, "point_not_served", "the call"),
        ({"handler": f"{FACTORIES}:two_hooks", "config": {"word": "x", "priority": 3}}, "config_refused", "priority"),
        ({"handler": f"{FACTORIES}:two_hooks", "config": {"word": "x"}, "tool": "*/x"}, "invalid", "config"),
        (
            {"handler": f"{FACTORIES}:two_hooks", "config": {"word": "x"}, "point": "ModelCall.guard"},
            "point_not_served",
            "ToolCall.guard",
        ),
    ],
)
def test_a_handler_that_cannot_work_is_refused_when_it_is_named(fields: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says) as refused:
        build(**fields)

    assert refused.value.code == code


async def test_a_factory_is_given_a_copy_of_the_config() -> None:
    stored = definition(id="hook_1", handler=f"{FACTORIES}:say", config={"text": "never", "times": 2})

    outcome = await pay([builder(FACTORIES).build_new(stored)])

    assert outcome.denied is not None
    assert (outcome.denied.hook_id, outcome.denied.reason) == ("hook_1", "nevernever")


async def test_a_bundle_stands_where_its_factory_puts_it_and_carries_the_definitions_id() -> None:
    bundle = build(
        handler=f"{FACTORIES}:two_hooks", config={"word": "pay"}, priority=70, tenant_id="acme", on_error="open"
    )

    assert {(each.id, each.kind, each.priority, each.tenant_id, each.on_error) for each in bundle.interceptors} == {
        ("hook_1", "guard", 70, "acme", "open"),
        ("hook_1", "after", 930, "acme", "open"),
    }
    outcome = await pay([bundle], msgspec.structs.replace(PAY, tenant_id="acme"))
    assert outcome.denied is not None


@pytest.mark.parametrize("inherit", [None, True, False])
async def test_a_factory_is_told_whether_its_hooks_go_along_into_sub_agents(inherit: bool | None) -> None:
    bundle = build(handler="deny-tools", config={"tools": ["*/pay"]}, inherit=inherit)

    assert bundle.inherit is (inherit is not False)


def test_entry_points_of_other_packages_may_be_named_once_but_not_in_the_place_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def installed(group: str) -> list[EntryPoint]:
        assert group == "hookline.handlers"
        say, other = f"{FACTORIES}:say", f"{FACTORIES}:counting"
        return [
            EntryPoint("acme-say", say, group),
            EntryPoint("twice", say, group),
            EntryPoint("twice", other, group),
            EntryPoint("deny", say, group),
            EntryPoint("vanished", "tests.registry.gone:say", group),
        ]

    monkeypatch.setattr(catalog_module, "entry_points", installed)
    catalog = HandlerCatalog()

    assert "acme-say" in catalog
    assert catalog.build(definition(handler="acme-say"))(PAY).reason == "no"
    assert "twice" not in catalog
    with pytest.raises(DefinitionError, match="several installed packages"):
        catalog.build(definition(handler="twice"))
    with pytest.raises(DefinitionError) as refused:
        catalog.build(definition(handler="vanished"))
    assert refused.value.code == "handler_broken"
    assert catalog.build(definition(handler="deny"))(PAY).reason == "These calls are disabled."
    shown = {entry.name: entry for entry in catalog.entries()}
    assert shown["vanished"].problem
    assert shown["acme-say"].parameters == ["text", "times"]


def test_every_handler_that_hookline_brings_along_is_described() -> None:
    entries = HandlerCatalog().entries()

    assert [entry.name for entry in entries] == sorted(BUILT_IN)
    assert all(entry.description and not entry.problem for entry in entries)
    assert {entry.name: entry.required for entry in entries if entry.required} == {
        "allow-tools": ["tools"],
        "deny-phrases": ["phrases"],
        "deny-tools": ["tools"],
        "limit-calls": ["n"],
        "redact": ["patterns"],
        "require-approval": ["tools"],
    }


def test_whoever_changes_a_description_changes_it_for_nobody_else() -> None:
    catalog = HandlerCatalog()
    before = catalog.entries()
    for entry in catalog.entries():
        entry.schema.clear()
        entry.required.append("changed")

    assert catalog.entries() == before
    assert [catalog.describe(entry.name) for entry in before] == before


def test_modules_are_dotted_names() -> None:
    for wrong in ("tests.registry", ["a b"], ["a:b"], [""]):
        with pytest.raises(HookUsageError):
            HandlerCatalog(wrong)


@for_each(
    "handler, config, denied",
    [
        ("deny", {}, True),
        ("deny-tools", {"tools": ["pay"]}, True),
        ("deny-tools", {"tools": ["other"]}, False),
        ("allow-tools", {"tools": ["bank/*"]}, False),
        ("allow-tools", {"tools": ["other"]}, True),
        ("require-approval", {"tools": ["pay"]}, True),
        ("limit-calls", {"n": 1}, False),
        ("deny-text", {"texts": ["SECRET"]}, True),
        ("deny-text", {"texts": ["word"]}, False),
        ("deny-text", {"patterns": ["email"]}, True),
        ("log", {"message": "seen"}, False),
    ],
)
async def test_the_handlers_that_hookline_brings_along_judge_tool_calls(
    handler: str, config: dict[str, Any], denied: bool
) -> None:
    call = ToolCall(
        toolset="bank", tool_name="pay", args={"to": [{"address": "a@b.example"}], "a Secret": 1}, operation_id="op"
    )

    outcome = await pay([build(handler=handler, config=config)], call)

    assert (outcome.denied is not None) is denied


async def test_the_limit_of_calls_holds_for_the_calls_of_a_run() -> None:
    hooks = [build(handler="limit-calls", config={"n": 2})]

    assert [(await pay(hooks)).denied is None for _ in range(3)] == [True, True, False]


async def test_redacting_takes_named_patterns_and_no_expressions() -> None:
    hooks = [build(handler="redact", config={"patterns": ["email"], "args": True}, point="ToolCall.before")]
    call = ToolCall(toolset="bank", tool_name="pay", args={"to": "a@b.example"})

    assert (await pay(hooks, call)).call.args == {"to": "[redacted]"}
    for handler in ("redact", "deny-text"):
        with pytest.raises(DefinitionError, match="email"):
            build(handler=handler, config={"patterns": ["(a+)+$"]}, point="ToolCall.before")


async def read(hook: Hooks, *pieces: str) -> tuple[list[str], OperationResult]:
    """Return the pieces that a reader got of an answer, and the result of the run."""

    class Streamed:
        name = provider = "streamed"

        async def respond(self, call: ModelCall) -> ModelResponse:
            return ModelResponse(content="".join(pieces))

        async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
            for piece in pieces:
                yield piece
            yield ModelResponse(content="".join(pieces))

    got: list[str] = []
    result = await exec_agent(Agent(id="a", model=Streamed()), "go", hooks=[hook], on_token=got.append)
    return got, result


async def test_a_definition_denies_phrases_while_the_model_writes() -> None:
    config = {"phrases": ["Project Zeus"], "max_chars": 1}
    hook = build(handler="deny-phrases", config=config, point="ModelCall.after", priority=7)

    got, result = await read(hook, "We work on ", "pro", "ject zeus", " now")

    assert "".join(got) == "We "
    assert result.denied is not None
    assert (result.denied.hook_id, result.denied.reason) == (
        "hook_1",
        "the answer contains the banned phrase 'project zeus'",
    )


async def test_a_definition_redacts_an_answer_in_parts() -> None:
    config = {"patterns": ["email"], "parts": {"hold": 20, "max_chars": 1}}
    hook = build(handler="redact", config=config, point="ModelCall.after")

    got, result = await read(hook, "Write to ada@exam", "ple.org, who sits in the office in Rome", ".")

    assert "".join(got) == result.output == "Write to [redacted], who sits in the office in Rome."
    assert len(got) > 1


@for_each(
    "handler, config, problem",
    [
        ("redact", {"patterns": ["email"], "parts": {"hold": "word"}}, "hold"),
        ("redact", {"patterns": ["email"], "parts": 5}, "hold, max_chars and max_seconds"),
        ("redact", {"patterns": ["email"], "parts": {"max_chars": 0}}, "`max_chars` must be"),
        ("deny-phrases", {"phrases": []}, "at least one phrase"),
        ("deny-phrases", {"phrases": "zeus"}, "must be a list"),
        ("deny-phrases", {"phrases": ["zeus"], "max_seconds": -1}, "max_seconds"),
    ],
)
def test_invalid_parts_are_refused_when_the_definition_is_stored(
    handler: str, config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DefinitionError, match=problem) as refused:
        build(handler=handler, config=config, point="ModelCall.after")

    assert refused.value.code == "config_refused"


def test_the_schema_of_a_handler_describes_the_fields_of_parts() -> None:
    parts = HandlerCatalog().describe("redact").schema["$defs"]["TextParts"]["properties"]

    assert all(parts[name]["description"] for name in ("hold", "max_chars", "max_seconds"))


@pytest.mark.parametrize(
    "call",
    [
        AgentCall(input=[Message(role="user", content="say xyzzy")]),
        ModelCall(messages=[Message(role="user", content="xyzzy")]),
    ],
    ids=["agent", "model"],
)
def test_texts_are_found_in_what_other_calls_carry(call: Any) -> None:
    named = definition(handler="deny-text", point=f"{type(call).__name__}.before", config={"texts": ["xyzzy"]})

    assert HandlerCatalog().build(named)(call) is not None


def test_a_line_in_the_log_says_which_run_and_not_what_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    bundle = build(handler="log", point="afterToolCall", config={"level": "WARNING", "message": "look"})
    event = AfterToolCall(
        operation_id="op7",
        toolset="bank",
        tool_name="pay",
        args={"pin": "1234"},
        call_index=1,
        step_index=0,
        tool_call_id="t",
        content="the secret",
        success=True,
        execution_time_ms=1.0,
        mocked=False,
    )

    with caplog.at_level(logging.INFO, logger="hookline"):
        assert bundle.observers[0].handler is not None
        bundle.observers[0].handler(event)

    assert caplog.messages == ["hook_1 at afterToolCall of operation op7: look"]


@for_each("handler", ["deny", "deny-text", "log"])
def test_what_cannot_stand_at_a_point_is_refused_there(handler: str) -> None:
    config = {"texts": ["x"]} if handler == "deny-text" else {}
    for point in ("ToolCall.around", "ToolCall.after", "afterStep")[: 1 if handler == "log" else 3]:
        with pytest.raises(DefinitionError):
            build(handler=handler, point=point, config=config)


def test_a_hook_stays_the_same_while_only_what_it_does_not_see_changes() -> None:
    made = builder(FACTORIES)
    stored: HookDefinition = definition(id="hook_1", handler=f"{FACTORIES}:counting", config={"most": 1})

    first = made.get_or_build(stored).hook

    assert made.get_or_build(msgspec.structs.replace(stored, name="other", enabled=False, revision=9)).hook is first
    assert made.get_or_build(msgspec.structs.replace(stored, priority=7)).hook is not first


@for_each("name", sorted(BUILT_IN))
def test_each_field_of_a_built_in_handler_is_described_by_a_sentence(name: str) -> None:
    described = HandlerCatalog().describe(name).schema["properties"]

    assert [field for field, schema in described.items() if len(schema.get("description", "")) < 10] == []


def test_the_docstring_of_a_handler_describes_the_fields_of_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = '''
def hold(*, minutes: int, reason: str = "", point: str):
    """Hold calls back.

    Args:
        minutes: For how long. Example: 5
        point: The point of the definition.
    """
    return lambda call: None
'''
    (tmp_path / "holding_handlers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    schema = HandlerCatalog(["holding_handlers"]).describe("holding_handlers:hold").schema

    assert schema["properties"] == {
        "minutes": {"type": "integer", "description": "For how long. Example: 5"},
        "reason": {"type": "string", "default": ""},
    }
