"""The decisions of the kit: for each a policy, the scene that it judges, and the verdict that it must lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hookline.calls import ModelResponse, ToolRequest
from hookline.evals.verdicts._policies import Act, Policy
from hookline.evals.verdicts._verdict import Record, Verdict
from hookline.runtime import Approve, Reject

__all__ = ["ANSWER", "CONTEXTS", "DECISIONS", "SUB_AGENT", "TEXTS", "Decision"]

SUB_AGENT = "clerk"
"""The agent that calls the tools, in every path with sub-agents; an agent of that name calls it."""

ANSWER = "that is all"
"""The last answer of the agent that calls the tools."""

PAY = ToolRequest("pay", {"to": "ann", "amount": 5}, tool_call_id="t1")
PAY_MORE = ToolRequest("pay", {"to": "bob", "amount": 50}, tool_call_id="t2")
LOOK = ToolRequest("look", {"name": "ann"}, tool_call_id="t2")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, the tool calls that it judges, and the verdict that it must lead to.

    Attributes:
        name: The name of the decision.
        meaning: What the policy does, and what becomes of the call, as a sentence.
        policy: The policy.
        verdict: What it must lead to.
        nested: What it must lead to for the calls of a sub-agent; as `verdict` by default.
        calls: The tool calls of the model, one after the other.
        person: What a person decides about a call that waits.
        user_id: For whom the run is.
        tenant_id: The tenant for whom the run is.
    """

    name: str
    meaning: str
    policy: Policy
    verdict: Verdict
    nested: Verdict | None = None
    calls: Sequence[ToolRequest] = (PAY,)
    person: Approve | Reject | None = None
    user_id: str = "ann"
    tenant_id: str = "acme"

    def __str__(self) -> str:
        return self.name

    def turns(self) -> list[ModelResponse]:
        """Return the answers of the scripted model."""
        asked = [ModelResponse(tool_calls=[call], finish_reason="tool_calls") for call in self.calls]
        return [*asked, ModelResponse(content=ANSWER)]

    def expected(self, depth: int) -> Verdict:
        """Return the verdict that the policy must lead to.

        Args:
            depth: How many agents stand between the policy's run and the agent that calls the tools.
        """
        return self.nested if depth and self.nested is not None else self.verdict


def _result(call: ToolRequest, args: Mapping[str, Any]) -> str:
    return f"paid {args['amount']} to {args['to']}" if call.tool_name == "pay" else f"{args['name']} is known"


def _run_verdict(*calls: ToolRequest) -> Verdict:
    """Return the verdict of calls that ran as the model made them."""
    return Verdict(
        ran=tuple((call.tool_name, dict(call.args)) for call in calls if not isinstance(call.args, str)),
        read=tuple(_result(call, call.args) for call in calls if not isinstance(call.args, str)),
        records=tuple(Record(tool=call.tool_name) for call in calls),
    )


def _join_verdicts(*verdicts: Verdict) -> Verdict:
    """Return the verdict of calls that were judged one after the other."""
    return Verdict(
        ran=tuple(each for verdict in verdicts for each in verdict.ran),
        read=tuple(each for verdict in verdicts for each in verdict.read),
        records=tuple(each for verdict in verdicts for each in verdict.records),
    )


NO = "not that"
BROKEN = "fails closed"
REMINDER = "mind the limit"
CAPPED = {"to": "ann", "amount": 1}

DENIED = Verdict(read=(NO,), records=(Record(tool="pay", success=False, answered_by="policy"),))
REFUSED = msgspec.structs.replace(DENIED, read=(BROKEN,))
WAITING = Verdict(asked=("may I?",), ended="waiting_for_human")


def _policy(act: Act, **fields: Any) -> Policy:
    """Return a policy about payments: of a tool that runs an agent, it has nothing to say."""
    return Policy(act=act, tool=PAY.tool_name, **fields)


DENY = _policy("deny", text=NO)
ASK = _policy("ask", text="may I?")


