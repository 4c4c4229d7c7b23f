"""The ways to run an agent of the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agents import Agent, FunctionTool, Runner, function_tool
from agents.realtime import RealtimeAgent

from hookline.adapters import hooked
from hookline.adapters.openai_agents import HookedAgent
from hookline.calls import ModelResponse, ToolRequest
from hookline.evals.adapter_contract import Ran, Scene
from hookline.evals.verdicts import Path
from hookline.hooks import AnyHook

from ..differences import deny_questions
from ..threads import in_sync_thread
from .stage import QUIET, OpenAIStage, Script, agent_of

__all__ = ["PATHS"]


class StreamedStage(OpenAIStage):
    """Reads the events of each run."""

    async def run(self, agent: HookedAgent, prompt: str, session: Any) -> Any:
        result = agent.run_streamed(prompt, run_config=QUIET, session=session)
        async for _ in result.stream_events():
            pass
        return result


class SyncStage(OpenAIStage):
    """Runs agents in a thread without an event loop."""

    async def run(self, agent: HookedAgent, prompt: str, session: Any) -> Any:
        return await in_sync_thread(lambda: agent.run_sync(prompt, run_config=QUIET, session=session))


class HandoffStage(OpenAIStage):
    """Hands the conversation over to the sub-agents of a scene."""

    def agent_of(self, scene: Scene, asked: list[str]) -> Agent[Any]:
        return handing_over(scene, asked, "tester")


class StreamedHandoffStage(StreamedStage, HandoffStage):
    """Reads the events of runs with handoffs."""


class InToolStage(OpenAIStage):
    """Calls the sub-agents of a scene by `Runner.run`, in tools."""

    def agent_of(self, scene: Scene, asked: list[str]) -> Agent[Any]:
        return running_in_tools(scene, asked, "tester")


class RealtimeStage(OpenAIStage):
    """Gives the policy to a realtime agent."""

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        hooked(RealtimeAgent(name="tester"), hooks, **attach)
        raise AssertionError("a realtime agent is refused")


def handing_over(scene: Scene, asked: list[str], name: str) -> Agent[Any]:
    """Return an agent that hands over to the agents of a scene, as often as they do."""
    if not scene.agents:
        return agent_of(scene, asked, name)
    call = ToolRequest(f"transfer_to_{next(iter(scene.agents))}", {}, tool_call_id=f"from_{name}")
    handoffs: list[Any] = [handing_over(each, asked, key) for key, each in scene.agents.items()]
    return Agent(name=name, model=Script([ModelResponse(tool_calls=[call])], asked), handoffs=handoffs)


def running_in_tools(scene: Scene, asked: list[str], name: str) -> Agent[Any]:
    """Return an agent whose tools run the agents of a scene."""
    agent = agent_of(Scene(turns=scene.turns, tools=scene.tools), asked, name)
    for key, each in scene.agents.items():
        agent.tools.append(running(running_in_tools(each, asked, key)))
    return agent


def running(agent: Agent[Any]) -> FunctionTool:
    """Return a tool that runs an agent."""

    async def call(input: str) -> str:  # noqa: A002
        return str((await Runner.run(agent, input, run_config=QUIET)).final_output)

    return function_tool(call, name_override=agent.name)


ASKS = deny_questions("The SDK asks a person before hooks run, so a hook that asks denies the call.")

PATHS = [
    Path("run", OpenAIStage(), differs=ASKS),
    Path("run_streamed", StreamedStage(), differs=ASKS),
    Path("run_sync", SyncStage(), differs=ASKS),
    Path("agent as a tool", OpenAIStage(), depth=1, differs=ASKS),
    Path("agent as a tool, twice", OpenAIStage(), depth=2, differs=ASKS),
    Path("agent as a tool, streamed", StreamedStage(), depth=1, differs=ASKS),
    Path("Runner.run in a tool", InToolStage(), depth=1, differs=ASKS),
    Path("handoff", HandoffStage(), depth=1, differs=ASKS),
    Path("handoff, twice", HandoffStage(), depth=2, differs=ASKS),
    Path("handoff, streamed", StreamedHandoffStage(), depth=1, differs=ASKS),
    Path(
        "realtime",
        RealtimeStage(),
        refused="A realtime session is not run by `Runner`; `hooked` refuses its agents, so that no policy is skipped.",
    ),
]
