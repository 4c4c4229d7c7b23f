"""Hooks that are scripts: a process is told what happens as JSON, and answers as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import psutil

from hookline._readonly import read_only
from hookline.calls import CALLS, Ask, Call, Deny, Respond, ToolCall, ToolSpec
from hookline.errors import HookUsageError, message_of
from hookline.events import Event
from hookline.interceptors import result_of
from hookline.registry._definition import HookDefinition, Point
from hookline.registry._errors import DefinitionError, ScriptError
from hookline.webhooks import ControlAnswer

__all__ = ["DEFAULT_TIMEOUT", "Ended", "Scripts", "decision_of", "run_process"]

DECISIONS = {
    "before": ("allow", "deny", "answer", "ask"),
    "guard": ("allow", "deny", "ask"),
    "after": ("allow", "deny", "answer"),
}
"""What a script may decide, by the kind of its hook; after a call, `"answer"` is the result to go on with."""


def decision_of(hook_id: str, point: Point, call: Call, result: Any, written: bytes) -> Any:
    """What a script has decided about a call.

    Args:
        hook_id: The hook, for the error.
        point: Where it stands.
        call: The call.
        result: After it, its result.
        written: What the script wrote; nothing, or an empty object, has nothing against the call.

    Raises:
        ScriptError: `"invalid_answer"`, if that is no answer that it may give there.
    """
    if not written.strip():
        return None
    answer = _read(hook_id, written)
    if answer is None:
        return None
    _check(hook_id, point, answer)
    if answer.decision == "deny":
        return Deny(answer.reason or f"Denied by {hook_id}.", stop=answer.stop)
    if answer.decision == "ask":
        return Ask(answer.reason)
    if answer.decision == "allow":
        return None if answer.args is None else msgspec.structs.replace(call, args=read_only(answer.args))
    try:
        answered = result_of(CALLS[type(call)], answer.result)
    except HookUsageError as error:
        raise _invalid(hook_id, f"`result`: {error}") from None
    return answered if point.kind == "after" else Respond(answered)


def _read(hook_id: str, written: bytes) -> ControlAnswer | None:
    """The answer; `None` for an empty object."""
    try:
        msgspec.json.decode(written)  # which is stricter about JSON than the standard library
        given = json.loads(written, object_pairs_hook=_once)
        if not isinstance(given, dict):
            raise ValueError(f"it is no JSON object but {type(given).__name__}")
        unknown = sorted(set(given) - set(ControlAnswer.__struct_encode_fields__))
        if unknown:
            raise ValueError(f"it has the unknown key {unknown[0]!r:.100}")
        if given and "decision" not in given:
            raise ValueError("it has no `decision`")
        return msgspec.convert(given, ControlAnswer) if given else None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid(hook_id, str(error) or type(error).__name__) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys each stand there once, since of two answers neither counts."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("it has a key twice")
    return dict(pairs)


def _check(hook_id: str, point: Point, answer: ControlAnswer) -> None:
    allowed = DECISIONS[point.kind or ""]
    if answer.decision not in allowed:
        raise _invalid(hook_id, f"at {point.name} `decision` is one of {', '.join(allowed)}; got {answer.decision!r}")
    for name, given, wanted in (
        ("args", answer.args is not None, "allow"),
        ("result", answer.result is not None, "answer"),
        ("stop", answer.stop, "deny"),
    ):
        if given and answer.decision != wanted:
            raise _invalid(hook_id, f"`{name}` goes with {wanted!r}, not with {answer.decision!r}")
    if answer.decision == "answer" and answer.result is None:
        raise _invalid(hook_id, "'answer' comes with a `result`")
    if answer.args is not None and not (point.call is ToolCall and point.kind == "before"):
        raise _invalid(hook_id, f"`args` are changed at ToolCall.before, not at {point.name}")


def _invalid(hook_id: str, problem: str) -> ScriptError:
    return ScriptError(hook_id, "invalid_answer", problem)


MARK = "HOOKLINE_SCRIPT_RUN"
"""The variable by which what a script has left behind is found, even if it has left its group and lost its parent."""
TICK = 0.005
"""Seconds between two looks at whether a process has ended: waiting for it would wait for its children's pipes too."""
SETTLING = 2.0
"""Seconds that what is killed has to be gone."""
CLOCK_SLACK = 2.0
"""Seconds by which the start of a process may seem too early: it is counted from a moment that is only estimated."""
CHUNK = 16 * 1024


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        exit_code: What it ended with; `None` if it was killed.
        stdout: What it wrote, up to a byte more than it may.
        stderr: The beginning of what it complained of.
        timed_out: Whether its time was over.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool


