"""`compare_shares`: whether two shares differ by more than chance, as Fisher's exact test has it."""

from math import erfc, exp, lgamma, log, sqrt

__all__ = ["compare_shares"]

EXACT_BELOW = 50.0
"""The least expected count from which the normal approximation is used: there, summing up would take many terms."""
SAME = 1e-7
"""Relative difference up to which two probabilities count as equal, since they are computed with rounding."""


def compare_shares(before: int, count_before: int, after: int, count_after: int) -> float:
    """Return the probability of two shares that differ at least as much, if nothing but chance made them differ.

    Args:
        before: Number of hits in the first sample.
        count_before: Size of the first sample.
        after: Number of hits in the second sample.
        count_after: Size of the second sample.

    Returns:
        The two-sided p-value, 0 to 1: that of Fisher's exact test, which raises a false alarm at a level at most as
        often as the level says; with large counts, that of the two-proportion z-test.

    Raises:
        ValueError: If a count is negative, or there are more hits than the sample has.
    """
    if not (0 <= before <= count_before and 0 <= after <= count_after):
        raise ValueError(f"{before} of {count_before} and {after} of {count_after} are no shares.")
    total, hits = count_before + count_after, before + after
    misses = total - hits
    if not (count_before and count_after and hits and misses):
        return 1.0
    if min(count_before, count_after) * min(hits, misses) / total >= EXACT_BELOW:
        pooled = hits / total
        spread = sqrt(pooled * (1 - pooled) * (1 / count_before + 1 / count_after))
        return erfc(abs(before / count_before - after / count_after) / spread / sqrt(2))
    return _fisher(before, count_before, hits, total)


def _fisher(before: int, count_before: int, hits: int, total: int) -> float:
    """Add up the probabilities of all tables with the same margins that are at most as likely as this one."""
    least, most = max(0, hits - (total - count_before)), min(hits, count_before)
    margins = _log_choose(total, hits)
    logs = [
        _log_choose(count_before, each) + _log_choose(total - count_before, hits - each) - margins
        for each in range(least, most + 1)
    ]
    limit = logs[before - least] + log(1 + SAME)
    return min(1.0, sum(exp(each) for each in logs if each <= limit))


def _log_choose(total: int, chosen: int) -> float:
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)
