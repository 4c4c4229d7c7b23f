"""Differences of verdicts that several paths have."""

from __future__ import annotations

from hookline.evals.verdicts import Difference, Record, Verdict

__all__ = ["DENIED", "deny_questions", "named"]

DENIED = Verdict(records=(Record(tool="pay", success=False, answered_by="policy"),))
"""The call was denied, in words of the host's own."""


def named(reason: str, *decisions: str, verdict: Verdict | None = None) -> dict[str, Difference]:
    """Return one difference of several decisions; without a verdict, they cannot be stated there."""
    return dict.fromkeys(decisions, Difference(reason=reason, verdict=verdict))


def deny_questions(reason: str) -> dict[str, Difference]:
    """Return the differences of a host in which nobody can be asked: `Ask` denies the call."""
    return named(reason, "ask, approved", "ask, rejected", verdict=DENIED)
