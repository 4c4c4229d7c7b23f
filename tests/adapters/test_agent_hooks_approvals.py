"""Denials that may be lifted: a person who is asked by a pause of the run, or the contract's approval resolver."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_hooks import (
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResolution,
    CompositionConfig,
    OnApproval,
    SynthesisPolicy,
    Verdict,
)

from hookline import (
    Agent,
    AgentSession,
    Approve,
    Ask,
    Chain,
    Deny,
    Hooks,
    ModelResponse,
    Reject,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.adapters.agent_hooks import PolicyHooks
from hookline.runtime import InMemoryStore
from tests.tables import for_each

from .policies import POINTS, AsyncPolicy, Policy, Sums, agent, asks, says, told, transform

pytestmark = pytest.mark.anyio

LIFTABLE = Verdict.escalate(reason="large_sum", message="Pay Ada 500?")
RESUME = CompositionConfig.first_deny(OnApproval.RESUME)


def banker(sums: Sums) -> Agent:
    return agent(sums, asks("pay", to="Ada", amount=500), says("done"))


class Boss:
    """An approval resolver that says the same to everything."""

    def __init__(self, outcome: ApprovalOutcome, verdict: Verdict | None) -> None:
        self.outcome, self.verdict = outcome, verdict
        self.requests: list[ApprovalRequest] = []

    async def resolve(self, request: ApprovalRequest) -> ApprovalResolution:
        self.requests.append(request)
        return ApprovalResolution(outcome=self.outcome, context_identity=request.context_identity, verdict=self.verdict)


@pytest.mark.parametrize("kind", [Policy, AsyncPolicy])
async def test_a_person_is_asked_and_what_is_approved_runs(kind: type[Policy]) -> None:
    sums, policy = Sums(), kind(pre_tool_call=LIFTABLE)
    policies = PolicyHooks(policy)
    run = banker(sums)

    paused = await exec_agent(run, "pay", hooks=[policies])
    assert paused.reason == "waiting_for_human"
    assert [(call.tool_call_id, call.prompt) for call in paused.pending] == [("t1", "large_sum: Pay Ada 500?")]
    assert sums.paid == []

    result = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])
    assert result.output == "done"
    assert sums.paid == [("Ada", 500)]


async def test_a_paused_call_is_judged_once_and_the_session_goes_on() -> None:
    sums, policy = Sums(), Policy(pre_tool_call=LIFTABLE)
    run = banker(sums)

    paused = await exec_agent(run, "pay", hooks=[PolicyHooks(policy)])
    assert policy.points == POINTS[:5]
    policies = PolicyHooks(policy)  # as another process would make it
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert policy.points == [*POINTS[:6], *POINTS[2:4], *POINTS[6:]]
    records = policies.records
    assert [record.sequence for record in records] == list(range(5, 11))
    assert (records[0].resolved_by, records[0].decided_by, records[0].verdict.decision) == ("approval", 0, "allow")


async def test_what_a_person_rejects_does_not_run() -> None:
    sums, policy = Sums(), Policy(pre_tool_call=LIFTABLE)
    run = banker(sums)

    paused = await exec_agent(run, "pay", hooks=[PolicyHooks(policy)])
    result = await resume_agent(
        run, paused.operation_id, [Reject("t1", "no", and_continue=True)], hooks=[PolicyHooks(policy)]
    )

    assert sums.paid == []
    assert (told(result), result.output) == (["A person refused this call: no"], "done")
    assert "post_tool_call" not in policy.points


async def test_a_rejection_that_stops_the_run_ends_the_session() -> None:
    policy = Policy(pre_tool_call=LIFTABLE)
    run = banker(Sums())

    paused = await exec_agent(run, "pay", hooks=[PolicyHooks(policy)])
    result = await resume_agent(run, paused.operation_id, [Reject("t1")], hooks=[PolicyHooks(policy)])

    assert result.reason == "interrupted"
    assert policy.points.count("agent_shutdown") == 1


async def test_a_person_sees_what_policies_made_of_the_arguments() -> None:
    sums = Sums()
    policies = PolicyHooks(Policy(pre_tool_call=transform("$target.amount", 100)), Policy(pre_tool_call=LIFTABLE))
    run = banker(sums)

    paused = await exec_agent(run, "pay", hooks=[policies])
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert paused.pending[0].args == {"to": "Ada", "amount": 100}
    assert sums.paid == [("Ada", 100)]


async def test_an_approval_stops_the_fold_unless_it_is_to_go_on() -> None:
    sums, later = Sums(), Policy("later", pre_tool_call=Verdict.deny(reason="never"))
    run = banker(sums)
    policies = PolicyHooks(Policy(pre_tool_call=LIFTABLE), later)

    paused = await exec_agent(run, "pay", hooks=[policies])
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert sums.paid == [("Ada", 500)]
    assert "pre_tool_call" not in later.points


@for_each(
    "verdict",
    [Verdict.deny(reason="never"), transform("$target.amount", 1), LIFTABLE],
    ids=["deny", "transform", "ask"],
)
async def test_policies_that_come_after_the_approval_are_heard_before_the_call_runs(verdict: Verdict) -> None:
    sums, asking, later = Sums(), Policy("asking", pre_tool_call=LIFTABLE), Policy("later", pre_tool_call=verdict)
    run = banker(sums)
    policies = PolicyHooks(asking, later, profile=RESUME)

    paused = await exec_agent(run, "pay", hooks=[policies])
    assert "pre_tool_call" not in later.points
    result = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert sums.paid == []
    assert asking.points.count("pre_tool_call") == later.points.count("pre_tool_call") == 1
    assert len(told(result)) == 1


async def test_policies_that_allow_after_the_approval_let_the_call_run() -> None:
    sums, later = Sums(), Policy("later")
    run = banker(sums)
    policies = PolicyHooks(Policy("asking", pre_tool_call=LIFTABLE), later, profile=RESUME)

    paused = await exec_agent(run, "pay", hooks=[policies])
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert sums.paid == [("Ada", 500)]
    assert later.points.count("pre_tool_call") == 1


async def test_one_approval_lifts_the_denials_of_all_who_were_asked_together() -> None:
    sums, first, second = Sums(), Policy("first", pre_tool_call=LIFTABLE), Policy("second", pre_tool_call=LIFTABLE)
    run = banker(sums)
    policies = PolicyHooks(first, second, profile="sequential/run_all")

    paused = await exec_agent(run, "pay", hooks=[policies])
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert sums.paid == [("Ada", 500)]
    assert first.points.count("pre_tool_call") == second.points.count("pre_tool_call") == 1


async def test_a_disagreement_can_be_put_to_a_person_and_a_failed_policy_stays_failed() -> None:
    sums, failing = Sums(), Policy("failing", pre_tool_call=RuntimeError("down"))
    run = banker(sums)
    policies = PolicyHooks(
        Policy("calm"), failing, profile=CompositionConfig.unanimous(on_disagreement=SynthesisPolicy.APPROVAL)
    )

    paused = await exec_agent(run, "pay", hooks=[policies])
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert paused.pending[0].prompt.startswith("host_error:composition_disagreement")
    assert sums.paid == [("Ada", 500)]
    assert failing.points.count("pre_tool_call") == 1


async def test_a_plain_denial_is_stronger_than_one_that_can_be_lifted() -> None:
    sums = Sums()
    policies = PolicyHooks(
        Policy(pre_tool_call=LIFTABLE), Policy(pre_tool_call=Verdict.deny(reason="never")), profile="parallel/strictest"
    )

    result = await exec_agent(banker(sums), "pay", hooks=[policies])

    assert (result.reason, told(result), sums.paid) == ("done", ["never"], [])


async def test_a_call_that_waited_for_another_reason_is_not_judged_again() -> None:
    sums, policy, consent = Sums(), Policy(), Hooks("consent")

    @consent.guard(ToolCall)
    def ask(call: ToolCall) -> Ask:
        return Ask("really?")

    run = banker(sums)
    paused = await exec_agent(run, "pay", hooks=[consent, PolicyHooks(policy)])
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[consent, PolicyHooks(policy)])

    assert sums.paid == [("Ada", 500)]
    assert policy.points.count("pre_tool_call") == policy.points.count("post_tool_call") == 1


@pytest.mark.parametrize("verdict", [Verdict.deny(reason="never"), transform("$target.amount", 1)])
async def test_a_call_that_policies_never_saw_is_judged_before_it_runs(verdict: Verdict) -> None:
    sums, policy = Sums(), Policy(pre_tool_call=verdict)

    @tool(needs_approval=True)
    async def pay(to: str, amount: int) -> str:
        sums.paid.append((to, amount))
        return "paid"

    run = Agent(id="b", model=ScriptedModel([asks("pay", to="Ada", amount=500), says("done")]), tools=[pay])
    paused = await exec_agent(run, "pay")
    result = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[PolicyHooks(policy)])

    assert sums.paid == []
    assert len(told(result)) == 1
    assert policy.points[:2] == ["agent_startup", "pre_tool_call"]


async def test_a_call_that_an_outer_hook_had_a_person_asked_about_is_judged_before_it_runs() -> None:
    sums, policy, consent = Sums(), Policy(pre_tool_call=Verdict.deny(reason="never")), Hooks("consent")

    @consent.before(ToolCall)
    def ask(call: ToolCall) -> Ask:
        return Ask("really?")

    run = banker(sums)
    paused = await exec_agent(run, "pay", hooks=[consent, PolicyHooks(policy)])
    assert "pre_tool_call" not in policy.points
    result = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[consent, PolicyHooks(policy)])

    assert (told(result), sums.paid) == (["never"], [])


async def test_a_transform_that_comes_too_late_for_a_person_fails_closed() -> None:
    sums, policy, consent = Sums(), Policy(pre_tool_call=transform("$target.amount", 1)), Hooks("consent")

    @consent.before(ToolCall)
    def ask(call: ToolCall) -> Ask:
        return Ask("really?")

    run = banker(sums)
    policies = PolicyHooks(policy)
    paused = await exec_agent(run, "pay", hooks=[consent, policies])
    result = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[consent, policies])

    assert sums.paid == []
    assert "the arguments can no longer be changed" in told(result)[0]
    assert policies.records[-1].interception_point == "agent_shutdown"


async def test_guards_of_others_still_refuse_what_a_person_approved() -> None:
    sums, policy, strict = Sums(), Policy(pre_tool_call=LIFTABLE), Hooks("strict")
    refusing: list[bool] = []

    @strict.guard(ToolCall)
    def no(call: ToolCall) -> Deny | None:
        return Deny("changed my mind") if refusing else None

    run = banker(sums)
    paused = await exec_agent(run, "pay", hooks=[strict, PolicyHooks(policy)])
    refusing.append(True)
    result = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[strict, PolicyHooks(policy)])

    assert (told(result), sums.paid) == (["changed my mind"], [])


async def test_a_resolver_decides_at_once_and_everywhere() -> None:
    sums, boss = Sums(), Boss(ApprovalOutcome.APPROVE, Verdict.allow())
    policies = PolicyHooks(Policy(input=LIFTABLE, pre_tool_call=LIFTABLE, output=LIFTABLE), approvals=boss)

    result = await exec_agent(banker(sums), "pay", hooks=[policies])

    assert (result.output, sums.paid) == ("done", [("Ada", 500)])
    assert [request.interception_point.value for request in boss.requests] == ["input", "pre_tool_call", "output"]


async def test_a_resolver_may_change_what_it_approves() -> None:
    sums, boss = Sums(), Boss(ApprovalOutcome.APPROVE, transform("$target.amount", 10))

    await exec_agent(banker(sums), "pay", hooks=[PolicyHooks(Policy(pre_tool_call=LIFTABLE), approvals=boss)])

    assert sums.paid == [("Ada", 10)]


@pytest.mark.parametrize(
    ("outcome", "verdict", "reason"),
    [
        (ApprovalOutcome.REJECT, Verdict.deny(reason="boss_says_no"), "boss_says_no"),
        (ApprovalOutcome.UNRESOLVED, None, "host_error:approval_unresolved"),
    ],
)
async def test_what_a_resolver_does_not_approve_does_not_run(
    outcome: ApprovalOutcome, verdict: Verdict | None, reason: str
) -> None:
    sums = Sums()
    policies = PolicyHooks(Policy(pre_tool_call=LIFTABLE), approvals=Boss(outcome, verdict))

    result = await exec_agent(banker(sums), "pay", hooks=[policies])

    assert (told(result), sums.paid) == ([reason], [])


async def test_a_resolver_sees_only_what_was_left_to_it() -> None:
    boss = Boss(ApprovalOutcome.APPROVE, Verdict.allow())
    contexts: list[dict[str, Any]] = []

    def redact(context: dict[str, Any]) -> dict[str, Any]:
        contexts.append(context)
        return {**context, "target": "[redacted]", "tool_call": {**context["tool_call"], "args": {}}}

    policies = PolicyHooks(Policy(pre_tool_call=LIFTABLE), approvals=boss, redact=redact)
    await exec_agent(banker(Sums()), "pay", hooks=[policies])

    [shown, whole] = [json.dumps(each) for each in (boss.requests[0].context, contexts[0])]
    assert "Ada" in whole
    assert "Ada" not in shown


async def test_without_anybody_to_ask_the_denial_stands() -> None:
    sums = Sums()

    result = await exec_agent(banker(sums), "pay", hooks=[PolicyHooks(Policy(pre_tool_call=LIFTABLE), approvals=None)])

    assert (result.reason, told(result), sums.paid) == ("done", ["large_sum: Pay Ada 500?"], [])


async def test_integers_of_any_size_survive_a_pause() -> None:
    sums, store = Sums(), InMemoryStore()
    policies = PolicyHooks(Policy(pre_tool_call=LIFTABLE), identity=None)
    run = agent(sums, asks("pay", to="Ada", amount=2**70 + 1), says("done"))

    paused = await exec_agent(run, "pay", hooks=[policies], store=store)
    await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies], store=store)

    assert sums.paid == [("Ada", 2**70 + 1)]


async def test_integers_beyond_exact_json_are_refused_where_contexts_have_identities() -> None:
    sums = Sums()

    result = await exec_agent(
        agent(sums, asks("pay", to="Ada", amount=2**53), says("done")), "pay", hooks=[PolicyHooks(Policy())]
    )

    assert sums.paid == []
    assert result.denied is not None
    assert result.denied.reason.startswith("host_error:context_invalid")


async def test_outside_of_a_run_nobody_can_be_asked_and_nothing_runs() -> None:
    ran: list[ToolCall] = []

    async def terminal(call: ToolCall) -> ToolResult:
        ran.append(call)
        return ToolResult(content="ran")

    chain = Chain([PolicyHooks(Policy(pre_tool_call=LIFTABLE))])
    outcome = await chain.run(ToolCall(tool_name="pay", tool_call_id="t1"), terminal)

    assert outcome.denied is not None
    assert ran == []


async def test_several_calls_may_wait_and_each_has_its_own_decision() -> None:
    sums, policy = Sums(), AsyncPolicy(pre_tool_call=LIFTABLE)
    both = ModelResponse(
        tool_calls=[
            ToolRequest(tool_name="pay", args={"to": name, "amount": 500}, tool_call_id=name) for name in ("Ada", "Bob")
        ]
    )
    run, policies = agent(sums, both, says("done")), PolicyHooks(policy)

    paused = await exec_agent(run, "pay", hooks=[policies])
    paused = await resume_agent(run, paused.operation_id, [Approve("Bob")], hooks=[policies])
    assert (paused.reason, sums.paid) == ("waiting_for_human", [])
    await resume_agent(run, paused.operation_id, [Reject("Ada", and_continue=True)], hooks=[policies])

    assert sums.paid == [("Bob", 500)]
    assert policy.points.count("pre_tool_call") == 2
    assert policy.points.count("post_tool_call") == 1
    assert policy.points.count("agent_startup") == policy.points.count("agent_shutdown") == 1


async def test_a_later_step_of_a_resumed_run_asks_again() -> None:
    sums = Sums()
    run = agent(sums, asks("pay", to="Ada", amount=500), asks("pay", to="Bob", amount=600), says("done"))
    policies = PolicyHooks(Policy(pre_tool_call=LIFTABLE))

    paused = await exec_agent(run, "pay", hooks=[policies])
    paused = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])
    assert (paused.reason, sums.paid) == ("waiting_for_human", [("Ada", 500)])
    result = await resume_agent(run, paused.operation_id, [Approve("t1")], hooks=[policies])

    assert (result.output, sums.paid) == ("done", [("Ada", 500), ("Bob", 600)])


async def test_a_session_asks_and_goes_on() -> None:
    sums, policy = Sums(), Policy(pre_tool_call=LIFTABLE)

    async with AgentSession(banker(sums), hooks=[PolicyHooks(policy)]) as session:
        paused = await session.run("pay")
        result = await session.resume([Approve("t1")])

    assert (paused.reason, result.output, sums.paid) == ("waiting_for_human", "done", [("Ada", 500)])
    assert policy.points == [*POINTS[:6], *POINTS[2:4], *POINTS[6:]]
