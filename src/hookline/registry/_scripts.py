"""Run scripts as hooks: a process reads an event or call as JSON, and answers with a decision as JSON."""

from __future__ import annotations

import asyncio
import contextlib
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
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import msgspec
import psutil

from hookline._readonly import read_only
from hookline.calls import CALLS, AgentCall, Ask, Call, Deny, Guide, Respond, ToolCall, ToolSpec
from hookline.delivery import check_known_keys, find_misplaced_field, parse_answer_object
from hookline.errors import HookUsageError, message_of
from hookline.events import Event
from hookline.interceptors import result_of
from hookline.registry._definition import HookDefinition, Point
from hookline.registry._errors import DefinitionError, ScriptError
from hookline.registry._host_scripts import HostScriptResult, build_host_handler, mask
from hookline.webhooks import ControlAnswer, to_camel

__all__ = ["DEFAULT_TIMEOUT", "ProcessResult", "Scripts", "parse_decision", "run_process"]

DECISIONS = {
    "before": ("allow", "deny", "answer", "ask"),
    "guard": ("allow", "deny", "ask"),
    "after": ("allow", "deny", "answer"),
}
"""Decisions that a script may make, by the kind of its hook; after a call, `"answer"` replaces the result."""


class ScriptAnswer(ControlAnswer, frozen=True, kw_only=True):
    """The answer of a script, as JSON.

    Attributes:
        decision: As of a `ControlAnswer`; after a `ModelCall` also `"guide"`, which discards the model's answer and
            asks again.
        reason: As of a `ControlAnswer`; with `"guide"` the feedback for the model.
    """

    decision: Literal["allow", "deny", "answer", "ask", "guide"] = "allow"  # type: ignore[assignment]


def parse_decision(hook_id: str, point: Point, call: Call, result: Any, written: bytes) -> Any:
    """Parse a script's output into the return value of its hook.

    Args:
        hook_id: The id of the hook, for the error.
        point: The point at which it stands.
        call: The call.
        result: The result, for a hook after the call.
        written: The output of the script; no output, or an empty object, allows the call.

    Raises:
        ScriptError: `"invalid_answer"`, if the output is no answer that is allowed at the point.
    """
    if not written.strip():
        return None
    answer = _parse_answer(hook_id, written)
    if answer is None:
        return None
    _check_answer(hook_id, point, answer)
    if answer.additional_context and isinstance(call, ToolCall | AgentCall):
        call.add_context(answer.additional_context)
    if answer.decision == "deny":
        return Deny(answer.reason or f"Denied by {hook_id}.", stop=answer.stop)
    if answer.decision == "guide":
        return Guide(answer.reason)
    if answer.decision == "ask":
        return Ask(answer.reason)
    if answer.decision == "allow":
        return None if answer.args is None else msgspec.structs.replace(call, args=read_only(answer.args))
    try:
        answered = result_of(CALLS[type(call)], answer.result)
    except HookUsageError as error:
        raise _invalid_answer_error(hook_id, f"`result`: {error}") from None
    return answered if point.kind == "after" else Respond(answered)


def _parse_answer(hook_id: str, written: bytes) -> ScriptAnswer | None:
    """Parse the JSON of an answer; `None` for an empty object."""
    try:
        given = parse_answer_object(written)
        check_known_keys(given)
        if given and "decision" not in given:
            raise ValueError("it has no `decision`")
        return msgspec.convert(given, ScriptAnswer) if given else None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid_answer_error(hook_id, str(error) or type(error).__name__) from None


def _check_answer(hook_id: str, point: Point, answer: ScriptAnswer) -> None:
    allowed = DECISIONS[point.kind or ""]
    if point.name == "ModelCall.after":
        allowed = (*allowed, "guide")
    if answer.decision not in allowed:
        raise _invalid_answer_error(
            hook_id, f"at {point.name}, `decision` must be one of {', '.join(allowed)}; got {answer.decision!r}"
        )
    misplaced = find_misplaced_field(answer)
    if misplaced is not None:
        raise _invalid_answer_error(hook_id, misplaced)
    if answer.decision == "answer" and answer.result is None:
        raise _invalid_answer_error(hook_id, "'answer' needs a `result`")
    if answer.args is not None and not (point.call is ToolCall and point.kind == "before"):
        raise _invalid_answer_error(hook_id, f"`args` can be changed only at ToolCall.before, not at {point.name}")
    if answer.additional_context and point.call not in (ToolCall, AgentCall):
        problem = f"`additionalContext` can be added only to a ToolCall or an AgentCall, not at {point.name}"
        raise _invalid_answer_error(hook_id, problem)
    if answer.decision == "guide" and not answer.reason:
        raise _invalid_answer_error(hook_id, "'guide' needs a `reason`, which the model reads")


