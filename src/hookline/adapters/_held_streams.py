"""Decide whether a stream must be held back until hooks have judged its result."""

from __future__ import annotations

from hookline.calls import Call
from hookline.hooks import Hooks, Interceptor
from hookline.runtime import AdapterRun

__all__ = ["must_hold_stream"]


def must_hold_stream(run: AdapterRun, call: type[Call]) -> bool:
    """Return whether an `after` or `around` hook may still change or withhold the result of such calls.

    If so, nothing of the result may be shown before the call has ended.

    Args:
        run: The run.
        call: The class of the calls.
    """
    entries = [entry.interceptors if isinstance(entry, Hooks) else [entry] for entry in run.run.hooks]
    found = [each for entry in entries for each in entry if isinstance(each, Interceptor) and each.call is call]
    return any(each.kind in ("after", "around") for each in found)
