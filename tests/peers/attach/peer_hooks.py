"""Hooks that do nothing, for the plugins that attach them to a framework's runs."""

from __future__ import annotations

import os
from collections.abc import Collection

from peer_recording import note_attached

from hookline import Hooks, ModelCall, ToolCall
from hookline.events import EVENTS


def hooks_that_do_nothing(
    events: Collection[str] = tuple(EVENTS), calls: Collection[type[ToolCall | ModelCall]] = (ToolCall, ModelCall)
) -> list[Hooks]:
    """Return an observer for each event; in the mode `interceptors` also a before, a guard and an after of each call.

    To be called for each run that is attached, which is how tests that run something with hooks are told from others.

    Args:
        events: Names of the events that the framework can drive.
        calls: The calls that it can drive.
    """
    note_attached()
    hooks = Hooks("peers", inherit=True)
    for name in events:
        hooks.on(EVENTS[name])(_observe)
    if os.environ["HOOKLINE_PEERS_MODE"] == "interceptors":
        for call in calls:
            hooks.before(call)(_pass_before)
            hooks.guard(call)(_pass_before)
            hooks.after(call)(_pass_after)
    return [hooks]


def _observe(event: object) -> None:
    pass


def _pass_before(call: object) -> None:
    pass


def _pass_after(call: object, result: object) -> None:
    pass
