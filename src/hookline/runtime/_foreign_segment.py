"""A segment of a run of another framework, and what stands for the agent of that framework."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

from hookline.calls import ModelCall, ModelResponse, ToolCall, ToolCalling, ToolSpec
from hookline.errors import HookUsageError
from hookline.events import Event
from hookline.runtime._agent import Agent
from hookline.runtime._run import Run
from hookline.runtime._state import OperationState
from hookline.runtime._tools import Tool

__all__ = ["Segment", "no_child", "stand_in"]


class _Named:
    """Stands for the model of the framework, which nobody asks through it."""

    def __init__(self, name: str, provider: str) -> None:
        self.name, self.provider = name, provider

    async def respond(self, call: ModelCall) -> ModelResponse:
        raise HookUsageError("A model of another framework is asked by that framework.")


@lru_cache(maxsize=1000)
def stand_in(agent_id: str, model: str, provider: str) -> Agent:
    """The framework's agent as the runtime knows it; a process has few, and runs each many times."""
    return Agent(id=agent_id, model=_Named(model, provider))


class Segment(Run):
    """A segment whose tools are the framework's, known by the call that is under way."""

    __slots__ = ("at_hand", "can_ask", "closed", "framework", "given_specs")

    at_hand: dict[str, Tool]
    can_ask: bool
    closed: bool
    framework: str
    given_specs: list[ToolSpec]

    def hooked(self, event: type[Event]) -> bool:
        """Whether anybody wants this event; when the run is over, nobody does, though a tool of it may still work."""
        return not self.closed and super().hooked(event)

    @property
    def specs(self) -> list[ToolSpec]:
        return self.given_specs

    def nobody_cancelled(self) -> bool:
        """A framework may cancel the task that a tool runs in, which may be the very task of its run."""
        if self.task is None or self.scope.cancel_called:
            return False
        present = asyncio.current_task()
        return present is not None and not present.cancelling()

    def find(self, calling: ToolCalling | ToolCall) -> Tool | None:
        tool = self.at_hand.get(calling.tool_call_id)
        same = tool is not None and (tool.identifier, tool.name) == (calling.identifier, calling.api_name)
        return tool if same else None


async def no_child(parent: Run, agent: Agent, instruction: str, operation_id: str, state: OperationState | None) -> Any:
    """Refuse to run a sub-agent, which the framework does itself."""
    raise HookUsageError("Sub-agents of another framework are called by that framework.")
