"""hookline as the hook of coding agents: Claude Code, Codex, Gemini CLI, Cursor and Copilot CLI."""

from hookline.hosts._codex_trust import CodexError, CodexHook, list_codex_hooks, trust_codex_hooks
from hookline.hosts._hosts import HOSTS, Host, Scope
from hookline.hosts._installation import Installation, InstallationError, list_installations, read_installation
from hookline.hosts._installing import (
    ResidentError,
    ask_status,
    find_installation,
    install_hook,
    make_installation,
    stop_resident,
    uninstall_hook,
)
from hookline.hosts._moments import Moment
from hookline.hosts._reading import QuestionError
from hookline.hosts._resident import HostDecision, ResidentStatus, SessionStatus
from hookline.hosts._settings import SettingsError, find_hook

__all__ = [
    "HOSTS",
    "CodexError",
    "CodexHook",
    "Host",
    "HostDecision",
    "Installation",
    "InstallationError",
    "Moment",
    "QuestionError",
    "ResidentError",
    "ResidentStatus",
    "Scope",
    "SessionStatus",
    "SettingsError",
    "ask_status",
    "find_hook",
    "find_installation",
    "install_hook",
    "list_codex_hooks",
    "list_installations",
    "make_installation",
    "read_installation",
    "stop_resident",
    "trust_codex_hooks",
    "uninstall_hook",
]
