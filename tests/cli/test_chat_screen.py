"""The lines of sub-agents of sub-agents in a chat: each stands at the depth of its operation."""

from __future__ import annotations

import io

import anyio
from rich.console import Console

from hookline import Agent, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.cli.chat._screen import Screen
from hookline.cli.chat._watch import make_watcher


@tool(in_thread=False)
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


def asking(child: str) -> ScriptedModel:
    return ScriptedModel([ToolRequest(child, {"instruction": "go on"}, toolset="agent"), "done"])


def test_the_begin_and_the_end_of_a_sub_agent_have_the_depth_of_the_operation_that_calls_it() -> None:
    writer = Agent(id="writer", model=ScriptedModel([ToolRequest("note", {"text": "tea"}), "done"]), tools=[note])
    helper = Agent(id="helper", model=asking("writer"), sub_agents=[writer])
    lead = Agent(id="lead", model=asking("helper"), sub_agents=[helper])
    console = Console(file=io.StringIO(), width=80)

    async def talk() -> None:
        await exec_agent(lead, "Note tea.", hooks=[make_watcher(Screen(console), lambda show: show())])

    anyio.run(talk)

    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line for line in shown if "agent/" in line or line.endswith("step 2")] == [
        "→ agent/helper  go on",
        "  → agent/writer  go on",
        "    · step 2",
        "  ✓ agent/writer",
        "  · step 2",
        "✓ agent/helper",
        "· step 2",
    ]
