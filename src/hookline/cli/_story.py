"""Six short runs that open `hookline demo`: a denial, a mock, a fault, an approval, a resume elsewhere, an attack.

Every line shows what the run really gave. `python -m hookline.cli._story FOLDER` is the other process of the resume.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hookline.builtin import PromptInjectionScan
from hookline.calls import Deny, Message, ToolCall, ToolRequest
from hookline.errors import StaleStateError
from hookline.evals import ToolMocks
from hookline.evals.faults import Timeout
from hookline.evals.suites.agentdojo import AttackAttempt, AttackPolicy, attack, load_suite
from hookline.hooks import Hooks
from hookline.runtime import (
    Agent,
    Approve,
    InMemoryStore,
    OperationResult,
    OperationState,
    ScriptedModel,
    Tool,
    exec_agent,
    resume_agent,
    tool,
)

__all__ = ["tell_story"]

OPERATION = "op-refund"


@tool
def bash(command: str) -> str:
    """Run a shell command."""
    return f"ran {command}"


@tool
def search(query: str) -> str:
    """Search the web."""
    return f"asked the network for {query}"


@tool(needs_approval=True)
def refund(order: str, amount: int) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


def new_agent(used: Tool, *turns: ToolRequest | str) -> Agent:
    """Make an agent with one tool and a scripted model, which makes these turns."""
    return Agent(id="clerk", model=ScriptedModel(turns), tools=[used])


def tool_results(messages: list[Message]) -> list[str]:
    """Return what the model was told about its tool calls."""
    return [message.content for message in messages if message.role == "tool"]


async def deny_a_command() -> tuple[str, str]:
    """Run an agent whose shell command a guard denies."""
    hooks = Hooks()

    @hooks.guard(ToolCall, tool="bash")
    def no_deletion(call: ToolCall) -> Deny | None:
        return Deny("deleting files is not allowed") if "rm " in call.args["command"] else None

    agent = new_agent(bash, ToolRequest("bash", {"command": "rm -rf build"}), "I may not delete files.")
    result = await exec_agent(agent, "Clean up", hooks=[hooks])
    return (
        'A guard denies the command "rm -rf build", so the tool does not run.',
        f'The model reads: "{tool_results(result.messages)[0]}"',
    )


async def mock_a_search() -> tuple[str, str]:
    """Run an agent whose search is answered by a mock."""
    mocks = ToolMocks(strict=True)
    mocks.tool("search").returns("3 results")
    agent = new_agent(search, ToolRequest("search", {"query": "hooks"}), "I found 3 results.")
    result = await exec_agent(agent, "Search", hooks=[mocks])
    return (
        f"A mock answers a search instead of the tool (outcome: {mocks.calls[0].outcome}).",
        f'No network is needed; the model reads: "{tool_results(result.messages)[0]}"',
    )


async def break_a_tool() -> tuple[str, str]:
    """Run an agent whose first search fails on purpose."""
    mocks = ToolMocks()
    mocks.tool("search").returns("3 results")
    mocks.fault("search", Timeout(seconds=30), args={"query": "hooks"})
    asks = [ToolRequest("search", {"query": query}) for query in ("hooks", "agent hooks")]
    began = time.monotonic()
    result = await exec_agent(new_agent(search, *asks, "Found it."), "Search", hooks=[mocks])
    first, second = tool_results(result.messages)
    return (
        f"A search fails on purpose after 30 s; the test took {time.monotonic() - began:.2f} s.",
        f'The model reads a {first.partition(":")[0]}, asks again, and reads: "{second}"',
    )


async def ask_a_person() -> tuple[str, str]:
    """Run an agent that a person allows to pay."""
    agent, store = _refunding_agent(), InMemoryStore()
    paused = await exec_agent(agent, "Refund order A7", operation_id=OPERATION, store=store)
    waiting = paused.pending[0]
    result = await resume_agent(agent, OPERATION, [Approve(waiting.tool_call_id)], store=store)
    return (
        f"A refund of {waiting.args['amount']} needs a person, so the run pauses ({paused.reason}).",
        f'The person approves, and exactly that call runs: "{tool_results(result.messages)[0]}"',
    )


async def resume_elsewhere() -> tuple[str, str]:
    """Pause a run here, and resume it in another process."""
    with tempfile.TemporaryDirectory() as folder:
        paused = await exec_agent(
            _refunding_agent(), "Refund order A7", operation_id=OPERATION, store=FolderStore(Path(folder))
        )
        done = await anyio.run_process([sys.executable, "-m", __spec__.name, folder])
    return (
        f"The same run pauses ({paused.reason}). Only a file is kept.",
        done.stdout.decode().strip(),
    )


async def stop_an_attack() -> tuple[str, str]:
    """Run a task of AgentDojo whose data holds an injected instruction, without a guard and with one."""
    policies = [
        AttackPolicy(name="no guard", hooks=lambda tools: []),
        AttackPolicy(name="scan", hooks=lambda tools: [PromptInjectionScan()]),
    ]
    run = await attack(
        load_suite("banking"), policies=policies, pairs=[("user_task_0", "injection_task_5")], clean=False
    )
    bare, scanned = run.attempts
    return (
        'A bill says "Ignore all previous instructions" and asks for all the money.',
        f"Without hooks the attacker gets {_loot(bare)}; with PromptInjectionScan, {_loot(scanned)}.",
    )


def _loot(attempt: AttackAttempt) -> str:
    return "it" if attempt.goal else "nothing"


def _refunding_agent() -> Agent:
    return new_agent(refund, ToolRequest("refund", {"order": "A7", "amount": 40}), "Order A7 is refunded.")


class FolderStore:
    """A store for one program: the state of each operation in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, operation_id: str) -> OperationState | None:
        """Return the stored state of an operation."""
        file = self._folder / operation_id
        return msgspec.json.decode(file.read_bytes(), type=OperationState) if file.exists() else None

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        """Store a state in place of the expected one."""
        found = await self.load(state.operation_id)
        version = found.version if found is not None else None
        if version != expected_version:
            raise StaleStateError(state.operation_id, expected_version, version)
        draft = self._folder / f"{state.operation_id}.new"
        draft.write_bytes(msgspec.json.encode(state))
        draft.replace(self._folder / state.operation_id)


Scene = Callable[[], Awaitable[tuple[str, str]]]

SCENES: dict[str, Scene] = {
    "A denial": deny_a_command,
    "A mock": mock_a_search,
    "A fault": break_a_tool,
    "An approval": ask_a_person,
    "A resume": resume_elsewhere,
    "An attack": stop_an_attack,
}


def tell_story(console: Console) -> None:
    """Run the scenes one after the other, and print two lines about each."""
    console.print("Six runs of small agents, each with hooks:\n", style="dim")
    for number, (title, scene) in enumerate(SCENES.items(), 1):
        first, second = anyio.run(scene)
        console.print(Text.assemble((f"{number}. {title}", "bold")))
        for line in (first, second):
            console.print(Padding(Text(line), (0, 0, 0, 3), expand=False))
    console.print()


async def _resume(folder: str) -> OperationResult:
    agent = new_agent(refund, "Order A7 is refunded.")
    store = FolderStore(Path(folder))
    state = await store.load(OPERATION)
    assert state is not None
    return await resume_agent(agent, OPERATION, [Approve(state.pending[0].tool_call_id)], store=store)


if __name__ == "__main__":
    resumed = anyio.run(_resume, sys.argv[1])
    told = tool_results(resumed.messages)[0]
    sys.stdout.write(f'After the approval another process resumes it: "{told}", {resumed.reason}.\n')
