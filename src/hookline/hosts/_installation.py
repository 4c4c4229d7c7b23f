"""`Installation`: what the hook of a coding agent does, as `hookline host install` wrote it down."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

import msgspec

from hookline.errors import HooklineError
from hookline.hosts._command import client
from hookline.hosts._hosts import HOSTS, Host

__all__ = ["Installation", "InstallationError", "config_folder", "list_installations", "read_installation"]

FORMAT = 1
MARGIN_SECONDS = 10.0
"""How much longer the host waits than the client: whichever ends first decides, and a host decides for the call."""
LEAST_MARGIN_SECONDS = 0.5
LONGEST_FOLDER = 72
"""Bytes of the path of the sockets' folder: Linux takes 107 for a socket, and the name of one may have 34."""
HOOK = Path(client.__file__).resolve().with_name("hook.py")
"""The file that coding agents run."""


class InstallationError(HooklineError):
    """An installation cannot be read."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} is no installation of a hook: {self.problem}. Run `hookline host install` again."


class Installation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The configuration of the hook of a coding agent.

    Attributes:
        host: The coding agent.
        settings: The file of settings that names the hook.
        folder: The folder in which hooks are looked for.
        hooks: Import paths of hooks.
        store: The URL of the store; `""` for none.
        files: Files of hook definitions.
        modules: Modules whose functions definitions may name.
        scripts: The folder of the scripts that definitions may name; `""` for none.
        tenant_id: The tenant of the operations.
        seconds: Seconds that hooks may take for an answer.
        ask_seconds: Seconds to wait, besides, for a person's decision.
        environment: Names of environment variables that the hooks see, besides those that the client hands on.
        otlp_endpoint: Where spans are sent; `""` for nowhere.
        config: The folder of the file of the installation.
        sockets: The private folder of the socket.
        python: The interpreter.
        wrapped: Whether the host runs commands with a shell of another grammar than that of `sh`.
        format: The version of this format.
    """

    host: str
    settings: str
    folder: str
    hooks: tuple[str, ...] = ()
    store: str = ""
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    scripts: str = ""
    tenant_id: str = ""
    seconds: float = 20.0
    ask_seconds: float = 0.0
    environment: tuple[str, ...] = ()
    otlp_endpoint: str = ""
    config: str
    sockets: str
    python: str = msgspec.field(default_factory=lambda: sys.executable)
    wrapped: bool = False
    format: int = FORMAT

    @property
    def key(self) -> str:
        """The word that names the installation's files: one for each file of settings."""
        digest = hashlib.sha256(self.settings.encode(errors="surrogateescape")).hexdigest()[:12]
        return f"{self.host}-{digest}"

    @property
    def path(self) -> Path:
        """The file of the installation."""
        return Path(self.config) / f"{self.key}.json"

    @property
    def deadline(self) -> float:
        """Seconds after which the client refuses."""
        return self.seconds + self.ask_seconds

    def timeout(self, event: str) -> float:
        """Return the seconds that the host is told to wait for the client."""
        wanted = self.deadline + MARGIN_SECONDS
        return min(wanted, self.find_host().longest.get(event, wanted))

    def find_host(self) -> Host:
        """Return the coding agent.

        Raises:
            InstallationError: If this version does not know it.
        """
        if self.host not in HOSTS:
            raise InstallationError(str(self.path), f"{self.host!r} is not a coding agent that this version knows")
        return HOSTS[self.host]

    def command_words(self, event: str) -> list[str]:
        """Return the words of the installed command for one event."""
        rule = "judge" if self.find_host().judges(event) else "tell"
        seconds = min(self.deadline, self.timeout(event) - LEAST_MARGIN_SECONDS)
        given = [rule, event, f"{seconds:g}", self.sockets, self.key, str(self.path), *self.environment]
        return [self.python, "-I", "-S", str(HOOK), *given]

    def command(self, event: str) -> str:
        """Return the command line for one event.

        Where it judges, the shell refuses too: a client that is killed, or whose Python was removed, cannot.
        """
        words = shlex.join(self.command_words(event))
        if not self.find_host().judges(event):
            return words
        guarded = '|| { [ $? -eq 2 ] || echo "hookline: its command failed, so the call is denied." >&2; exit 2; }'
        line = f"{words} {guarded}"
        return f"/bin/sh -c {shlex.quote(line)}" if self.wrapped else line

    def write(self) -> None:
        """Write the file of the installation."""
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = self.path.with_suffix(".new")
        unfinished.touch(mode=0o600)
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        unfinished.replace(self.path)


def config_folder() -> Path:
    """Return the folder of the installations of this user."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "hookline" / "hosts"


def socket_folder() -> Path:
    """Return the private folder for sockets: that of the session where it is short enough, else one under /tmp."""
    mine = os.environ.get("XDG_RUNTIME_DIR", "")
    if mine and os.path.isdir(mine) and os.stat(mine).st_uid == os.getuid():
        found = Path(mine) / "hookline"
        if len(os.fsencode(found)) <= LONGEST_FOLDER:
            return found
    root = Path(tempfile.gettempdir())
    found = root / f"hookline-{os.getuid()}"
    return found if len(os.fsencode(found)) <= LONGEST_FOLDER else Path("/tmp") / f"hookline-{os.getuid()}"


def read_installation(path: Path) -> Installation:
    """Read an installation.

    Raises:
        InstallationError: If the file cannot be read.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Installation)
    except OSError as error:
        raise InstallationError(str(path), error.strerror or str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InstallationError(str(path), str(error)) from None
    if found.format > FORMAT:
        raise InstallationError(str(path), "a newer version of hookline wrote it")
    return found


def list_installations() -> list[Installation]:
    """List the installations of this user; files that cannot be read are left out."""
    found = []
    for path in sorted(config_folder().glob("*.json")):
        try:
            found.append(read_installation(path))
        except InstallationError:
            continue
    return found
