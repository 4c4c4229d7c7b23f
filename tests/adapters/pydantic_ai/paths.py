"""The ways to run an agent of Pydantic AI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic_ai import Agent, Tool
from pydantic_ai.run import AgentRunResultEvent

from hookline.adapters.pydantic_ai import Hookline
from hookline.evals.adapter_contract import Scene
from hookline.evals.verdicts import Path

from ..threads import in_sync_thread
from .stage import PydanticAIStage, agent_of

__all__ = ["PATHS"]


class SyncStage(PydanticAIStage):
    """Runs agents in a thread without an event loop."""

    async def run(self, agent: Any, prompt: str) -> Any:
        return await in_sync_thread(lambda: agent.run_sync(prompt))


class Streamed(NamedTuple):
    """What `run_stream` has led to."""

    output: Any
    all_messages: Callable[[], Any]


class StreamedStage(PydanticAIStage):
    """Reads the output of each run as it comes."""

    async def run(self, agent: Any, prompt: str) -> Any:
        async with agent.run_stream(prompt) as result:
            async for output in result.stream_output():
                last = output
            return Streamed(last, result.all_messages)


class EventsStage(PydanticAIStage):
    """Reads the events of each run."""

    async def run(self, agent: Any, prompt: str) -> Any:
        async with agent.run_stream_events(prompt) as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    return event.result
        raise AssertionError("no result")


class IterStage(PydanticAIStage):
    """Goes through the nodes of each run."""

    async def run(self, agent: Any, prompt: str) -> Any:
        async with agent.iter(prompt) as run:
            async for _ in run:
                pass
        return run.result


class InToolStage(PydanticAIStage):
    """Calls the sub-agents of a scene by `run`, in tools.

    Args:
        capabilities: Those of these runs.
    """

    def __init__(self, capabilities: list[Any]) -> None:
        self.capabilities_given = capabilities

    def agent_of(self, name: str, scene: Scene, asked: list[str]) -> Agent:
        if not scene.agents:
            return agent_of(name, scene, asked)
        ((key, inner),) = scene.agents.items()
        callee = self.agent_of(key, inner, asked)

        async def call(instruction: str) -> str:
            return str((await callee.run(instruction, capabilities=self.capabilities_given)).output)

        agent = agent_of(name, Scene(turns=scene.turns), asked)
        agent._function_toolset.add_tool(Tool(call, name=key))
        return agent


PATHS = [
    Path("run", PydanticAIStage()),
    Path("run_sync", SyncStage()),
    Path("run_stream", StreamedStage()),
    Path("run_stream_events", EventsStage()),
    Path("iter", IterStage()),
    Path("agent_tool", PydanticAIStage(), depth=1),
    Path("agent_tool, twice", PydanticAIStage(), depth=2),
    Path("agent_tool, streamed", EventsStage(), depth=1),
    Path("run in a tool, with Hookline()", InToolStage([Hookline()]), depth=1),
    Path("run in a tool", InToolStage([]), depth=1),
]
