"""Show the events and the log records of a run on the screen of a chat."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hookline.cli.chat._screen import Screen
from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    AfterToolCall,
    BeforeCallAgent,
    BeforeStep,
    BeforeToolCall,
    OnCallAgentError,
    OnCompactError,
    OnToolCallError,
)
from hookline.hooks import Hooks

__all__ = ["Later", "make_watcher", "show_warnings"]

Later = Callable[[Callable[[], None]], None]
"""Runs a function in the main thread, after those before it. May be called from any thread; never waits."""


def make_watcher(screen: Screen, later: Later) -> Hooks:
    """Return a bundle that shows the steps, tool calls and sub-agents of a run."""
    shown: dict[Any, Callable[[Any], None]] = {
        BeforeStep: screen.show_step,
        BeforeToolCall: screen.show_tool_start,
        AfterToolCall: screen.show_tool_end,
        OnToolCallError: screen.show_tool_end,
        BeforeCallAgent: screen.show_agent_start,
        AfterCallAgent: screen.show_agent_end,
        OnCallAgentError: screen.show_agent_error,
        AfterCompact: screen.show_compaction,
        OnCompactError: screen.show_compaction,
    }
    hooks = Hooks("chat", inherit=True)
    for kind, show in shown.items():

        def observe(event: Any, show: Callable[[Any], None] = show) -> None:
            later(partial(show, event))

        hooks.on(kind, id=f"chat.{kind.hook_type}")(observe)
    return hooks


class _Warnings(logging.Handler):
    """Shows what is logged in one line each, without tracebacks."""

    def __init__(self, screen: Screen, later: Later) -> None:
        super().__init__(logging.WARNING)
        self._screen, self._later = screen, later

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record; that a run failed is shown by the chat itself."""
        if hasattr(record, "failed_operation_id"):
            return
        try:
            said = record.getMessage()
        except Exception:
            said = str(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(error) not in said:
            said = f"{said}: {type(error).__name__}: {error}"
        self._later(partial(self._screen.show_warning, said))


@contextmanager
def show_warnings(screen: Screen, later: Later) -> Iterator[None]:
    """Show warnings and errors of every logger, unless the agent's own code has set up logging."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = _Warnings(screen, later)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
