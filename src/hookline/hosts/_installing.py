"""Install the hook of a coding agent, take it out again, and ask its resident process how it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hookline.errors import HooklineError, HookUsageError
from hookline.hosts._command import client
from hookline.hosts._hosts import HOSTS, Scope
from hookline.hosts._installation import (
    Installation,
    config_folder,
    read_installation,
    socket_folder,
)
from hookline.hosts._policy import InstalledPolicy
from hookline.hosts._resident import ResidentStatus
from hookline.hosts._sessions import capabilities_of
from hookline.hosts._settings import add_hook, remove_hook
from hookline.runtime import AdapterRun

__all__ = [
    "ResidentError",
    "ask_status",
    "find_installation",
    "install_hook",
    "make_installation",
    "stop_resident",
    "uninstall_hook",
]

ASK_SECONDS = 2.0
POSIX_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")


class ResidentError(HooklineError):
    """The resident process of an installation must not be asked."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"The resident process is not asked, because {self.problem}. Remove what is there, if it is not yours."


def make_installation(
    host: str,
    *,
    scope: Scope = Scope.PROJECT,
    project: Path,
    hooks: Sequence[str] = (),
    store: str = "",
    files: Sequence[Path] = (),
    modules: Sequence[str] = (),
    scripts: Path | None = None,
    tenant_id: str = "",
    seconds: float = 20.0,
    ask_seconds: float = 0.0,
    environment: Sequence[str] = (),
    otlp_endpoint: str = "",
) -> Installation:
    """Describe the hook of a coding agent, without installing it.

    Args:
        host: The coding agent: `"claude"`, `"codex"`, `"gemini"`, `"cursor"` or `"copilot"`.
        scope: Whose settings name the hook.
        project: The folder of the project, in which hooks are looked for.
        hooks: Import paths of hooks: `package.module:name` or `file.py:name`.
        store: The URL of the store of operations and definitions.
        files: Files of hook definitions.
        modules: Modules whose functions definitions may name.
        scripts: The folder of the scripts that definitions may name.
        tenant_id: The tenant of the operations.
        seconds: Seconds that hooks may take for an answer.
        ask_seconds: Seconds to wait, besides, for a person's decision.
        environment: Names of environment variables that the hooks see.
        otlp_endpoint: Where spans are sent.

    Raises:
        HookUsageError: If there is no such coding agent, or an argument is invalid.
    """
    if host not in HOSTS:
        raise HookUsageError(f"{host!r} is not a coding agent that hookline knows: {', '.join(HOSTS)}.")
    if not 0.5 <= seconds <= 600 or not 0 <= ask_seconds <= 86400:
        raise HookUsageError("Hooks may take 0.5 to 600 seconds, and a person 0 to 86400.")
    for name in environment:
        if not name.replace("_", "").isalnum():
            raise HookUsageError(f"{name!r} is no name of an environment variable.")
    project = project.absolute()
    shell = os.path.basename(os.environ.get("SHELL", "sh"))
    return Installation(
        host=host,
        settings=str(HOSTS[host].settings_file(scope, project)),
        folder=str(project),
        hooks=tuple(hooks),
        store=_absolute_store(store, project),
        files=tuple(str(project / each) for each in files),
        modules=tuple(modules),
        scripts=str(project / scripts) if scripts is not None else "",
        tenant_id=tenant_id,
        seconds=seconds,
        ask_seconds=ask_seconds,
        environment=tuple(environment),
        otlp_endpoint=otlp_endpoint,
        config=str(config_folder().absolute()),
        sockets=str(socket_folder()),
        wrapped=host == "codex" and shell not in POSIX_SHELLS,
    )


def install_hook(installation: Installation) -> list[str]:
    """Check the hooks, write the installation, and name it in the settings; return the events.

    Raises:
        HookUsageError: If hooks cannot be imported.
        UnsupportedHookError: If the coding agent would never call one of them.
        SettingsError: If the settings are broken, or cannot be written.
    """
    host = installation.find_host()
    AdapterRun(InstalledPolicy(installation).own_hooks, capabilities_of(host))
    events = add_hook(installation)
    installation.write()
    return events


def uninstall_hook(installation: Installation) -> bool:
    """Take the hook out of the settings, and end its resident process; return whether the settings named it.

    Raises:
        SettingsError: If the settings are broken, or cannot be written.
    """
    found = remove_hook(installation)
    stop_resident(installation)
    with contextlib.suppress(FileNotFoundError):
        installation.path.unlink()
    return found


def find_installation(host: str, scope: Scope, project: Path) -> Installation | None:
    """Return the installation for a coding agent's settings; `None` if there is none.

    Raises:
        InstallationError: If it cannot be read.
    """
    wanted = make_installation(host, scope=scope, project=project)
    return read_installation(wanted.path) if wanted.path.exists() else None


def ask_status(installation: Installation, seconds: float = ASK_SECONDS) -> ResidentStatus | None:
    """Ask the resident process of an installation how it is; `None` if there is none.

    Raises:
        TimeoutError: If it does not answer, because it is frozen or busy.
        ResidentError: If its socket is not this user's.
    """
    answer = _ask(installation, "status", seconds)
    return None if answer is None else msgspec.json.decode(answer, type=ResidentStatus)


def stop_resident(installation: Installation, seconds: float = ASK_SECONDS) -> bool:
    """End the resident process of an installation; the next question starts another. Return whether there was one."""
    with contextlib.suppress(TimeoutError, ResidentError):
        return _ask(installation, "stop", seconds) is not None
    return False


def _ask(installation: Installation, rule: str, seconds: float) -> bytes | None:
    end = client.now() + seconds
    try:
        line = client.connect(installation.sockets, installation.key, end)
        if line is None:
            return None
        try:
            line.sendall(f"{client.VERSION} {rule} - {seconds} 0\n".encode())
            head, _, body = client.receive(line, end).partition(b"\n")
        finally:
            line.close()
    except client.Refusal as error:
        raise ResidentError(str(error)) from None
    except (BrokenPipeError, ConnectionResetError):
        return None
    return body if head.startswith(b"+hookline") else None


def _absolute_store(url: str, project: Path) -> str:
    """Return the URL of a store that means the same in every folder."""
    before = "sqlite:///"
    path = url.removeprefix(before)
    if not url.startswith(before) or path.startswith((":memory:", "/")) or not path:
        return url
    return f"{before}{project / path}"
