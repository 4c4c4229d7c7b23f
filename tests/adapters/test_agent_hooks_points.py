"""Policies of AGENT-HOOKS-0.1 at all eight points: what they see, and that what they decide is what happens."""

from __future__ import annotations

import json
import logging

import anyio
import pytest
from agent_hooks import Verdict

from hookline import (
    Agent,
    AgentCall,
    AgentResult,
    AgentSession,
    Continue,
    Deny,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    Respond,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    Usage,
    exec_agent,
    interrupt,
    tool,
)
from hookline.adapters.agent_hooks import PolicyHooks
from hookline.runtime import stream_agent
from tests.tables import for_each

from .policies import POINTS, AsyncPolicy, Policy, Sums, agent, asks, says, told, transform

pytestmark = pytest.mark.anyio


async def test_a_policy_is_asked_at_all_eight_points_in_order() -> None:
    policy = Policy()

    result = await exec_agent(
        agent(Sums(), asks("account", number=7), says("hers")), "whose?", hooks=[PolicyHooks(policy)]
    )

    assert result.output == "hers"
    assert policy.points == [*POINTS[:6], *POINTS[2:4], *POINTS[6:]]
    assert [context["sequence"] for context in policy.asked] == list(range(10))
    assert {context["session"]["id"] for context in policy.asked} == {result.operation_id}
    assert {context["agent"]["framework"] for context in policy.asked} == {"hookline"}


async def test_a_policy_sees_what_the_run_really_does() -> None:
    policy = Policy()
    asked = asks("account", number=7)
    model = [
        ModelResponse(tool_calls=asked.tool_calls, usage=Usage(input_tokens=3, output_tokens=4), finish_reason="tools"),
        says("hers"),
    ]

    await exec_agent(
        agent(Sums(), *model, instructions="Be brief."),
        "whose?",
        hooks=[PolicyHooks(policy)],
        tenant_id="acme",
        user_id="u",
    )

    assert policy.at("agent_startup")[0]["agent_init"] == {"tools_registered": ["pay", "account"]}
    assert policy.at("input")[0]["target"] == {"content": "whose?", "role": "user"}
    assert policy.at("pre_model_call")[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "whose?"},
    ]
    assert [tool["name"] for tool in policy.at("pre_model_call")[0]["tools"]] == ["pay", "account"]
    assert policy.at("post_model_call")[0]["target"] == {
        "content": None,
        "tool_calls": [{"id": "t1", "name": "account", "args": {"number": 7}}],
        "finish_reason": "tools",
    }
    assert policy.at("post_model_call")[0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4}
    assert policy.at("pre_tool_call")[0]["tool_call"] == {"id": "t1", "name": "account", "args": {"number": 7}}
    assert policy.at("post_tool_call")[0]["tool_result"]["value"] == {"number": 7, "owner": {"name": "Ada"}}
    assert policy.at("output")[0]["target"] == {"content": "hers"}
    assert policy.at("agent_shutdown")[0]["summary"]["reason"] == "completed"
    assert policy.asked[0]["tenant"] == {"id": "acme"}
    assert policy.asked[0]["actor"] == {"id": "u"}


@pytest.mark.parametrize("kind", [Policy, AsyncPolicy])
async def test_a_denied_tool_call_does_not_run_and_the_model_reads_why(kind: type[Policy]) -> None:
    sums, policy = Sums(), kind(pre_tool_call=Verdict.deny(reason="too_much", message="ask the boss"))

    result = await exec_agent(
        agent(sums, asks("pay", to="Ada", amount=5), says("no")), "pay", hooks=[PolicyHooks(policy)]
    )

    assert sums.paid == []
    assert told(result) == ["too_much: ask the boss"]
    assert (result.reason, result.output) == ("done", "no")
    assert "post_tool_call" not in policy.points


@for_each("point", ["agent_startup", "input", "pre_model_call", "post_model_call", "output"])
async def test_a_denial_elsewhere_ends_the_run(point: str) -> None:
    policy = Policy(**{point: Verdict.deny(reason="not_today")})

    result = await exec_agent(agent(Sums(), says("secret")), "hello", hooks=[PolicyHooks(policy)])

    assert (result.reason, result.output) == ("interrupted", "")
    assert result.denied is not None
    assert (result.denied.hook_id.startswith("policies."), result.denied.reason) == (True, "not_today")
    assert policy.points[-2:] == [point, "agent_shutdown"]
    assert policy.asked[-1]["summary"]["reason"] == "error"
    assert not any("secret" in message.content for message in result.messages)