def _decisions() -> tuple[Decision, ...]:
    """Return the decisions: each act, to whom a policy applies, and policies that break."""
    scoped = [
        ("a tool", _policy("deny", text=NO), (LOOK, PAY)),
        ("some arguments", _policy("deny", text=NO, when={"amount": 5}), (PAY_MORE, PAY)),
    ]
    others = {"user": _policy("deny", text=NO, user_id="ann"), "tenant": _policy("deny", text=NO, tenant_id="acme")}
    return (
        Decision(
            name="allow",
            meaning="The policy has no objection, and the tool runs once, as the model asked.",
            policy=_policy("allow"),
            verdict=_run_verdict(PAY),
        ),
        Decision(
            name="deny",
            meaning="The tool does not run, and the model reads the reason. The run goes on.",
            policy=DENY,
            verdict=DENIED,
        ),
        Decision(
            name="deny and stop",
            meaning="The tool does not run, and the denial ends the run of the agent that called it.",
            policy=_policy("stop", text=NO),
            verdict=msgspec.structs.replace(DENIED, read=(), ended="interrupted"),
        ),
        Decision(
            name="rewrite",
            meaning="The tool runs once, with the arguments of the policy.",
            policy=_policy("rewrite", args={"amount": 1}),
            verdict=Verdict(ran=(("pay", CAPPED),), read=(_result(PAY, CAPPED),), records=(Record(tool="pay"),)),
        ),
        Decision(
            name="answer",
            meaning="The tool does not run, and the model reads the policy's answer.",
            policy=_policy("answer", text="canned"),
            verdict=Verdict(read=("canned",), records=(Record(tool="pay", mocked=True, answered_by="policy"),)),
        ),
        Decision(
            name="replace the result",
            meaning="The tool runs once, and the model reads the policy's text in place of the result.",
            policy=_policy("replace", text="withheld"),
            verdict=msgspec.structs.replace(_run_verdict(PAY), read=("withheld",)),
        ),
        Decision(
            name="add context",
            meaning="The tool runs once, and the model reads the policy's text besides the result.",
            policy=_policy("context", text=REMINDER),
            verdict=msgspec.structs.replace(_run_verdict(PAY), context=(REMINDER,)),
        ),
        Decision(
            name="ask, approved",
            meaning=(
                "A person reads the policy's question, and the tool runs once after the approval. The call of a "
                "sub-agent waits, and its caller goes on."
            ),
            policy=ASK,
            person=Approve("t1"),
            verdict=msgspec.structs.replace(_run_verdict(PAY), asked=("may I?",)),
            nested=WAITING,
        ),
        Decision(
            name="ask, rejected",
            meaning="A person reads the question, the tool does not run, and the model reads the person's reason.",
            policy=ASK,
            person=Reject("t1", reason="too much", and_continue=True),
            verdict=Verdict(read=("too much",), asked=("may I?",)),
            nested=WAITING,
        ),
        *(
            Decision(
                name=f"by {name.split()[-1]}",
                meaning=f"A policy for {name} alone denies one call of two.",
                policy=policy,
                calls=calls,
                verdict=_join_verdicts(_run_verdict(calls[0]), DENIED),
            )
            for name, policy, calls in scoped
        ),
        *(
            Decision(
                name=f"by {name}",
                meaning=f"A policy for one {name} alone denies the call of a run for that {name}.",
                policy=policy,
                verdict=DENIED,
            )
            for name, policy in others.items()
        ),
        Decision(
            name="by user, another one",
            meaning="A policy for another user has no effect.",
            policy=others["user"],
            user_id="bob",
            verdict=_run_verdict(PAY),
        ),
        Decision(
            name="by tenant, another one",
            meaning="A policy for another tenant has no effect.",
            policy=others["tenant"],
            tenant_id="other",
            verdict=_run_verdict(PAY),
        ),
        Decision(
            name="by agent, the sub-agent",
            meaning="A policy for a sub-agent denies the calls of the sub-agent alone.",
            policy=_policy("deny", text=NO, agent_id=SUB_AGENT),
            verdict=_run_verdict(PAY),
            nested=DENIED,
        ),
        Decision(
            name="not inherited",
            meaning="A policy that sub-agents do not inherit denies the calls of the agent alone.",
            policy=_policy("deny", text=NO, inherit=False),
            verdict=DENIED,
            nested=_run_verdict(PAY),
        ),
        Decision(
            name="failing, closed",
            meaning="The policy raises, so the call is denied.",
            policy=_policy("fail"),
            verdict=REFUSED,
        ),
        Decision(
            name="failing, open",
            meaning="The policy raises and is passed over, so the tool runs once.",
            policy=_policy("fail", on_error="open"),
            verdict=_run_verdict(PAY),
        ),
        Decision(
            name="slow, closed",
            meaning="The policy exceeds its timeout, so the call is denied.",
            policy=_policy("hang"),
            verdict=REFUSED,
        ),
        Decision(
            name="slow, open",
            meaning="The policy exceeds its timeout and is passed over, so the tool runs once.",
            policy=_policy("hang", on_error="open"),
            verdict=_run_verdict(PAY),
        ),
    )


DECISIONS = _decisions()
"""Every decision, in the order of the matrix."""

TEXTS = (
    NO,
    BROKEN,
    "canned",
    "withheld",
    "too much",
    _result(PAY, PAY.args if isinstance(PAY.args, dict) else {}),
    _result(PAY_MORE, PAY_MORE.args if isinstance(PAY_MORE.args, dict) else {}),
    _result(PAY, CAPPED),
    _result(LOOK, {"name": "ann"}),
)
"""The texts that a model may read as results of its calls."""

CONTEXTS = (REMINDER,)
"""The texts that a model may read besides the results of its calls."""
