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
        turns: The model's answers, in order; one more call raises. Calls of sub-agents have the toolset `"agent"`.
        tools: The tools by name: async functions with typed parameters and a docstring.
        approval: The names of tools for which the framework must require a person's approval.
        agents: Scenes of sub-agents, by name.
        compact: Whether to compact the conversation before the last turn; the summary is `"summary"`.
        summary_fails: Whether writing the summary raises `ValueError("no summary")`.
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
        asked: For each model call, the texts of all its messages; calls of sub-agents are included.
        pending: The ids of the calls that wait for a person.
        resume: Resumes a paused run with a person's decisions and hooks.
    """

    output: str = ""
    told: Sequence[str] = ()
    asked: Sequence[str] = ()
    pending: Sequence[str] = ()
    resume: Callable[[Sequence[Approve | Reject], Iterable[AnyHook]], Awaitable[Ran]] | None = None


class Stage(Protocol):
    """Plays scenes in your framework; implement it to test an adapter.

    Attributes:
        capabilities: The events and calls that the adapter supports.
        toolset: The toolset that the adapter gives to the tools of a scene.
    """

    capabilities: Capabilities
    toolset: str = "local"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        """Run a new agent of the framework, with hooks attached as users would attach them.

        Args:
            scene: The scene.
            hooks: The hooks of the run.
            attach: Other arguments, such as `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`,
                `drain_timeout`, `best_effort`, …

        Raises:
            Exception: What the framework's run raises.
        """
        ...

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        """Run one agent object of the framework several times concurrently, each run with its own hooks."""
        ...