async def test_a_denial_at_shutdown_is_only_recorded() -> None:
    policies = PolicyHooks(Policy(agent_shutdown=Verdict.deny(reason="too late")))

    result = await exec_agent(agent(Sums(), says("bye")), "hello", hooks=[policies])

    assert result.output == "bye"
    assert policies.records[-1].verdict.reason == "too late"


async def test_what_a_policy_transforms_is_what_runs() -> None:
    sums = Sums()
    seen: list[list[Message]] = []
    policy = Policy(
        input=transform("$target.content", "pay less"),
        pre_model_call=lambda context: transform("$target[0].content", context["target"][0]["content"].upper()),
        post_model_call=lambda context: (
            transform("$target.tool_calls[0].args.amount", 50)
            if context["target"]["tool_calls"]
            else transform("$target.content", "done by policy")
        ),
        pre_tool_call=lambda context: transform("$target.amount", context["target"]["amount"] - 1),
        post_tool_call=transform("$target", "paid something"),
        output=lambda context: transform("$target.content", context["target"]["content"] + "!"),
    )

    def model(call: ModelCall) -> ModelResponse:
        seen.append(list(call.messages))
        return asks("pay", to="Ada", amount=500) if len(seen) == 1 else says("done")

    banker = Agent(id="banker", model=ScriptedModel(model), tools=sums.tools())
    result = await exec_agent(banker, "pay all", hooks=[PolicyHooks(policy)])

    assert seen[0][0].content == "PAY LESS"
    assert sums.paid == [("Ada", 49)]
    assert told(result) == ["paid something"]
    assert result.output == "done by policy!"
    assert [message.content for message in result.messages] == ["pay less", "", "paid something", "done by policy!"]
    assert policy.at("post_tool_call")[0]["tool_call"]["args"] == {"to": "Ada", "amount": 49}


async def test_a_structured_result_is_transformed_in_its_structure() -> None:
    policy = Policy(post_tool_call=transform("$target.owner.name", "[redacted]"))

    result = await exec_agent(
        agent(Sums(), asks("account", number=7), says("ok")), "whose?", hooks=[PolicyHooks(policy)]
    )

    assert json.loads(told(result)[0]) == {"number": 7, "owner": {"name": "[redacted]"}}


