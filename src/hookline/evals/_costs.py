"""Costs that may be unknown: `None` if a model has no known price, and never 0."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["UNKNOWN", "format_cost", "sum_costs"]

UNKNOWN = "unknown"
"""Stands for a cost that is not known."""


def sum_costs(costs: Iterable[float | None]) -> float | None:
    """Add up costs; `None` if one of them is unknown."""
    total = 0.0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total


def format_cost(cost: float | None, shape: str = "{:.4f}") -> str:
    """Write a cost as text.

    Args:
        cost: The cost in US dollars; `None` if it is unknown.
        shape: How a number is written.
    """
    return UNKNOWN if cost is None else shape.format(cost)
