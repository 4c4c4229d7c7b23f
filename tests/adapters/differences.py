"""Differences of verdicts that several paths have."""

from __future__ import annotations

from hookline.evals.verdicts import DECISIONS, ForcedDifference, Record, Verdict

__all__ = ["DENIED", "TOLD", "deny_questions", "named", "read_otherwise", "stop_is_read", "wait_together"]

DENIED = Verdict(records=(Record(tool="pay", success=False, answered_by="policy"),))
"""The call was denied, in words of the host's own."""


TOLD = Verdict(
    read=("not that",),
    ended="interrupted",
    records=(Record(tool="pay", success=False, answered_by="policy"),),
)
"""The denial ended the run of the sub-agent, and a model read its reason."""


def named(reason: str, *decisions: str, verdict: Verdict | None = None) -> dict[str, ForcedDifference]:
    """Return one difference of several decisions; without a verdict, they cannot be stated there."""
    return dict.fromkeys(decisions, ForcedDifference(reason=reason, verdict=verdict))


def deny_questions(reason: str) -> dict[str, ForcedDifference]:
    """Return the differences of a host in which nobody can be asked: `Ask` denies the call."""
    return named(reason, "ask, approved", "ask, rejected", verdict=DENIED)


def wait_together(reason: str) -> dict[str, ForcedDifference]:
    """Return the differences of a host whose run waits with its sub-agent, and continues with it."""
    return read_otherwise(reason, *(each.name for each in DECISIONS if each.policy.act == "ask"))


def read_otherwise(reason: str, *decisions: str) -> dict[str, ForcedDifference]:
    """Return the differences of decisions that lead to their verdict, in a way that needs a note."""
    found = [each for each in DECISIONS if each.name in decisions]
    return {each.name: ForcedDifference(reason=reason, verdict=each.verdict) for each in found}


def stop_is_read(reason: str) -> dict[str, ForcedDifference]:
    """Return the difference of a host in which a model reads the reason of a denial that ends a sub-agent's run."""
    return named(reason, "deny and stop", verdict=TOLD)
