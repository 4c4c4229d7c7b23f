"""The ways to run an agent of Strands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import anyio.to_thread
from strands import Agent, tool
from strands.multiagent import GraphBuilder, Swarm

from hookline.adapters import hooked
from hookline.calls import ModelResponse, ToolRequest
from hookline.evals.adapter_contract import Ran, Scene
from hookline.evals.verdicts import Path
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

from ..differences import stop_is_read, wait_together
from .stage import Scripted, StrandsStage, agent_of

__all__ = ["PATHS"]


class SyncStage(StrandsStage):
    """Calls agents in a thread without an event loop."""

    async def run(self, agent: Any, prompt: str) -> Any:
        return await anyio.to_thread.run_sync(agent, prompt)


class StreamedStage(StrandsStage):
    """Reads the events of each run."""

    async def run(self, agent: Any, prompt: str) -> Any:
        result: Any = None
        async for event in agent.stream_async(prompt):
            result = event.get("result", result)
        return result


class InToolStage(StrandsStage):
    """Calls the sub-agents of a scene by `invoke_async`, in tools."""

    def agent_of(self, name: str, scene: Scene, asked: list[str]) -> Any:
        if not scene.agents:
            return agent_of(name, scene, asked)
        ((key, inner),) = scene.agents.items()
        callee = self.agent_of(key, inner, asked)

        async def call(input: str) -> str:  # noqa: A002
            """Ask an agent."""
            return str(await callee.invoke_async(input))

        model = Scripted(scene.turns, asked)
        return Agent(name=name, model=model, tools=[tool(name=key)(call)], callback_handler=None)


class GraphStage(StrandsStage):
    """Gives the policy to a graph whose only node is the agent of a scene."""

    def agent_of(self, name: str, scene: Scene, asked: list[str]) -> Any:
        builder = GraphBuilder()
        ((key, inner),) = scene.agents.items()
        builder.add_node(agent_of(key, inner, asked), key)
        builder.set_max_node_executions(10)
        return builder.build()

    def ran(self, agent: Any, asked: list[str], result: Any, attach: dict[str, Any]) -> Ran:
        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            again = await hooked(agent, hooks=hooks, **attach).resume(result, decisions)
            return self.ran(agent, asked, again, attach)

        return Ran(
            asked=list(asked), pending=[each.id.split(":")[2] for each in result.interrupts or ()], resume=resume
        )


class SwarmStage(GraphStage):
    """Gives the policy to a swarm, whose first agent hands over to the agent of a scene."""

    def agent_of(self, name: str, scene: Scene, asked: list[str]) -> Any:
        ((key, inner),) = scene.agents.items()
        over = ToolRequest("handoff_to_agent", {"agent_name": key, "message": "do it"}, tool_call_id="over")
        turns = [ModelResponse(tool_calls=[over]), ModelResponse(content="handed over")]
        first = Agent(name=name, model=Scripted(turns, asked), callback_handler=None)
        return Swarm([first, agent_of(key, inner, asked)])


WAITS = wait_together("Strands pauses the whole run with the agent, and continues both.")

NESTED = {
    **stop_is_read("The agent that called it reads the reason as the answer of the sub-agent."),
    **WAITS,
}

TOLD = stop_is_read("The agent that called it reads the reason as the error of the tool.")

PATHS = [
    Path("invoke_async", StrandsStage()),
    Path("sync call", SyncStage()),
    Path("stream_async", StreamedStage()),
    Path("agent as a tool", StrandsStage(), depth=1, differs=NESTED),
    Path("agent as a tool, twice", StrandsStage(), depth=2, differs=NESTED),
    Path("agent as a tool, streamed", StreamedStage(), depth=1, differs=NESTED),
    Path("invoke_async in a tool", InToolStage(), depth=1, differs=TOLD),
    Path("node of a graph", GraphStage(), depth=1, differs=WAITS),
    Path("handoff in a swarm", SwarmStage(), depth=1, differs=WAITS),
]
