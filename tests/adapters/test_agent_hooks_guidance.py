"""What policies of AGENT-HOOKS-0.1 tell the model, where the bundle says so: their warnings, and why an answer was denied."""

from __future__ import annotations

from typing import Any

import pytest
from agent_hooks import Verdict

from hookline import Agent, Message, exec_agent
from hookline.adapters.agent_hooks import PolicyHooks

from .policies import Context, Policy, Sums, agent, asks, says, told

pytestmark = pytest.mark.anyio


def contents(result: Any) -> list[str]:
    return [message.content for message in result.messages]


def rude_is_denied(context: Context) -> Verdict:
    rude = "rude" in str(context["target"])
    return Verdict.deny(reason="manners", message="be kind") if rude else Verdict.allow()


def payer(*turns: Any, **more: Any) -> Agent:
    return agent(Sums(), *turns, **more)


@pytest.mark.parametrize("tells", [False, True])
async def test_the_model_reads_the_warnings_of_a_tool_call_and_of_its_result(*, tells: bool) -> None:
    policy = Policy(
        pre_tool_call=Verdict.warn(reason="odd_hour", message="it is late"),
        post_tool_call=Verdict.warn(message="an old account"),
    )

    result = await exec_agent(
        payer(asks("account", number=7), says("ok")), "go", hooks=[PolicyHooks(policy, tell_warnings=tells)]
    )

    (text,) = told(result)
    first = "Context from hook 'policies.pre_tool_call': odd_hour: it is late"
    second = "Context from hook 'policies.post_tool_call': an old account"
    assert text.endswith(f"\n\n{first}\n\n{second}") is tells
    assert ("Context" in text) is tells


async def test_the_model_reads_the_warnings_about_all_inputs_after_the_prompt() -> None:
    policy = Policy(input=lambda context: Verdict.warn(message=f"odd: {context['target']['content']}"))
    prompt = [Message(role="user", content="one"), Message(role="user", content="two")]

    result = await exec_agent(payer(says("ok")), prompt, hooks=[PolicyHooks(policy, tell_warnings=True)])

    assert contents(result) == ["one", "two", "Context from hook 'policies.input': odd: one\nodd: two", "ok"]


async def test_policies_that_only_evaluate_tell_the_model_nothing() -> None:
    policy = Policy(pre_tool_call=Verdict.warn(message="it is late"), post_model_call=rude_is_denied)
    hooks = PolicyHooks(policy, tell_warnings=True, guide=True, mode="evaluate_only")

    result = await exec_agent(payer(says("rude"), says("never")), "go", hooks=[hooks])

    assert contents(result) == ["go", "rude"]


async def test_a_denied_answer_is_sent_back_with_the_reason() -> None:
    hooks = PolicyHooks(Policy(post_model_call=rude_is_denied), guide=True)

    result = await exec_agent(payer(says("rude"), says("kind")), "go", hooks=[hooks])

    assert contents(result) == ["go", "manners: be kind", "kind"]
    assert [record.verdict.decision.permits for record in hooks.records].count(False) == 1


@pytest.mark.parametrize("limit", [0, 2])
async def test_a_denied_answer_never_stands(limit: int) -> None:
    hooks = PolicyHooks(Policy(post_model_call=rude_is_denied), guide=True)

    result = await exec_agent(payer(*[says("rude")] * 9, max_guides=limit), "go", hooks=[hooks])

    assert result.denied is not None
    assert (result.reason, result.denied.reason, result.output) == ("interrupted", "manners: be kind", "")
    assert contents(result) == ["go", *["manners: be kind"] * limit]


async def test_a_policy_that_fails_ends_the_run() -> None:
    hooks = PolicyHooks(Policy(post_model_call=RuntimeError("broken")), guide=True)

    result = await exec_agent(payer(says("rude"), says("never")), "go", hooks=[hooks])

    assert result.denied is not None
    assert "host_error" in result.denied.reason
