"""An MCP server as a process of ours: started, spoken to, listened to, and never left behind.

The client library has a transport of its own for this. Ours ends a hung server at once where the run was interrupted,
tells when the process is gone, keeps its stderr off the terminal, survives every kind of output, and bounds a line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from hookline.adapters._mcp_settings import Settings
from hookline.adapters._mcp_streams import LONGEST_MESSAGE, Incoming, Outgoing, Witness, parsed

__all__ = ["process_streams"]

GRACE = 0.5
"""Seconds between asking a process to end and killing it."""

ORPHANS = 0.1
"""Seconds to see its children gone too. Where no init collects the dead, they stay in the list of processes."""

TICK = 0.005
"""Seconds between two looks at whether a process has ended: waiting for it would wait for its children's pipes too."""

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


@asynccontextmanager
async def process_streams(settings: Settings, witness: Witness) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The streams of a server that is started for as long as this is open.

    Raises:
        OSError: If its process cannot be started.
    """
    process = await anyio.open_process(
        settings.command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=get_default_environment() | dict(settings.env),
        cwd=settings.cwd,
        start_new_session=sys.platform != "win32",  # a group of its own, which can be ended as a whole
    )
    assert process.stdout is not None
    assert process.stderr is not None
    deliver, delivered = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    queue, queued = anyio.create_memory_object_stream[bytes](float("inf"))

    def put(item: SessionMessage) -> None:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        queue.send_nowait(line.encode() + b"\n")

    patience = settings.stop_timeout
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process.stdout, deliver, witness)
        group.start_soon(_listen, process.stderr, witness)
        group.start_soon(_write, process, queued, witness)
        try:
            yield Incoming(delivered, witness.secrets), Outgoing(put, queue.close)
        except BaseException as error:
            if not isinstance(error, Exception):
                patience = 0.0  # cancelled: nobody waits for good manners
            raise
        finally:
            queue.close()  # the writer closes stdin behind the last message
            delivered.close()
            try:
                if await _gone(process, patience):
                    witness.exit_code = process.returncode
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
                group.cancel_scope.cancel()


async def _read(
    stdout: ByteReceiveStream, deliver: MemoryObjectSendStream[SessionMessage | Exception], witness: Witness
) -> None:
    """Deliver messages until there are no more; then only keep the pipe empty."""
    with contextlib.suppress(*_BROKEN):
        async with deliver:
            try:
                await _read_messages(stdout, deliver, witness)
            finally:
                witness.lost.set()  # before those who wait for answers learn that there will be none
    with contextlib.suppress(*_BROKEN):
        while True:
            await stdout.receive()


async def _read_messages(
    stdout: ByteReceiveStream, deliver: MemoryObjectSendStream[SessionMessage | Exception], witness: Witness
) -> None:
    buffer, searched = bytearray(), 0
    async for chunk in stdout:
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            searched = 0
            message = parsed(line)
            if message is not None:
                await deliver.send(message)
            elif line.strip():
                witness.note_strange(line)
        searched = len(buffer)
        if searched > LONGEST_MESSAGE:
            witness.problem = f"It sent a line of more than {LONGEST_MESSAGE >> 20} MiB, and was ended."
            return


async def _listen(stderr: ByteReceiveStream, witness: Witness) -> None:
    with contextlib.suppress(*_BROKEN):
        async for words in stderr:
            witness.hear(words)


async def _write(process: Process, queued: MemoryObjectReceiveStream[bytes], witness: Witness) -> None:
    assert process.stdin is not None
    with contextlib.suppress(*_BROKEN):
        async with queued, process.stdin:
            async for line in queued:
                await process.stdin.send(line)
        return
    witness.lost.set()


async def _gone(process: Process, seconds: float) -> bool:
    """Whether the process has ended, or does so in time."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(TICK)
    return process.returncode is not None


async def _end(process: Process) -> None:
    """End the process, if it still runs, and what it has started."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        await _gone(process, GRACE)
    if _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM)):
        await _gone(process, GRACE)
        with anyio.move_on_after(ORPHANS):
            while _signal(process, 0):  # noqa: ASYNC110
                await anyio.sleep(TICK)
    # Of the event loop's own pipes nobody else lets go where a process that has left the group still holds the other
    # ends, and anyio does not offer them.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with contextlib.suppress(OSError):
            transport.close()
    else:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(*_BROKEN):
                    await stream.aclose()
    await anyio.lowlevel.checkpoint()


def _signal(process: Process, number: int) -> bool:
    """Whether there was somebody to signal: the process, or on POSIX any that it has started and left in its group."""
    if sys.platform == "win32":
        if process.returncode is not None:
            return False
        process.terminate()
        return True
    try:
        os.killpg(process.pid, number)
    except OSError:
        return False
    return True
