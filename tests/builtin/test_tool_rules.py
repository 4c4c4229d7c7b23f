"""Which tools may be called, and with whose consent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    Approve,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    SubAgentCall,
    ToolCall,
    exec_agent,
    resume_agent,
)
from hookline.builtin import allow_tools, deny_tools, require_approval
from hookline.builtin._tools import Globs
from hookline.calls import AgentResult
from hookline.errors import HookDefinitionError
from hookline.interceptors import Chain
from tests.tables import for_each

from .scenes import agent_of, asks, called, says, through, told

pytestmark = pytest.mark.anyio


async def test_a_denied_tool_does_not_run_and_the_model_reads_which_rule_it_was() -> None:
    result = await exec_agent(agent_of(asks("bash", "search", query="x"), says()), "hi", hooks=[deny_tools("ba*")])

    assert result.reason == "done"
    assert told(result) == ["local/bash is denied by the rule 'ba*'", "found x"]


async def test_only_allowed_tools_run() -> None:
    result = await exec_agent(agent_of(asks("bash", "search"), says()), "hi", hooks=[allow_tools("search", "gh/*")])

    assert told(result) == ["local/bash is not one of the allowed tools: search, gh/*", "found "]


@for_each(
    ("glob", "name", "matches"),
    [
        ("search", "local/search", True),
        ("search", "github/search", True),
        ("search", "local/research", False),
        ("search", "x/group/search", True),
        ("sea*", "github/search", True),
        ("github/*", "github/search", True),
        ("github/*", "local/search", False),
        ("*/search", "x/evil/search", True),
        ("agent/helper", "agent/helper", True),
        ("*", "anything/at/all", True),
        ("Search", "local/search", False),
    ],
)
def test_a_glob_without_a_slash_is_about_that_tool_wherever_it_comes_from(glob: str, name: str, matches: bool) -> None:
    toolset, _, tool_name = name.partition("/")

    assert (Globs("test", (glob,)).match(toolset, tool_name) == glob) is matches


@given(st.text(), st.text())
def test_a_tool_is_either_allowed_or_denied_by_the_same_glob(toolset: str, tool_name: str) -> None:
    globs = Globs("test", ("a*", "local/*"))

    matched = globs.match(toolset, tool_name)

    assert (matched is not None) == (
        tool_name.startswith("a") or toolset == "local" or f"{toolset}/{tool_name}".startswith("local/")
    )


async def test_the_model_is_not_offered_what_it_may_not_call() -> None:
    offered: list[list[str]] = []

    def answer(call: ModelCall) -> ModelResponse:
        offered.append([f"{spec.toolset}/{spec.name}" for spec in call.tools])
        return says()

    helper = agent_of(says(), id="helper")
    for hooks in (deny_tools("bash", "agent/*"), deny_tools("bash", hide=False), allow_tools("agent/helper")):
        agent = agent_of(sub_agents=[helper])
        object.__setattr__(agent, "model", ScriptedModel(answer))
        await exec_agent(agent, "hi", hooks=[hooks])

    assert offered == [
        ["local/search", "local/broken"],
        ["local/search", "local/bash", "local/broken", "agent/helper"],
        ["agent/helper"],
    ]


async def test_a_denied_sub_agent_does_not_run() -> None:
    helper = agent_of(says("I helped"), id="helper")
    agent = agent_of(asks("agent/helper"), says(), sub_agents=[helper])

    result = await exec_agent(agent, "hi", hooks=[deny_tools("agent/helper")])

    assert "agent/helper is denied by the rule 'agent/helper'" in told(result)[0]


async def test_rules_go_along_into_sub_agents_unless_told_otherwise() -> None:
    def family() -> object:
        helper = agent_of(asks("bash", command="ls"), lambda_free("bash"), id="helper")
        return agent_of(asks("agent/helper"), says(), sub_agents=[helper])

    def lambda_free(name: str) -> ModelResponse:
        return says(f"I tried {name}")

    seen: list[str] = []
    watch = Hooks("watch", inherit=True)

    @watch.around(ToolCall)
    async def note(call: ToolCall, call_next: object) -> object:
        result = await call_next(call)  # type: ignore[operator]
        seen.append(result.content)
        return result

    await exec_agent(family(), "hi", hooks=[deny_tools("bash"), watch])  # type: ignore[arg-type]
    await exec_agent(family(), "hi", hooks=[deny_tools("bash", inherit=False), watch])  # type: ignore[arg-type]

    assert seen == ["ran ls"]


async def test_a_rule_judges_the_call_as_it_will_really_run() -> None:
    renames = Hooks("renames")

    @renames.before(ToolCall)
    def rename(call: ToolCall) -> ToolCall:
        return called("local/bash", operation_id=call.operation_id, tool_call_id=call.tool_call_id)

    outcome = await through(Chain([deny_tools("bash"), renames]), called("local/search"))

    assert outcome.denied is not None
    assert outcome.denied.hook_id == "deny_tools"


async def test_a_rule_of_one_tenant_is_none_for_another() -> None:
    chain = Chain([deny_tools("*", tenant_id="a")])

    assert (await through(chain, called(tenant_id="a"))).denied is not None
    assert (await through(chain, called(tenant_id="b"))).denied is None


async def test_a_sub_agent_is_judged_by_its_name_in_a_bare_chain_too() -> None:
    chain = Chain([allow_tools("agent/good")])

    denied = await through(chain, SubAgentCall(callee_id="bad", instruction=""), AgentResult(output=""))
    ran = await through(chain, SubAgentCall(callee_id="good", instruction=""), AgentResult(output=""))

    assert denied.denied is not None
    assert ran.denied is None


async def test_a_person_is_asked_and_the_approved_call_runs_once() -> None:
    agent = agent_of(asks("bash", "search", command="make"), says(), tools=agent_of().tools)
    hooks = require_approval("bash")

    paused = await exec_agent(agent, "hi", hooks=[hooks])
    result = await resume_agent(agent, paused.operation_id, [Approve("t0")], hooks=[hooks])

    assert paused.reason == "waiting_for_human"
    assert [(pending.tool_name, pending.prompt) for pending in paused.pending] == [
        ("bash", "May local/bash be called with {'command': 'make'}?")
    ]
    assert told(result)[0] == "ran make"


@pytest.mark.parametrize("prompt", ["Really?", lambda call: f"Really {call.tool_name}?"])
async def test_the_question_can_be_chosen(prompt: object) -> None:
    outcome = await through(Chain([require_approval("search", prompt=prompt)]), called())  # type: ignore[arg-type]

    assert outcome.asked is not None
    assert outcome.asked.prompt in ("Really?", "Really search?")


async def test_a_question_that_cannot_be_put_denies_the_call() -> None:
    def fails(call: ToolCall) -> str:
        raise KeyError("amount")

    outcome = await through(Chain([require_approval("*", prompt=fails)]), called())

    assert outcome.denied is not None
    assert outcome.asked is None


@for_each("rule", [allow_tools, deny_tools, require_approval])
@for_each("globs", [(), ("",), (None,), (["a", "b"],)])
def test_a_rule_without_tools_is_refused(rule: object, globs: tuple[object, ...]) -> None:
    with pytest.raises(HookDefinitionError, match="name tools by globs"):
        rule(*globs)  # type: ignore[operator]


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(HookDefinitionError, match="`prompt` must be text or a function"):
        require_approval("*", prompt=3)  # type: ignore[arg-type]


def test_a_bundle_has_the_options_of_every_bundle() -> None:
    hooks = deny_tools("x", id="mine", priority=40, tenant_id="t", inherit=False)

    assert (hooks.id, hooks.priority, hooks.tenant_id, hooks.inherit) == ("mine", 40, "t", False)
    assert {hook.id for hook in hooks.interceptors} == {"mine"}
