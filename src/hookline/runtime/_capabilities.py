"""`Capabilities`: which events and interceptors an adapter supports."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hookline.calls import AgentCall, Call, ToolCall
from hookline.events import EVENTS, HookType

__all__ = ["CONTEXT_CALLS", "KINDS", "Capabilities"]

CONTEXT_CALLS: frozenset[type[Call]] = frozenset({ToolCall, AgentCall})
"""The calls to which hooks can add text for the model."""

KINDS = frozenset({"before", "guard", "after", "around"})
"""The four kinds of interceptors."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The events and interceptors that an adapter supports.

    Attributes:
        framework: The name of the framework in errors and in the documentation.
        events: The events that the adapter emits.
        calls: The kinds of interceptors that the adapter runs, by class of call.
        asks: Whether a person can be asked about a tool call; if not, `Ask` denies the call.
        raises_stopped: Whether a run that a hook, a person or `interrupt` ended raises `RunStopped`.
        adds_context: The calls to which hooks can add text for the model with `add_context`. The result of
            `AdapterRun.call_tool` has the text, so that each adapter supports it for a `ToolCall`. For an `AgentCall`,
            `lead_run` gives the text to `work` as a further message of the input.
        guides: Whether the model is asked again if a hook returns `Guide`: `AdapterRun.ask_model` then calls `ask` a
            second time.
    """

    framework: str
    events: frozenset[HookType] = frozenset(EVENTS)
    calls: Mapping[type[Call], frozenset[str]] = {}
    asks: bool = False
    raises_stopped: bool = True
    adds_context: frozenset[type[Call]] = frozenset({ToolCall})
    guides: bool = False
