"""The stage that an adapter's tests provide: it plays scenes in the adapter's framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from hookline.calls import ModelResponse
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Capabilities, Reject

__all__ = ["Ran", "Scene", "Stage"]


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A script for one run: the model's turns, the tools, the sub-agents.

    Attributes:
        turns: What the model answers, turn by turn; asked once more, it raises. Calls of sub-agents have the toolset
            `"agent"`.
        tools: What its tools do, by name: async functions with typed parameters and a docstring.
        approval: The tools that need a person's approval because the framework was told so.
        agents: Scenes of sub-agents, by name.
        compact: Whether the conversation is to be compacted before the last turn; the summary is `"summary"`.
        summary_fails: Whether writing it raises `ValueError("no summary")`.
        prompt: What the user says.
    """

    turns: Sequence[ModelResponse]
    tools: Mapping[str, Callable[..., Awaitable[Any]]] = {}
    approval: frozenset[str] = frozenset()
    agents: Mapping[str, Scene] = {}
    compact: bool = False
    summary_fails: bool = False
    prompt: str = "go"


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """The result of playing a scene.

    Attributes:
        output: What the framework's run gave at the end.
        told: What the model was told of each tool call, in the model's order.
        asked: What the fake models were asked, call by call, those of sub-agents too: the texts of all messages.
        pending: Ids of the calls that wait for a person.
        resume: Goes on with a person's decisions, under hooks of the same kind.
    """

    output: str = ""
    told: Sequence[str] = ()
    asked: Sequence[str] = ()
    pending: Sequence[str] = ()
    resume: Callable[[Sequence[Approve | Reject], Iterable[AnyHook]], Awaitable[Ran]] | None = None


class Stage(Protocol):
    """Plays scenes in a framework.

    Attributes:
        capabilities: What its adapter can drive.
        toolset: Where the adapter says that the tools of a scene come from.
    """

    capabilities: Capabilities
    toolset: str = "local"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        """Run a fresh agent of the framework, with the hooks attached as its users would.

        Args:
            scene: What is played.
            hooks: The hooks of the run.
            attach: What else the adapter takes: `operation_id`, `user_id`, `tenant_id`, `dispatcher`, `drain_timeout`,
                `best_effort`, …

        Raises:
            Exception: Whatever the framework's run raises.
        """
        ...

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        """Run ONE agent object of the framework several times at once, each run with its own hooks."""
        ...
