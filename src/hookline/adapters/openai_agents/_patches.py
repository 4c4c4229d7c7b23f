"""Patch seven functions of the OpenAI Agents SDK, once per process, so that they find the hooked run they belong to.

Agents, tools, models, sessions and states are not changed. Each wrapper looks up the present run in a context variable;
outside of a hooked run it only calls the SDK's function.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from hookline.errors import HookUsageError

__all__ = ["Substitute", "install", "original"]

PATCHED_FUNCTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "run": ("agents.run:AgentRunner.run", ("starting_agent", "input")),
    "run_streamed": ("agents.run:AgentRunner.run_streamed", ("starting_agent", "input")),
    "start_streaming": ("agents.run:start_streaming", ("starting_input", "streamed_result")),
    "get_model": ("agents.run_internal.run_loop:get_model", ("agent", "run_config")),
    "invoke_tool": (
        "agents.run_internal.tool_execution:_invoke_function_tool_with_metadata",
        ("function_tool", "context", "arguments"),
    ),
    "execute_handoffs": ("agents.run_internal.turn_resolution:execute_handoffs", ("run_handoffs", "run_config")),
    "call_session": ("agents.run_internal.session_persistence:_call_session_method", ("method", "wrapper")),
}
"""The path of each function, and the parameters that its wrapper needs."""

_originals: dict[str, Callable[..., Any]] = {}
_install_lock = threading.Lock()


def install(wrappers: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]) -> None:
    """Wrap the functions of the SDK, once per process.

    Args:
        wrappers: For each name in `PATCHED_FUNCTIONS`, a function that wraps the SDK's.

    Raises:
        HookUsageError: If a function of the installed SDK is missing or different; nothing is wrapped then.
    """
    with _install_lock:
        if _originals:
            return
        functions = {name: _resolve(name) for name in PATCHED_FUNCTIONS}
        _originals.update({name: function for name, (_, _, function) in functions.items()})
        for name, (owner, attribute, function) in functions.items():
            setattr(owner, attribute, functools.wraps(function)(wrappers[name](function)))


def original(name: str) -> Callable[..., Any]:
    """Return the SDK's own function.

    Args:
        name: One of `PATCHED_FUNCTIONS`.
    """
    return _originals[name]


def _resolve(name: str) -> tuple[Any, str, Callable[..., Any]]:
    path, needed = PATCHED_FUNCTIONS[name]
    module, _, rest = path.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        *parents, attribute = rest.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        function = getattr(owner, attribute)
        known = inspect.signature(function).parameters
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise _unknown_function_error(path, f"it is missing ({error})") from error
    if missing := [each for each in needed if each not in known]:
        raise _unknown_function_error(path, f"it has no parameter {', '.join(missing)}")
    return owner, attribute, function


def _unknown_function_error(path: str, problem: str) -> HookUsageError:
    return HookUsageError(
        f"Hooks cannot be attached to openai-agents {version('openai-agents')}: {path} is not as hookline expects: "
        f"{problem}. Upgrade hookline, or install a version of openai-agents that it supports."
    )


_get_own = object.__getattribute__


class Substitute:
    """An object used in place of another: it has the other's class and attributes, except for those replaced.

    Args:
        inner: The object that it replaces; it is not changed.
        own: The replaced attributes.
    """

    __slots__ = ("_inner", "_own")

    def __init__(self, inner: object, **own: object) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_own", own)

    def __getattribute__(self, name: str) -> Any:
        own = _get_own(self, "_own")
        return own[name] if name in own else getattr(_get_own(self, "_inner"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_get_own(self, "_inner"), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_get_own(self, "_inner"), name)

    def __eq__(self, other: object) -> bool:
        inner = _get_own(self, "_inner")
        return bool(inner == (_get_own(other, "_inner") if type(other) is Substitute else other))

    def __hash__(self) -> int:
        return hash(_get_own(self, "_inner"))

    def __repr__(self) -> str:
        return repr(_get_own(self, "_inner"))
