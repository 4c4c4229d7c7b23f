"""Decide whether a stream must be held back until hooks have judged its result."""

from __future__ import annotations

from hookline.calls import Call
from hookline.runtime import AdapterRun

__all__ = ["must_hold_stream"]


def must_hold_stream(run: AdapterRun, call: type[Call]) -> bool:
    """Return whether an `after` or `around` hook may still change or withhold the result of such calls.

    If so, nothing of the result may be shown before the call has ended.

    Args:
        run: The run.
        call: The class of the calls.
    """
    return run.may_change_result(call)
