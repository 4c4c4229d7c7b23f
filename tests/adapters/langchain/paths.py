"""The ways to run an agent of LangChain."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from hookline.evals.adapter_contract import Scene
from hookline.evals.verdicts import Path

from ..differences import stop_is_read, wait_together
from .stage import LangChainStage, agent_of

__all__ = ["PATHS"]


class SyncStage(LangChainStage):
    """Runs agents by `invoke`, in a thread without an event loop."""

    async def run(self, agent: Any, given: Any, config: Any) -> Any:
        return await anyio.to_thread.run_sync(lambda: agent.invoke(given, config))


class StreamedStage(LangChainStage):
    """Reads the messages and the states of each run."""

    async def run(self, agent: Any, given: Any, config: Any) -> Any:
        result: Any = None
        async for mode, part in agent.astream(given, config, stream_mode=["messages", "values"]):
            result = part if mode == "values" else result
        return result


class EventsStage(LangChainStage):
    """Reads the events of each run."""

    async def run(self, agent: Any, given: Any, config: Any) -> Any:
        result: Any = None
        async for event in agent.astream_events(given, config, version="v2"):
            result = event["data"].get("output", result) if event["event"] == "on_chain_end" else result
        state = await agent.aget_state(config)
        return {**state.values, "__interrupt__": state.interrupts}


class GraphStage(LangChainStage):
    """Gives the policy to a graph whose only node is the agent of a scene."""

    def agent_of(self, scene: Scene, asked: list[str]) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("clerk", agent_of(scene, asked, "clerk"))
        graph.add_edge(START, "clerk")
        graph.add_edge("clerk", END)
        return graph.compile(checkpointer=InMemorySaver())


NESTED = {
    **stop_is_read("The agent that called it reads the reason as the answer of the sub-agent."),
    **wait_together("LangGraph pauses the whole run with the sub-agent, and continues both."),
}

PATHS = [
    Path("ainvoke", LangChainStage()),
    Path("invoke", SyncStage()),
    Path("astream", StreamedStage()),
    Path("astream_events", EventsStage()),
    Path("agent in a tool", LangChainStage(), depth=1, differs=NESTED),
    Path("agent in a tool, twice", LangChainStage(), depth=2, differs=NESTED),
    Path("agent in a tool, streamed", StreamedStage(), depth=1, differs=NESTED),
    Path("node of a graph", GraphStage()),
]