async def run_process(
    command: Sequence[str],
    document: bytes,
    *,
    environment: Mapping[str, str],
    timeout: float,
    most_output: int,
    most_complaints: int,
) -> Ended:
    """Run a program in an empty folder of its own and end it, with everything that it has started.

    Args:
        command: The program and its arguments.
        document: What it reads.
        environment: All the variables that it sees.
        timeout: Seconds after which it is ended.
        most_output: Bytes that it may write; with the next one it is ended.
        most_complaints: Bytes of its stderr that are kept.

    Raises:
        OSError: If it cannot be started.
    """
    mark, since = uuid4().hex, time.time() - CLOCK_SLACK
    folder = tempfile.mkdtemp(prefix="hookline-script-")
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={**environment, MARK: mark},
            start_new_session=sys.platform != "win32",  # a group of its own, which can be ended as a whole
        )
        talk = _Talk(process, most_output, most_complaints)
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                await talk.until_ended(document)
        except TimeoutError:
            timed_out = True
        finally:
            stopped = process.returncode is None
            await _to_the_end(_end(process, talk, mark, since))
    finally:
        await _to_the_end(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
    exit_code = None if stopped else process.returncode
    return Ended(exit_code, bytes(talk.stdout), bytes(talk.stderr), timed_out)


class _Talk:
    """What is said to a process and heard from it."""

    def __init__(self, process: asyncio.subprocess.Process, most_output: int, most_complaints: int) -> None:
        self.process = process
        self.stdout, self.stderr = bytearray(), bytearray()
        self.most_output, self.most_complaints = most_output, most_complaints
        self.too_much = False
        self._reading: list[asyncio.Task[None]] = []

    async def until_ended(self, document: bytes) -> None:
        """Say what there is to say, and listen until the process has ended or has said too much."""
        self._reading = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._hear_complaints()),
            asyncio.create_task(self._tell(document)),
        ]
        while self.process.returncode is None and not self.too_much:  # noqa: ASYNC110
            await asyncio.sleep(TICK)

    async def last_words(self) -> None:
        """Hear what is still in the pipes; nobody holds their other ends any more."""
        if self._reading:
            _, late = await asyncio.wait(self._reading, timeout=SETTLING)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)

    async def _tell(self, document: bytes) -> None:
        assert self.process.stdin is not None
        # A script need not read what it is told.
        with contextlib.suppress(OSError):
            self.process.stdin.write(document)
            await self.process.stdin.drain()
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(CHUNK):
            self.stdout += chunk
            if len(self.stdout) > self.most_output:
                del self.stdout[self.most_output + 1 :]
                self.too_much = True
                return

    async def _hear_complaints(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(CHUNK):
            self.stderr += chunk[: max(self.most_complaints - len(self.stderr), 0)]


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for something even where the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _end(process: asyncio.subprocess.Process, talk: _Talk, mark: str, since: float) -> None:
    """End a process and all that it has started, and hear the rest."""
    if process.returncode is None and sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(_kill_all, process.pid, mark, since)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLING):
            while process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(TICK)
    await talk.last_words()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with contextlib.suppress(OSError):
            transport.close()


def _kill_all(pid: int, mark: str, since: float) -> None:
    """Kill a process and whoever comes from it, until nobody is left who could start another one.

    Args:
        pid: The process.
        mark: What its descendants have in their environment.
        since: When it was started at the earliest.
    """
    deadline = time.monotonic() + SETTLING
    while (victims := _offspring(pid, mark, since)) and time.monotonic() < deadline:
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        # Not `psutil.wait_procs`: it would collect the exit code of our own child, which asyncio waits for.
        for victim in victims:
            while _lives(victim) and time.monotonic() < deadline:
                time.sleep(TICK)