def _invalid_answer_error(hook_id: str, problem: str) -> ScriptError:
    return ScriptError(hook_id, "invalid_answer", problem)


MARK = "HOOKLINE_SCRIPT_RUN"
"""Environment variable that marks the descendants of a script, to find those that left its process group."""
TICK = 0.005
"""Seconds between two checks whether a process has ended: `wait()` would also wait for its children's pipes."""
SETTLING = 2.0
"""Seconds to wait for killed processes to end."""
CLOCK_SLACK = 2.0
"""Seconds by which the reported start of a process may be too early, since the boot time is only estimated."""
CHUNK = 16 * 1024


class ProcessResult(NamedTuple):
    """The result of a process.

    Attributes:
        exit_code: The exit code; `None` if it was killed.
        stdout: The output, up to one byte more than is allowed.
        stderr: The beginning of the error output.
        timed_out: Whether its time ran out.
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
    max_output: int,
    max_stderr: int,
) -> ProcessResult:
    """Run a program in an empty folder of its own, and finally kill it and every process that it has started.

    Args:
        command: The program and its arguments.
        document: The input of the program.
        environment: All environment variables that it sees.
        timeout: Seconds after which it is killed.
        max_output: Bytes that it may write; it is killed when it writes more.
        max_stderr: Bytes of its stderr that are kept.

    Raises:
        OSError: If the program cannot be started.
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
        pipes = _ProcessPipes(process, max_output, max_stderr)
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                await pipes.communicate(document)
        except TimeoutError:
            timed_out = True
        finally:
            stopped = process.returncode is None
            await _finish_despite_cancellation(_end_process(process, pipes, mark, since))
    finally:
        await _finish_despite_cancellation(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
    exit_code = None if stopped else process.returncode
    return ProcessResult(exit_code, bytes(pipes.stdout), bytes(pipes.stderr), timed_out)


class _ProcessPipes:
    """Writes the input of a process, and reads its output and errors."""

    def __init__(self, process: asyncio.subprocess.Process, max_output: int, max_stderr: int) -> None:
        self.process = process
        self.stdout, self.stderr = bytearray(), bytearray()
        self.max_output, self.max_stderr = max_output, max_stderr
        self.too_much = False
        self._reading: list[asyncio.Task[None]] = []

    async def communicate(self, document: bytes) -> None:
        """Write the input and read the output until the process has ended or has written too much."""
        self._reading = [
            asyncio.create_task(self._read_output()),
            asyncio.create_task(self._read_errors()),
            asyncio.create_task(self._write_input(document)),
        ]
        while self.process.returncode is None and not self.too_much:  # noqa: ASYNC110
            await asyncio.sleep(TICK)

    async def read_rest(self) -> None:
        """Read what is left in the pipes, after all processes that held their other ends have ended."""
        if self._reading:
            _, late = await asyncio.wait(self._reading, timeout=SETTLING)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)

    async def _write_input(self, document: bytes) -> None:
        assert self.process.stdin is not None
        # A script need not read its input.
        with contextlib.suppress(OSError):
            self.process.stdin.write(document)
            await self.process.stdin.drain()
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    async def _read_output(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(CHUNK):
            self.stdout += chunk
            if len(self.stdout) > self.max_output:
                del self.stdout[self.max_output + 1 :]
                self.too_much = True
                return

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(CHUNK):
            self.stderr += chunk[: max(self.max_stderr - len(self.stderr), 0)]


async def _finish_despite_cancellation(work: Coroutine[Any, Any, None]) -> None:
    """Wait for a coroutine to finish, even if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _end_process(process: asyncio.subprocess.Process, pipes: _ProcessPipes, mark: str, since: float) -> None:
    """Kill a process and all its descendants, and read the rest of its output."""
    if process.returncode is None and sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(_kill_all, process.pid, mark, since)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLING):
            while process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(TICK)
    await pipes.read_rest()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with contextlib.suppress(OSError):
            transport.close()


def _kill_all(pid: int, mark: str, since: float) -> None:
    """Kill a process and its descendants again and again until none is left that could start another one.

    Args:
        pid: The id of the process.
        mark: The value of `MARK` in the environment of its descendants.
        since: The earliest time at which it was started, in unix seconds.
    """
    deadline = time.monotonic() + SETTLING
    while (victims := _find_descendants(pid, mark, since)) and time.monotonic() < deadline:
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        # Not `psutil.wait_procs`: it would collect the exit code of our own child, which asyncio waits for.
        for victim in victims:
            while _is_alive(victim) and time.monotonic() < deadline:
                time.sleep(TICK)


def _find_descendants(pid: int, mark: str, since: float) -> list[psutil.Process]:
    """Find the living processes of a run: by their parents, their session, or their mark."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        if root.create_time() >= since:
            found = {each.pid: each for each in (root, *root.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.create_time() >= since and (
                _session_id(process.pid) == pid or process.environ().get(MARK) == mark
            ):
                found[process.pid] = process
    return [each for each in found.values() if _is_alive(each)]


def _session_id(pid: int) -> int | None:
    return os.getsid(pid) if sys.platform != "win32" else None


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


logger = logging.getLogger("hookline")

DEFAULT_TIMEOUT = 5.0
"""Seconds that a script may take by default."""
MOST_AT_ONCE = 32
"""Scripts that run at the same time in this process; others wait, and the wait counts as their time."""
MAX_OUTPUT, MAX_STDERR = 64 * 1024, 2000
MAX_HOST_OUTPUT, MAX_HOST_STDERR = 10 * 1024 * 1024, 64 * 1024
"""The hosts obey a denial in an answer of 8 MB, so one may not get lost for its length."""
PLAIN_NAMES = ("PATH", "LANG")
"""Environment variables that hold no secrets."""
SHORTEST_SECRET = 6
"""Shorter values of variables are not blanked in texts, where they would occur by chance."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", re.ASCII)
INTERPRETERS = {".py": (sys.executable,), ".sh": ("sh",), ".js": ("node",), ".ps1": ("pwsh", "-NoProfile", "-File")}
"""Interpreters, by file suffix, of scripts that are not executable or have no `#!` line."""


class Scripts:
    """The scripts that definitions may name: files in one folder, and none outside of it.

    A script reads one JSON document with `point`, `hookId` and `config`, and with `event`, or `call` and, after it,
    `result`. It writes an answer like a `ControlAnswer`; no output allows the call.

    Args:
        folder: The folder of the scripts.
        environment: Names of the environment variables that scripts see, besides `PATH` and `LANG`.

    Raises:
        HookUsageError: If there is no such folder.
    """

    def __init__(self, folder: Path, environment: Sequence[str] = ()) -> None:
        try:
            self._folder = Path(folder).resolve(strict=True)
        except OSError as error:
            raise HookUsageError(f"The folder of scripts cannot be used: {error}.") from None
        if not self._folder.is_dir():
            raise HookUsageError(f"`scripts` must be a folder; {str(folder)!r} is not one.")
        self._names = (*PLAIN_NAMES, *environment)
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    def build_handler(self, definition: HookDefinition, point: Point) -> Callable[..., Awaitable[Any]]:
        """Build the handler that runs the script of a definition.

        Raises:
            DefinitionError: If there is no such script, or a script cannot stand at the point.
        """
        name = definition.script or ""
        if point.kind == "around":
            raise DefinitionError(
                "point_not_served", "$.point", "a script cannot be an `around`; use `before` and `after`"
            )
        self.build_command(name)
        if definition.dialect != "hookline":
            return build_host_handler(definition, point, self._ask_host_script, to_wire=_to_wire)

        async def judge(call: Call) -> Any:
            return await self._decide(definition, point, call, None)

        async def judge_result(call: Call, result: Any) -> Any:
            return await self._decide(definition, point, call, result)

        async def observe(event: Event) -> None:
            await self._run(definition, {"event": msgspec.to_builtins(event)})

        return observe if point.event is not None else judge_result if point.kind == "after" else judge

    @staticmethod
    def timeout_of(definition: HookDefinition) -> float:
        """Return the seconds that the script of a definition may take."""
        return DEFAULT_TIMEOUT if definition.timeout is None else definition.timeout

    def find_problem(self, name: str) -> str:
        """Return why a script cannot be run; `""` if it can."""
        try:
            self.build_command(name)
        except DefinitionError as error:
            return error.problem
        return ""

    def build_command(self, name: str) -> list[str]:
        """Return the command that runs a script.

        Raises:
            DefinitionError: If there is no script of that name in the folder, or no interpreter for it.
        """
        if NAME.fullmatch(name) is None:
            problem = (
                f"{name!r:.200} is not a valid script; use a path in the folder of scripts, such as 'checks/pay.py'"
            )
            raise DefinitionError("script_refused", "$.script", problem)
        try:
            path = (self._folder / name).resolve(strict=True)
        except (OSError, RuntimeError):
            raise DefinitionError("script_refused", "$.script", f"there is no script {name!r}") from None
        # The same error for a link that leads out of the folder, which must not reveal what is there.
        if not path.is_relative_to(self._folder) or not path.is_file():
            raise DefinitionError("script_refused", "$.script", f"there is no script {name!r}")
        if os.access(path, os.X_OK) and _has_shebang(path):
            return [str(path)]
        interpreter, *options = INTERPRETERS.get(path.suffix, ("",))
        found = shutil.which(interpreter) if interpreter else None
        if found is None:
            suffixes = ", ".join(INTERPRETERS)
            problem = f"nothing runs {name!r}: make it executable with a `#!` line, or give it a suffix of {suffixes}"
            raise DefinitionError("script_refused", "$.script", problem)
        return [found, *options, str(path)]

    async def _decide(self, definition: HookDefinition, point: Point, call: Call, result: Any) -> Any:
        fields: dict[str, Any] = {"call": _to_wire(call)}
        if point.kind == "after":
            fields["result"] = _to_wire(result)
        return parse_decision(definition.id, point, call, result, await self._run(definition, fields))

    async def _run(self, definition: HookDefinition, fields: dict[str, Any]) -> bytes:
        """Run the script of a definition, and return its output.

        Raises:
            ScriptError: If the script is gone, does not start, takes too long, fails, or writes too much.
        """
        document = {"point": definition.point, "hookId": definition.id, **fields, "config": definition.config}
        ended = await self._start(definition, document, self._environment(), MAX_OUTPUT, MAX_STDERR)
        failure = _find_failure(definition, ended, MAX_OUTPUT)
        if failure is None and ended.exit_code != 0:
            failure = ScriptError(definition.id, "exit_code", f"it exited with {ended.exit_code}")
        if failure is None:
            return ended.stdout
        if ended.stderr:
            # Logged, not in the error, since the model may be shown the error.
            logger.warning("%s; stderr: %s", failure, ended.stderr.decode(errors="replace"))
        raise failure

    async def _ask_host_script(self, definition: HookDefinition, document: dict[str, Any]) -> HostScriptResult:
        """Run a script that speaks another dialect, and return what it wrote and how it ended.

        Raises:
            ScriptError: If the script is gone, does not start, takes too long, or writes too much.
        """
        passed = self._environment()
        environment = {"CLAUDE_PROJECT_DIR": os.getcwd(), **passed}
        ended = await self._start(definition, document, environment, MAX_HOST_OUTPUT, MAX_HOST_STDERR)
        secrets = [value for name, value in passed.items() if name not in PLAIN_NAMES and len(value) >= SHORTEST_SECRET]
        failure = _find_failure(definition, ended, MAX_HOST_OUTPUT)
        if failure is not None:
            told = mask(ended.stderr[:MAX_STDERR].decode(errors="replace"), secrets)
            logger.warning("%s%s", failure, f"; stderr: {told}" if told else "")
            raise failure
        stderr = mask(ended.stderr.decode(errors="replace"), secrets).encode()
        return HostScriptResult(ended.exit_code or 0, ended.stdout, stderr, secrets)

    def _environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in self._names if name in os.environ}

    async def _start(
        self,
        definition: HookDefinition,
        document: dict[str, Any],
        environment: Mapping[str, str],
        max_output: int,
        max_stderr: int,
    ) -> ProcessResult:
        """Run the script of a definition.

        Raises:
            ScriptError: If the script is gone, or does not start.
        """
        try:
            command = self.build_command(definition.script or "")
        except DefinitionError as error:
            raise ScriptError(definition.id, "gone", error.problem) from None
        try:
            async with self._turns:
                return await run_process(
                    command,
                    msgspec.json.encode(document),
                    environment=environment,
                    timeout=self.timeout_of(definition),
                    max_output=max_output,
                    max_stderr=max_stderr,
                )
        except (OSError, TypeError, ValueError) as error:
            raise ScriptError(definition.id, "not_started", message_of(error)) from error


def _find_failure(definition: HookDefinition, ended: ProcessResult, max_output: int) -> ScriptError | None:
    """Return the failure of a script that did not end by itself."""
    if ended.timed_out:
        timeout = Scripts.timeout_of(definition)
        return ScriptError(definition.id, "timeout", f"it was killed after its timeout of {timeout:g} s")
    if len(ended.stdout) > max_output:
        return ScriptError(definition.id, "too_much_output", f"it wrote more than {max_output} bytes")
    if ended.exit_code is None:
        return ScriptError(definition.id, "exit_code", "it was killed")
    return None


def _has_shebang(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _to_wire(struct: Any) -> Any:
    """Convert a call or a result to JSON values: its own keys in camelCase, its tools as a model sees them."""
    if tools := getattr(struct, "tools", None):
        # A run's own tools hold functions; a script gets what the model gets.
        shown = [ToolSpec(**{name: getattr(each, name) for name in ToolSpec.__struct_fields__}) for each in tools]
        struct = msgspec.structs.replace(struct, tools=shown)
    plain = msgspec.to_builtins(struct, enc_hook=str)
    return {to_camel(key): value for key, value in plain.items()} if isinstance(plain, dict) else plain
