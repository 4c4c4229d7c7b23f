"""The ways to run an agent of Microsoft Agent Framework."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent, WorkflowBuilder, tool

from hookline.evals.adapter_contract import Scene
from hookline.evals.verdicts import Path

from .stage import AgentFrameworkStage, agent_of

__all__ = ["PATHS"]


class StreamedStage(AgentFrameworkStage):
    """Reads the updates of each run."""

    async def run(self, agent: Any, prompt: str, session: Any) -> Any:
        stream = agent.run(prompt, session=session, stream=True)
        async for _ in stream:
            pass
        return await stream.get_final_response()


class InToolStage(AgentFrameworkStage):
    """Calls the sub-agents of a scene by `run`, in tools."""

    def agent_of(self, scene: Scene, asked: list[str]) -> Any:
        return running_in_tools("tester", scene, asked)


class WorkflowStage(AgentFrameworkStage):
    """Gives the policy to a workflow whose only executor is the agent of a scene, and which runs as an agent."""

    def agent_of(self, scene: Scene, asked: list[str]) -> Any:
        return WorkflowBuilder(start_executor=agent_of("clerk", scene, asked)).build().as_agent("tester")


def running_in_tools(name: str, scene: Scene, asked: list[str]) -> Agent[Any]:
    """Return an agent whose tools run the agents of a scene."""
    if not scene.agents:
        return agent_of(name, scene, asked)
    ((key, inner),) = scene.agents.items()
    callee = running_in_tools(key, inner, asked)

    async def call(task: str) -> str:
        return str((await callee.run(task)).text)

    agent = agent_of(name, Scene(turns=scene.turns), asked)
    agent.default_options["tools"] = [tool(call, name=key)]
    return agent


PATHS = [
    Path("run", AgentFrameworkStage()),
    Path("run, streamed", StreamedStage()),
    Path("agent as a tool", AgentFrameworkStage(), depth=1),
    Path("agent as a tool, twice", AgentFrameworkStage(), depth=2),
    Path("agent as a tool, streamed", StreamedStage(), depth=1),
    Path("run in a tool", InToolStage(), depth=1),
    Path(
        "workflow as an agent",
        WorkflowStage(),
        refused="A workflow takes no middleware: `hooked` refuses it. Attach hooks to the agents within it.",
    ),
]
