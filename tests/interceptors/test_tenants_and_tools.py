"""Law 1: hooks of another tenant do not run; and `tool=`, a glob over `toolset/tool_name`."""

from __future__ import annotations

from typing import Any

import pytest

from hookline.calls import Deny, ModelCall, ToolCall
from hookline.hooks import Hooks
from hookline.interceptors import Chain
from tests.tables import for_each

from .calls import CALLS, Tool, after, around, before, guard, hook, lead, replace, run, statuses, tool_call

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]


def transparent(kind: str) -> Any:
    return (lambda call, call_next: call_next(call)) if kind == "around" else lambda *args: None


@for_each("kind", KINDS)
@for_each(("tenant", "expected"), [("acme", ["", "acme"]), ("other", ["", "other"]), ("", [""]), ("unknown", [""])])  # fmt: skip
async def test_hooks_of_another_tenant_do_not_run(kind: str, tenant: str, expected: list[str]) -> None:
    hooks = [hook(kind, transparent(kind), id=f"of {each}", tenant_id=each) for each in ("other", "", "acme")]

    outcome = await run(hooks, tool_call(tenant_id=tenant))

    assert sorted(each.hook_id for each in outcome.executions) == [f"of {each}" for each in expected]


@for_each(("call", "result"), CALLS, ids=lambda value: type(value).__name__)
async def test_tenants_are_kept_apart_for_every_class_of_calls(call: Any, result: Any) -> None:
    hooks = [before(lambda call: Deny("not yours"), call=type(call), tenant_id="other")]

    assert (await run(hooks, replace(call, tenant_id="acme"), Tool(result))).denied is None
    assert (await run(hooks, replace(call, tenant_id="other"), Tool(result))).denied is not None


async def test_the_tenant_of_a_bundle_is_the_tenant_of_its_hooks() -> None:
    bundle = Hooks("bundle", tenant_id="acme")
    bundle.guard(ToolCall)(lambda call: Deny("no"))
    chain = Chain([bundle])

    assert (await lead(chain, tool_call(tenant_id="acme"))).denied is not None
    assert (await lead(chain, tool_call(tenant_id="other"))).denied is None
    assert (await lead(chain, tool_call())).denied is None


async def test_a_tenants_hook_cannot_run_before_a_system_hook_of_lower_priority() -> None:
    seen: list[str] = []
    hooks = [
        before(lambda call: seen.append("tenant"), tenant_id="acme", priority=1),
        before(lambda call: seen.append("system"), priority=0),
    ]

    await run(hooks, tool_call(tenant_id="acme"))

    assert seen == ["system", "tenant"]


async def test_a_tenants_hook_cannot_lift_a_denial_of_the_system() -> None:
    async def overrule(call: Any, call_next: Any) -> Any:
        with pytest.raises(Exception, match="no"):
            await call_next(call)
        return Tool().answer

    hooks = [around(overrule, tenant_id="acme", priority=0), guard(lambda call: Deny("no"))]
    outcome = await run(hooks, tool_call(tenant_id="acme"))

    assert outcome.denied is not None


TOOLS: list[tuple[str, str, str, bool]] = [
    ("*/search", "local", "search", True),
    ("*/search", "server", "search", True),
    ("*/search", "local", "research", False),
    ("*/search", "local", "search2", False),
    ("local/*", "local", "anything", True),
    ("local/*", "locals", "anything", False),
    ("local/search", "local", "search", True),
    ("local/search", "local", "Search", False),
    ("search", "local", "search", True),
    ("sea*", "local", "search", True),
    ("local*", "local", "search", False),
    ("*", "local", "search", True),
    ("*sea*", "local", "search", True),
    ("*/s?arch", "local", "search", True),
    ("*/[rs]earch", "local", "search", True),
    ("*/search", "https://server/mcp", "search", True),
    ("server/*", "server", "group/search", True),
    ("*/a.b", "local", "axb", False),
    ("*/a\nb", "local", "a\nb", True),
    ("local/*", "local", "line\nbreak", True),
]


@for_each("kind", KINDS)
@for_each(("pattern", "toolset", "tool_name", "matches"), TOOLS)
async def test_a_tool_filter_is_a_glob_over_identifier_and_name(
    kind: str, pattern: str, toolset: str, tool_name: str, *, matches: bool
) -> None:
    call = tool_call(toolset=toolset, tool_name=tool_name)

    outcome = await run([hook(kind, transparent(kind), tool=pattern)], call)

    assert statuses(outcome) == ([(kind, "ok")] if matches else [])
    assert outcome.result.content == "result"


async def test_each_hook_filters_by_the_call_as_it_meets_it() -> None:
    seen: list[str] = []
    hooks = [
        before(lambda call: seen.append("1 ls"), tool="*/ls", priority=1),
        before(lambda call: replace(call, tool_name="cat"), tool="*/ls", priority=2),
        before(lambda call: seen.append("3 ls"), tool="*/ls", priority=3),
        before(lambda call: seen.append("4 cat"), tool="*/cat", priority=4),
        guard(lambda call: seen.append("guard ls"), tool="*/ls"),
        guard(lambda call: seen.append("guard cat"), tool="*/cat"),
        after(lambda call, result: seen.append("after ls"), tool="*/ls", priority=0),
        after(lambda call, result: seen.append("after cat"), tool="*/cat", priority=0),
    ]

    await run(hooks, tool_call(tool_name="ls"))

    assert seen == ["1 ls", "4 cat", "guard cat", "after cat"]


async def test_an_around_that_does_not_match_is_not_in_the_way() -> None:
    async def refuse(call: Any, call_next: Any) -> Deny:
        return Deny("no")

    tool = Tool()
    outcome = await run([around(refuse, tool="*/other"), before(lambda call: None)], terminal=tool)

    assert outcome.result is tool.answer
    assert statuses(outcome) == [("before", "ok")]


async def test_a_filter_does_not_hold_for_other_calls_of_the_same_bundle() -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    bundle.before(ToolCall, tool="*/other")(lambda call: seen.append("tool"))
    bundle.before(ModelCall)(lambda call: seen.append("model"))
    chain = Chain([bundle])

    await lead(chain, tool_call())
    await lead(chain, ModelCall(messages=[]), Tool(CALLS[2][1]))

    assert seen == ["model"]
