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
        turns: The model's answers, turn by turn; asked once more, it raises. Calls of sub-agents have the toolset
            `"agent"`.
        tools: Its tools, by name: async functions with typed parameters and a docstring.
        approval: The tools for which the framework is set to require a person's approval.
        agents: Scenes of sub-agents, by name.
        compact: Whether the conversation is to be compacted before the last turn; the summary is `"summary"`.
        summary_fails: Whether writing it raises `ValueError("no summary")`.
        prompt: The user's prompt.
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
        output: The final output of the framework's run.
        told: The result of each tool call as the model read it, in the model's order.
        asked: The texts of all messages of each model call, those of sub-agents included.
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
        capabilities: The events and calls that its adapter can drive.
        toolset: The toolset that the adapter gives to the tools of a scene.
    """

    capabilities: Capabilities
    toolset: str = "local"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        """Run a fresh agent of the framework, with the hooks attached as its users would.

        Args:
            scene: The scene.
            hooks: The hooks of the run.
            attach: Further arguments, such as `operation_id`, `user_id`, `tenant_id`, `dispatcher`, `drain_timeout`,
                `best_effort`, …

        Raises:
            Exception: Whatever the framework's run raises.
        """
        ...

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        """Run ONE agent object of the framework several times at once, each run with its own hooks."""
        ...