def _offspring(pid: int, mark: str, since: float) -> list[psutil.Process]:
    """The processes that live and come from a run: by their parents, by their session, or by their mark."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        if root.create_time() >= since:
            found = {each.pid: each for each in (root, *root.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.create_time() >= since and (_session(process.pid) == pid or process.environ().get(MARK) == mark):
                found[process.pid] = process
    return [each for each in found.values() if _lives(each)]


def _session(pid: int) -> int | None:
    return os.getsid(pid) if sys.platform != "win32" else None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


logger = logging.getLogger("hookline")

DEFAULT_TIMEOUT = 5.0
"""Seconds that a script may take unless its definition says otherwise."""
MOST_AT_ONCE = 32
"""Scripts of one process that run at the same time; the others wait, and that counts as their time."""
MOST_OUTPUT, MOST_COMPLAINTS = 64 * 1024, 2000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", re.ASCII)
INTERPRETERS = {".py": (sys.executable,), ".sh": ("sh",), ".js": ("node",), ".ps1": ("pwsh", "-NoProfile", "-File")}
"""What runs a file without a `#!` line of its own that may be executed, by its ending."""


class Scripts:
    """The scripts that definitions may name: files in one folder, and nothing outside of it.

    A script reads one JSON document: `point`, `hookId`, `config`, and `event`, or `call` and after it `result`. What it
    writes is like a `ControlAnswer`; nothing at all has nothing against the call.

    Args:
        folder: Where they are.
        environment: Names of variables that they see, beside `PATH` and `LANG`.

    Raises:
        HookUsageError: If that is no folder.
    """

    def __init__(self, folder: Path, environment: Sequence[str] = ()) -> None:
        try:
            self._folder = Path(folder).resolve(strict=True)
        except OSError as error:
            raise HookUsageError(f"The folder of scripts cannot be used: {error}.") from None
        if not self._folder.is_dir():
            raise HookUsageError(f"`scripts` is a folder; {str(folder)!r} is none.")
        self._names = ("PATH", "LANG", *environment)
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    def handler(self, definition: HookDefinition, point: Point) -> Callable[..., Awaitable[Any]]:
        """What is called at a point: it runs the script of a definition.

        Raises:
            DefinitionError: If there is no such script, or none can stand there.
        """
        name = definition.script or ""
        if point.kind == "around":
            raise DefinitionError(
                "point_not_served", "$.point", "a script cannot surround a call; use before and after"
            )
        self.command(name)

        async def judge(call: Call) -> Any:
            return await self._ask(definition, point, call, None)

        async def judge_result(call: Call, result: Any) -> Any:
            return await self._ask(definition, point, call, result)

        async def tell(event: Event) -> None:
            await self._run(definition, {"event": msgspec.to_builtins(event)})

        return tell if point.event is not None else judge_result if point.kind == "after" else judge

    @staticmethod
    def timeout_of(definition: HookDefinition) -> float:
        """Seconds that the script of a definition may take."""
        return DEFAULT_TIMEOUT if definition.timeout is None else definition.timeout

    def problem_of(self, name: str) -> str:
        """Why a script cannot be run; `""` if it can."""
        try:
            self.command(name)
        except DefinitionError as error:
            return error.problem
        return ""

    def command(self, name: str) -> list[str]:
        """How a script is run.

        Raises:
            DefinitionError: If there is none of that name in the folder, or nothing that runs it.
        """
        if NAME.fullmatch(name) is None:
            problem = f"{name!r:.200} is no name of a script: a path in the folder of scripts, as 'checks/pay.py'"
            raise DefinitionError("script_refused", "$.script", problem)
        try:
            path = (self._folder / name).resolve(strict=True)
        except (OSError, RuntimeError):
            raise DefinitionError("script_refused", "$.script", f"there is no script {name!r}") from None
        # Also of a link that leads out of the folder, nobody learns more than that.
        if not path.is_relative_to(self._folder) or not path.is_file():
            raise DefinitionError("script_refused", "$.script", f"there is no script {name!r}")
        if os.access(path, os.X_OK) and _starts_itself(path):
            return [str(path)]
        interpreter, *options = INTERPRETERS.get(path.suffix, ("",))
        found = shutil.which(interpreter) if interpreter else None
        if found is None:
            problem = (
                f"nothing runs {name!r}: make it executable with a `#!` line, or end it in {', '.join(INTERPRETERS)}"
            )
            raise DefinitionError("script_refused", "$.script", problem)
        return [found, *options, str(path)]

    async def _ask(self, definition: HookDefinition, point: Point, call: Call, result: Any) -> Any:
        told: dict[str, Any] = {"call": _wire(call)}
        if point.kind == "after":
            told["result"] = _wire(result)
        return decision_of(definition.id, point, call, result, await self._run(definition, told))

    async def _run(self, definition: HookDefinition, told: dict[str, Any]) -> bytes:
        """What a script writes.

        Raises:
            ScriptError: If it is gone, does not start, takes too long, fails, or writes too much.
        """
        timeout = self.timeout_of(definition)
        try:
            command = self.command(definition.script or "")
        except DefinitionError as error:
            raise ScriptError(definition.id, "gone", error.problem) from None
        document = {"point": definition.point, "hookId": definition.id, **told, "config": definition.config}
        try:
            async with self._turns:
                ended = await run_process(
                    command,
                    msgspec.json.encode(document),
                    environment={name: os.environ[name] for name in self._names if name in os.environ},
                    timeout=timeout,
                    most_output=MOST_OUTPUT,
                    most_complaints=MOST_COMPLAINTS,
                )
        except (OSError, TypeError, ValueError) as error:
            raise ScriptError(definition.id, "not_started", message_of(error)) from error
        failure: ScriptError | None = None
        if ended.timed_out:
            failure = ScriptError(definition.id, "timeout", f"it was ended after its {timeout:g} s")
        elif len(ended.stdout) > MOST_OUTPUT:
            failure = ScriptError(definition.id, "too_much_output", f"it wrote more than {MOST_OUTPUT} bytes")
        elif ended.exit_code != 0:
            failure = ScriptError(definition.id, "exit_code", f"it ended with {ended.exit_code}")
        if failure is None:
            return ended.stdout
        if ended.stderr:
            # Not in the error, since that is what the model may be told.
            logger.warning("%s; stderr: %s", failure, ended.stderr.decode(errors="replace"))
        raise failure


def _starts_itself(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _wire(struct: Any) -> Any:
    """Return a call or a result as JSON has it, its own keys in camelCase, its tools as a model sees them."""
    if tools := getattr(struct, "tools", None):
        # A run offers its own tools, which hold functions; a script is told what the model is told.
        shown = [ToolSpec(**{name: getattr(each, name) for name in ToolSpec.__struct_fields__}) for each in tools]
        struct = msgspec.structs.replace(struct, tools=shown)
    plain = msgspec.to_builtins(struct, enc_hook=str)
    return {_camel(key): value for key, value in plain.items()} if isinstance(plain, dict) else plain


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.title() for word in rest)
