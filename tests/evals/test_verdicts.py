"""The kit of decisions finds a verdict that differs, and a difference that is no longer true."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from hookline import Agent, ScriptedModel, exec_agent, tool
from hookline.calls import CALLS
from hookline.errors import HookUsageError
from hookline.evals.adapter_contract import Ran, Scene
from hookline.evals.verdicts import (
    DECISIONS,
    Decision,
    ForcedDifference,
    Path,
    Verdict,
    VerdictError,
    check_verdict,
    observe_verdict,
)
from hookline.hooks import AnyHook, Hooks
from hookline.runtime import KINDS, Capabilities

pytestmark = pytest.mark.anyio

ALLOW, DENY = (next(each for each in DECISIONS if each.name == name) for name in ("allow", "deny"))


class PlainStage:
    """Runs the agent of a scene that has no sub-agents."""

    capabilities = Capabilities(framework="plain", calls=dict.fromkeys(CALLS, KINDS), raises_stopped=False)
    toolset = "local"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        tools = [tool(work, name=name) for name, work in scene.tools.items()]
        agent = Agent(id="plain", model=ScriptedModel(scene.turns), tools=tools)
        result = await exec_agent(agent, scene.prompt, hooks=[*self.kept(hooks)], **attach)
        return Ran(output=result.output, told=[each.content for each in result.messages if each.role == "tool"])

    def kept(self, hooks: Iterable[AnyHook]) -> Iterable[AnyHook]:
        return hooks

    async def play_many(self, scene: Scene, bundles: Any) -> Any:
        raise NotImplementedError


class DeafStage(PlainStage):
    """Loses every policy."""

    def kept(self, hooks: Iterable[AnyHook]) -> Iterable[AnyHook]:
        return [each for each in hooks if isinstance(each, Hooks) and not each.interceptors]


class RefusingStage(PlainStage):
    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        raise HookUsageError("no hooks here")


@pytest.mark.parametrize("decision", [ALLOW, DENY], ids=str)
async def test_an_equal_verdict_has_no_difference(decision: Decision) -> None:
    assert await check_verdict(decision, Path("run", PlainStage())) is None


async def test_a_policy_that_a_path_loses_is_found() -> None:
    with pytest.raises(VerdictError) as found:
        await check_verdict(DENY, Path("deaf run", DeafStage()))

    assert "'deny' on the path 'deaf run'" in str(found.value)
    assert "paid 5 to ann" in found.value.got


async def test_a_named_difference_must_be_what_happens() -> None:
    seen = await observe_verdict(DENY, Path("deaf run", DeafStage()))
    true = ForcedDifference(reason="It hears nothing.", verdict=seen)
    stale = ForcedDifference(reason="It hears nothing.", verdict=Verdict())

    assert await check_verdict(DENY, Path("deaf run", DeafStage(), differs={"deny": true})) is true
    with pytest.raises(VerdictError, match="It hears nothing"):
        await check_verdict(DENY, Path("deaf run", DeafStage(), differs={"deny": stale}))
    with pytest.raises(VerdictError, match="It hears nothing"):
        await check_verdict(DENY, Path("run", PlainStage(), differs={"deny": true}))


async def test_a_path_that_should_refuse_hooks_must_refuse_them() -> None:
    refused = await check_verdict(DENY, Path("refusing", RefusingStage(), refused="It has no hooks."))
    assert refused is not None
    assert refused.reason == "It has no hooks."

    with pytest.raises(VerdictError, match="the hooks are refused"):
        await check_verdict(DENY, Path("run", PlainStage(), refused="It has no hooks."))


async def test_a_decision_that_a_form_cannot_state_is_not_played() -> None:
    unstated = ForcedDifference(reason="There is no such answer.")

    assert await check_verdict(DENY, Path("refusing", RefusingStage(), differs={"deny": unstated})) is unstated
