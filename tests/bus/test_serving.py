"""`hookline hooks serve`: a process decides, and another takes its place when it is killed or stopped."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hookline import ToolCall, ToolResult
from hookline.bus import NatsBus, remote
from hookline.interceptors import Chain
from tests.commands import Command, run_command
from tests.nats_servers import NatsServer

pytestmark = pytest.mark.anyio

HOOKS = """
import asyncio, os
from hookline import Hooks, Respond, ToolCall

hooks = Hooks("guard")

@hooks.before(ToolCall)
async def decide(call):
    if call.tool_name == "slow":
        print("asked", flush=True)
        await asyncio.sleep(0.3)
    return Respond(f"{os.getpid()}")
"""


@contextmanager
def serving(folder: Path, server: NatsServer, prefix: str, *, hears_ctrl_c: bool = True) -> Iterator[Command]:
    """A process that serves, once it says so."""
    (folder / "policy.py").write_text(HOOKS)
    command = ["hooks", "serve", "policy.py:hooks", "--bus", server.url, "--bus-prefix", prefix]
    with Command(*command, hears_ctrl_c=hears_ctrl_c, cwd=folder) as process:
        assert "hookline serves the hooks 'guard'" in process.stdout.readline()
        yield process


async def decide(bus: NatsBus, tool_name: str = "pay") -> str:
    """Return the answer of the remote hook, or the reason why it denied the call."""

    async def run(call: ToolCall) -> ToolResult:
        return ToolResult(content="ran")

    call = ToolCall(tool_name=tool_name, operation_id="op")
    outcome = await Chain([remote("guard", bus=bus, deadline=60)]).run(call, run)
    return f"denied: {outcome.denied.reason}" if outcome.denied else str(outcome.result.content)


async def test_another_process_decides_when_one_is_killed_under_its_questions(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str
) -> None:
    with (
        serving(tmp_path, nats_server, nats_prefix) as one,
        serving(tmp_path, nats_server, nats_prefix) as other,
    ):
        async with NatsBus(nats_server.url, prefix=nats_prefix) as bus:
            asked = [asyncio.create_task(decide(bus, "slow")) for _ in range(20)]
            assert await asyncio.to_thread(one.stdout.readline) == "asked\n"
            one.kill()
            answers = await asyncio.gather(*asked)

    assert set(answers) == {str(other.pid)}


@pytest.mark.parametrize("hears_ctrl_c", [True, False])
async def test_a_process_that_is_stopped_answers_what_it_was_asked(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str, hears_ctrl_c: bool
) -> None:
    with serving(tmp_path, nats_server, nats_prefix, hears_ctrl_c=hears_ctrl_c) as process:
        async with NatsBus(nats_server.url, prefix=nats_prefix) as bus:
            asked = asyncio.create_task(decide(bus, "slow"))
            assert await asyncio.to_thread(process.stdout.readline) == "asked\n"
            process.send_signal(signal.SIGTERM)
            assert await asked == str(process.pid)
            assert await asyncio.to_thread(process.wait, 60) == 128 + signal.SIGTERM
            assert (await decide(bus)).startswith("denied: ")


@pytest.mark.parametrize("command", [["hooks", "serve", "policy.py:hooks"], ["relay", "run"]], ids=" ".join)
async def test_a_process_that_nobody_has_forked_says_what_it_does_and_ends(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str, command: list[str]
) -> None:
    """The others are forked from a process that has imported what they need, and would hide an import that is missing."""
    (tmp_path / "policy.py").write_text(HOOKS)
    line = [*command, "--bus", nats_server.url, "--bus-prefix", nats_prefix]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from hookline.cli import main; main()", *line),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(
            (b"hookline serves the hooks", b"hookline relays the events")
        )
        process.send_signal(signal.SIGTERM)
        _, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, problems) == (128 + signal.SIGTERM, b"")


async def test_a_server_that_cannot_be_reached_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "policy.py").write_text(HOOKS)
    command = ["hooks", "serve", "policy.py:hooks", "--bus", "nats://127.0.0.1:1"]
    done = await asyncio.to_thread(run_command, *command, cwd=tmp_path)

    assert done.returncode == 1
    assert "The bus at nats://127.0.0.1:1 cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
