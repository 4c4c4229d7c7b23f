"""Hooks that are scripts: a process is told what happens as JSON, and answers as JSON."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hookline.calls import Call
from hookline.errors import HookUsageError, message_of
from hookline.events import Event
from hookline.registry._definition import HookDefinition, Point
from hookline.registry._errors import DefinitionError, ScriptError
from hookline.registry._processes import run_process
from hookline.registry._script_answers import decision_of

__all__ = ["DEFAULT_TIMEOUT", "Scripts"]

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
    """A call or a result as JSON has it, its own keys in camelCase."""
    plain = msgspec.to_builtins(struct, enc_hook=str)
    return {_camel(key): value for key, value in plain.items()} if isinstance(plain, dict) else plain


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.title() for word in rest)