@for_each("text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "[9007199254740993]", "{no json"])
async def test_json_that_readers_read_differently_is_judged_as_text(text: str) -> None:
    policy = Policy()

    @tool
    async def odd() -> str:
        return text

    odd_agent = Agent(id="odd", model=ScriptedModel([asks("odd"), says("ok")]), tools=[odd])
    result = await exec_agent(odd_agent, "go", hooks=[PolicyHooks(policy)])

    assert policy.at("post_tool_call")[0]["target"] == text
    assert told(result) == [text]


async def test_a_denied_result_is_not_read_by_the_model() -> None:
    policy = Policy(post_tool_call=Verdict.deny(reason="tainted"))

    result = await exec_agent(
        agent(Sums(), asks("account", number=7), says("ok")), "whose?", hooks=[PolicyHooks(policy)]
    )

    assert "tainted" in told(result)[0]
    assert "Ada" not in json.dumps([message.content for message in result.messages])


async def test_warnings_are_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    policies = PolicyHooks(Policy(pre_tool_call=Verdict.warn(reason="odd_hour", message="it is late")))

    with caplog.at_level(logging.WARNING, logger="hookline"):
        result = await exec_agent(agent(Sums(), asks("account", number=7), says("ok")), "go", hooks=[policies])

    assert result.output == "ok"
    assert (
        f"A policy warns at pre_tool_call of operation {result.operation_id}: odd_hour: it is late" in caplog.messages
    )
    kept = [record for record in policies.records if record.verdict.warnings]
    assert [warning.reason for record in kept for warning in record.verdict.warnings] == ["odd_hour"]


async def test_only_evaluating_changes_nothing_and_tells_what_would_be(caplog: pytest.LogCaptureFixture) -> None:
    sums = Sums()
    policies = PolicyHooks(
        Policy(
            input=transform("$target.content", "other"),
            pre_tool_call=Verdict.escalate(reason="ask"),
            output=Verdict.deny(reason="no"),
        ),
        mode="evaluate_only",
    )

    with caplog.at_level(logging.WARNING, logger="hookline"):
        result = await exec_agent(agent(sums, asks("pay", to="Ada", amount=5), says("ok")), "go", hooks=[policies])

    assert (result.reason, result.output, result.messages[0].content) == ("done", "ok", "go")
    assert sums.paid == [("Ada", 5)]
    assert sum("would deny" in message for message in caplog.messages) == 2
    assert [record.verdict.reason for record in policies.records if not record.verdict.decision.permits] == [
        "ask",
        "no",
    ]


async def test_policies_may_judge_at_some_points_only() -> None:
    policy = Policy()

    result = await exec_agent(
        agent(Sums(), asks("account", number=7), says("ok")), "go", hooks=[PolicyHooks(policy, at=["post_tool_call"])]
    )

    assert result.output == "ok"
    assert policy.points == ["post_tool_call"]


async def test_without_an_interceptor_everything_is_denied() -> None:
    result = await exec_agent(agent(Sums(), says("ok")), "go", hooks=[PolicyHooks()])

    assert result.denied is not None
    assert result.denied.reason == "host_error:no_interceptor"


async def test_policies_judge_the_last_word_of_other_hooks() -> None:
    sums, policy, others = Sums(), Policy(), Hooks("others", priority=900)

    @others.before(ToolCall)
    def more(call: ToolCall) -> ToolCall:
        return call.with_args(amount=999)

    @others.after(AgentCall)
    def shout(call: AgentCall, result: AgentResult) -> AgentResult:
        return AgentResult(output=result.output.upper())

    await exec_agent(
        agent(sums, asks("pay", to="Ada", amount=1), says("ok")), "go", hooks=[PolicyHooks(policy), others]
    )

    assert sums.paid == [("Ada", 999)]
    assert policy.at("pre_tool_call")[0]["target"]["amount"] == 999
    assert policy.at("output")[0]["target"] == {"content": "OK"}


async def test_two_bundles_of_policies_judge_what_the_other_made() -> None:
    sums, first, second = Sums(), Policy("first"), Policy("second", pre_tool_call=transform("$target.amount", 7))

    await exec_agent(
        agent(sums, asks("pay", to="Ada", amount=1), says("ok")),
        "go",
        hooks=[PolicyHooks(first, id="first"), PolicyHooks(second, id="second")],
    )

    assert sums.paid == [("Ada", 7)]
    assert [context["target"]["amount"] for context in first.at("pre_tool_call")] == [1, 7]
    assert [context["target"]["amount"] for context in second.at("pre_tool_call")] == [1]


async def test_a_bundle_that_is_given_twice_is_refused() -> None:
    policies = PolicyHooks(Policy())

    result = await exec_agent(agent(Sums(), says("ok"), hooks=[policies]), "go", hooks=[policies])

    assert result.denied is not None
    assert "Two bundles of policies with the id 'policies'" in result.denied.reason


async def test_what_a_hook_answers_in_place_of_a_tool_is_seen_with_the_next_model_call() -> None:
    policy, cache = Policy(), Hooks("cache")

    @cache.before(ToolCall)
    def cached(call: ToolCall) -> Respond:
        return Respond("from the cache")

    await exec_agent(agent(Sums(), asks("account", number=7), says("ok")), "go", hooks=[cache, PolicyHooks(policy)])

    assert "pre_tool_call" not in policy.points
    assert "post_tool_call" not in policy.points
    assert policy.at("pre_model_call")[1]["messages"][-1]["content"] == "from the cache"


async def test_a_run_that_goes_on_with_more_input_is_one_session() -> None:
    policy, review = Policy(), Hooks("review")

    @review.after(AgentCall)
    def again(call: AgentCall, result: AgentResult) -> Continue | None:
        return Continue("sure?") if result.output == "4" else None

    await exec_agent(agent(Sums(), says("4"), says("5")), "2+2", hooks=[review, PolicyHooks(policy)])

    assert policy.points == [
        "agent_startup",
        *["input", "pre_model_call", "post_model_call", "output"] * 2,
        "agent_shutdown",
    ]
    assert [context["sequence"] for context in policy.asked] == list(range(10))
    assert policy.at("input")[1]["target"]["content"] == "sure?"


async def test_each_task_of_a_session_is_judged() -> None:
    policy = Policy()

    async with AgentSession(agent(Sums(), says("one"), says("two")), hooks=[PolicyHooks(policy)]) as session:
        await session.run("first")
        await session.run("second")

    assert policy.points.count("agent_startup") == policy.points.count("agent_shutdown") == 2
    assert [context["target"]["content"] for context in policy.at("input")] == ["first", "second"]


async def test_a_sub_agent_is_a_tool_and_a_session_of_its_own() -> None:
    policy = Policy(
        pre_tool_call=lambda context: transform("$target.instruction", "be nice"),
        post_tool_call=lambda context: transform("$target", f"[{context['target']}]"),
    )
    helper = agent(Sums(), says("helped"), id="helper")
    call = ModelResponse(
        tool_calls=[ToolRequest(toolset="agent", tool_name="helper", args={"instruction": "x"}, tool_call_id="t1")]
    )

    result = await exec_agent(agent(Sums(), call, says("ok"), sub_agents=[helper]), "go", hooks=[PolicyHooks(policy)])

    assert told(result) == ["[helped]"]
    assert policy.at("pre_tool_call")[0]["tool_call"]["name"] == "agent/helper"
    inner = [context for context in policy.asked if context["agent"]["id"] == "helper"]
    assert [context["interception_point"] for context in inner] == [*POINTS[:4], *POINTS[6:]]
    assert inner[1]["target"]["content"] == "be nice"
    assert inner[0]["extensions"]["hookline"]["parent_operation_id"] == result.operation_id


async def test_a_sub_agent_that_policies_deny_does_not_run() -> None:
    policy = Policy(pre_tool_call=Verdict.escalate(reason="no_agents"))
    helper = agent(Sums(), id="helper")
    call = ModelResponse(
        tool_calls=[ToolRequest(toolset="agent", tool_name="helper", args={"instruction": "x"}, tool_call_id="t1")]
    )

    result = await exec_agent(agent(Sums(), call, says("ok"), sub_agents=[helper]), "go", hooks=[PolicyHooks(policy)])

    assert told(result) == ["no_agents"]
    assert {context["agent"]["id"] for context in policy.asked} == {"banker"}


@for_each(("turn", "reason"), [(ValueError("broken"), "error"), (says("ok"), "completed"), (asks("hang"), "cancelled")])
async def test_shutdown_comes_once_however_a_run_ends(turn: ModelResponse | Exception, reason: str) -> None:
    policy = Policy()

    @tool
    async def hang() -> str:
        interrupt("op-1")
        await anyio.sleep_forever()
        return ""

    run = Agent(id="a", model=ScriptedModel([turn]), tools=[hang])
    await exec_agent(run, "go", hooks=[PolicyHooks(policy)], operation_id="op-1")

    assert policy.points.count("agent_shutdown") == 1
    assert (policy.points[-1], policy.asked[-1]["summary"]["reason"]) == ("agent_shutdown", reason)


async def test_shutdown_comes_when_the_caller_is_cancelled() -> None:
    policies, policy = None, AsyncPolicy()
    policies = PolicyHooks(policy)
    hanging = anyio.Event()

    @tool
    async def hang() -> str:
        hanging.set()
        await anyio.sleep_forever()
        return ""

    run = Agent(id="a", model=ScriptedModel([asks("hang")]), tools=[hang])
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: exec_agent(run, "go", hooks=[policies]))
        await hanging.wait()
        group.cancel_scope.cancel()

    assert policy.points[-1] == "agent_shutdown"
    assert policies._policies.sessions._open == {}


async def test_a_run_that_another_hook_refuses_before_it_starts_has_no_session() -> None:
    policy, closed = Policy(), Hooks("closed")

    @closed.before(AgentCall)
    def no(call: AgentCall) -> Deny:
        return Deny("closed")

    await exec_agent(agent(Sums(), says("ok")), "go", hooks=[closed, PolicyHooks(policy)])

    assert policy.points == []


async def test_streamed_text_is_given_away_only_as_the_output_point_left_it() -> None:
    class Streaming:
        name = provider = "streaming"

        async def stream(self, call: ModelCall):
            yield "the secret "
            yield "is X"
            yield ModelResponse(content="the secret is X")

        async def respond(self, call: ModelCall) -> ModelResponse:
            raise AssertionError

    policy = Policy(output=transform("$target.content", "no secrets"))

    async with stream_agent(Agent(id="a", model=Streaming()), "tell", hooks=[PolicyHooks(policy)]) as text:
        pieces = [piece async for piece in text]

    assert "".join(pieces) == "no secrets"


async def test_parallel_tool_calls_are_judged_one_by_one() -> None:
    sums, policy = (
        Sums(),
        AsyncPolicy(pre_tool_call=lambda context: transform("$target.amount", context["target"]["amount"] + 1)),
    )
    both = ModelResponse(
        tool_calls=[
            ToolRequest(tool_name="pay", args={"to": name, "amount": 1}, tool_call_id=name) for name in ("Ada", "Bob")
        ]
    )

    await exec_agent(agent(sums, both, says("ok")), "go", hooks=[PolicyHooks(policy)])

    assert sorted(sums.paid) == [("Ada", 2), ("Bob", 2)]
    sequence = [context["sequence"] for context in policy.asked]
    assert sorted(sequence) == list(range(len(sequence)))
