"""The places of the OpenAI Agents SDK where runs with hooks are found: seven of its functions, wrapped once.

Agents, tools, models, sessions and states stay those that were given. Each wrapper asks a context variable for the run
that it is called in; where there is none, it calls the SDK's function and nothing else happens.
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

__all__ = ["StandIn", "install", "original"]

SEAMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
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
"""Where each is, and the parameters that its wrapper needs."""

_originals: dict[str, Callable[..., Any]] = {}
_installing = threading.Lock()


def install(wrappers: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]) -> None:
    """Wrap the SDK's functions, once for the process.

    Args:
        wrappers: For each name in `SEAMS`, makes the wrapper of the function.

    Raises:
        HookUsageError: If the SDK that is installed has another shape; nothing is wrapped then.
    """
    with _installing:
        if _originals:
            return
        places = {name: _found(name) for name in SEAMS}
        _originals.update({name: function for name, (_, _, function) in places.items()})
        for name, (owner, attribute, function) in places.items():
            setattr(owner, attribute, functools.wraps(function)(wrappers[name](function)))


def original(name: str) -> Callable[..., Any]:
    """The SDK's own function of a seam.

    Args:
        name: One of `SEAMS`.
    """
    return _originals[name]


def _found(name: str) -> tuple[Any, str, Callable[..., Any]]:
    path, needed = SEAMS[name]
    module, _, rest = path.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        *parents, attribute = rest.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        function = getattr(owner, attribute)
        known = inspect.signature(function).parameters
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise _unknown(path, f"it is not there ({error})") from error
    if lacking := [each for each in needed if each not in known]:
        raise _unknown(path, f"it takes no {', '.join(lacking)}")
    return owner, attribute, function


def _unknown(path: str, problem: str) -> HookUsageError:
    return HookUsageError(
        f"Hooks cannot be attached to openai-agents {version('openai-agents')}: {path} is not as hookline knows it; "
        f"{problem}. Upgrade hookline, or install a version of openai-agents that it was tested with."
    )


class StandIn:
    """An object in place of another for one call: it has its class and attributes, but for some of its own.

    Args:
        inner: The object; it stays untouched.
        own: The attributes that are not its.
    """

    __slots__ = ("_inner", "_own")

    def __init__(self, inner: object, **own: object) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_own", own)

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "_own")
        return own[name] if name in own else getattr(object.__getattribute__(self, "_inner"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_inner"), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_inner"), name)

    def __eq__(self, other: object) -> bool:
        inner = object.__getattribute__(self, "_inner")
        return bool(inner == (object.__getattribute__(other, "_inner") if type(other) is StandIn else other))

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "_inner"))

    def __repr__(self) -> str:
        return repr(object.__getattribute__(self, "_inner"))
