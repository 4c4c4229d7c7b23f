"""`Path`: a way to run an agent, and a form of policies; `ForcedDifference`: a verdict that a host forces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from hookline.calls import Ask, Deny, ModelResponse, Respond, ToolCall, ToolRequest, ToolResult
from hookline.evals.adapter_contract import Scene, Stage
from hookline.evals.verdicts._decisions import SUB_AGENT, Decision
from hookline.evals.verdicts._policies import Policy
from hookline.evals.verdicts._verdict import Verdict
from hookline.hooks import AnyHook, Hooks

__all__ = ["ForcedDifference", "Form", "Path", "policy_hooks"]

TIMEOUT = 0.02
"""The seconds that a policy which hangs may take."""

Form: TypeAlias = Callable[[Policy], AbstractAsyncContextManager[list[AnyHook]]]
"""Makes the hooks of a policy, which work until the block ends."""


class ForcedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict that differs on one path, and why.

    Attributes:
        reason: Why, as a sentence for the documentation.
        verdict: What the decision leads to on this path; `None` if this path has no way to state the decision, which
            is not played then.
        fault: Whether the difference is a fault to mend, and not forced by the nature of the host.
    """

    reason: str
    verdict: Verdict | None = None
    fault: bool = False


@asynccontextmanager
async def policy_hooks(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as Python hooks: a `guard`, a `before` or an `after` of `ToolCall`."""
    hooks = Hooks("policies", inherit=policy.inherit, tenant_id=policy.tenant_id or "")
    timeout = TIMEOUT if policy.act == "hang" else None
    options: dict[str, Any] = {"id": "policy", "tool": policy.tool, "timeout": timeout, "on_error": policy.on_error}

    def applies_to(call: ToolCall) -> bool:
        return policy.applies_to(msgspec.structs.asdict(call))

    if policy.act == "replace":

        @hooks.after(ToolCall, **options)
        def replace(call: ToolCall, result: ToolResult) -> ToolResult | None:
            return ToolResult(content=policy.text) if applies_to(call) else None

    elif policy.act in ("rewrite", "answer"):

        @hooks.before(ToolCall, **options)
        def change(call: ToolCall) -> ToolCall | Respond | None:
            if not applies_to(call):
                return None
            return call.with_args(**policy.args) if policy.act == "rewrite" else Respond(policy.text)

    else:

        @hooks.guard(ToolCall, **options)
        async def judge(call: ToolCall) -> Deny | Ask | None:
            if policy.act == "allow" or not applies_to(call):
                return None
            if policy.act == "context":
                call.add_context(policy.text)
                return None
            if policy.act == "fail":
                raise RuntimeError("the policy is broken")
            if policy.act == "hang":
                await anyio.sleep_forever()
            return Ask(policy.text) if policy.act == "ask" else Deny(policy.text, stop=policy.act == "stop")

    yield [hooks]


class Path:
    """A way to run an agent, and the form of the policies that judge it.

    Args:
        name: The name of the path in the matrix.
        stage: Plays scenes in this way.
        depth: How many agents stand between the run that has the policy and the agent that calls the tools.
        form: Makes the hooks of a policy.
        differs: The decisions whose verdicts differ on this path, by name.
        refused: Why hooks are refused on this path, so that nothing runs; empty if they are not.
        backends: The event loops that it supports.
    """

    def __init__(
        self,
        name: str,
        stage: Stage,
        *,
        depth: int = 0,
        form: Form = policy_hooks,
        differs: Mapping[str, ForcedDifference] | None = None,
        refused: str = "",
        backends: tuple[Literal["asyncio", "trio"], ...] = ("asyncio",),
    ) -> None:
        self.name, self.stage, self.depth, self.form = name, stage, depth, form
        self.differs, self.refused, self.backends = differs or {}, refused, backends

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Path({self.name!r})"

    def scene(self, decision: Decision, tools: Mapping[str, Any]) -> Scene:
        """Return the scene of a decision, with the agents that stand between the policy and the tools."""
        scene = Scene(turns=decision.turns(), tools=tools)
        for level in range(self.depth):
            scene = delegating(SUB_AGENT if level == 0 else f"{SUB_AGENT}_{level}", scene)
        return scene


def delegating(name: str, scene: Scene) -> Scene:
    """Return a scene in which an agent calls the agent of another scene."""
    call = ToolRequest(toolset="agent", tool_name=name, args={"instruction": "do it"}, tool_call_id=f"to_{name}")
    turns = [ModelResponse(tool_calls=[call], finish_reason="tool_calls"), ModelResponse(content="done")]
    return Scene(turns=turns, agents={name: scene})
