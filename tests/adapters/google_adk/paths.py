"""The ways to run an agent of Google ADK."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool

from hookline.calls import ModelResponse, ToolRequest
from hookline.evals.adapter_contract import Scene
from hookline.evals.verdicts import Path

from ..differences import wait_together
from .stage import GoogleAdkStage, Scripted, agent_of, runner_of, text_of, user

__all__ = ["PATHS"]


class SyncStage(GoogleAdkStage):
    """Runs agents by `run`, in a thread without an event loop."""

    async def events(self, runner: Any, invocation: dict[str, Any]) -> list[Event]:
        return await anyio.to_thread.run_sync(lambda: list(runner.run(**invocation)))


class StreamedStage(GoogleAdkStage):
    """Reads the text of the model as it comes."""

    async def events(self, runner: Any, invocation: dict[str, Any]) -> list[Event]:
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        found = [event async for event in runner.run_async(run_config=config, **invocation)]
        return [event for event in found if not event.partial]


class LiveStage(GoogleAdkStage):
    """Runs agents in live mode."""

    async def events(self, runner: Any, invocation: dict[str, Any]) -> list[Event]:
        ids = {name: invocation[name] for name in ("user_id", "session_id")}
        return [event async for event in runner.run_live(live_request_queue=LiveRequestQueue(), **ids)]


class TransferStage(GoogleAdkStage):
    """Transfers the conversation to the sub-agents of a scene."""

    def runner_of(self, scene: Scene, asked: list[str]) -> Runner:
        return runner_of(scene, asked, root_agent=transferring("tester", scene, asked))


class StreamedTransferStage(StreamedStage, TransferStage):
    """Reads the text of agents that transfer."""


class SequentialStage(GoogleAdkStage):
    """Gives the policy to a sequence whose only agent is that of a scene."""

    def runner_of(self, scene: Scene, asked: list[str]) -> Runner:
        agents: list[Any] = [agent_of(name, each, asked) for name, each in scene.agents.items()]
        return runner_of(scene, asked, root_agent=SequentialAgent(name="tester", sub_agents=agents))


class InToolStage(GoogleAdkStage):
    """Calls the sub-agents of a scene by runners, in tools."""

    def runner_of(self, scene: Scene, asked: list[str]) -> Runner:
        return runner_of(scene, asked, root_agent=running_in_tools("tester", scene, asked))


def transferring(name: str, scene: Scene, asked: list[str]) -> LlmAgent:
    """Return an agent that transfers to the agent of a scene, as that one may do too."""
    if not scene.agents:
        return agent_of(name, scene, asked)
    ((key, inner),) = scene.agents.items()
    over = ToolRequest("transfer_to_agent", {"agent_name": key}, tool_call_id=f"from_{name}")
    model = Scripted(scene=Scene(turns=[ModelResponse(tool_calls=[over])]))
    model.asked = asked
    return LlmAgent(name=name, model=model, sub_agents=[transferring(key, inner, asked)])


def running_in_tools(name: str, scene: Scene, asked: list[str]) -> LlmAgent:
    """Return an agent whose tools run the agents of a scene."""
    if not scene.agents:
        return agent_of(name, scene, asked)
    ((key, inner),) = scene.agents.items()
    callee = running_in_tools(key, inner, asked)

    async def call(request: str) -> str:
        """Ask an agent."""
        runner = Runner(
            agent=callee, app_name="inner", session_service=InMemorySessionService(), auto_create_session=True
        )
        found = [
            event async for event in runner.run_async(user_id="ann", session_id="inner", new_message=user(request))
        ]
        return text_of(found[-1])

    call.__name__ = key
    agent = agent_of(name, Scene(turns=scene.turns), asked)
    agent.tools = [FunctionTool(call)]
    return agent


WAITS = wait_together("ADK pauses the whole run with the agent, and continues both.")

PATHS = [
    Path("run_async", GoogleAdkStage()),
    Path("run", SyncStage()),
    Path("run_async, streamed", StreamedStage()),
    Path("AgentTool", GoogleAdkStage(), depth=1),
    Path("AgentTool, twice", GoogleAdkStage(), depth=2),
    Path("AgentTool, streamed", StreamedStage(), depth=1),
    Path("transfer to a sub-agent", TransferStage(), depth=1, differs=WAITS),
    Path("transfer, twice", TransferStage(), depth=2, differs=WAITS),
    Path("transfer, streamed", StreamedTransferStage(), depth=1, differs=WAITS),
    Path("sequence of agents", SequentialStage(), depth=1, differs=WAITS),
    Path("runner in a tool", InToolStage(), depth=1),
    Path(
        "run_live",
        LiveStage(),
        refused="Live sessions are not supported: `run_live` of a runner with hooks raises, so that no policy is skipped.",
    ),
]
