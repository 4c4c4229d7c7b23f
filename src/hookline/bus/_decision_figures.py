"""Count the decisions that a process has asked other processes for: how they ended, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, TypeAlias
from weakref import WeakKeyDictionary

from hookline.bus._bus import Bus
from hookline.bus._durations import DurationHistogram
from hookline.bus._messages import NobodyServesError
from hookline.bus._signing import UnsignedAnswerError

__all__ = ["DecisionFigures", "DecisionOutcome", "count_decision", "decision_figures"]

DecisionOutcome: TypeAlias = Literal["answered", "nobody", "late", "unsigned", "failed", "cancelled"]
"""How the question of a remote hook ended: with a decision; no process serves the name; no answer before the deadline;
an answer without a valid signature; another failure; or the run was cancelled meanwhile."""


class DecisionFigures:
    """Figures of the questions of remote hooks to one name.

    Attributes:
        pending: Number of questions that are under way: this process's share of the queue of those who decide.
        durations: How long the others took, by how they ended.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.durations: dict[DecisionOutcome, DurationHistogram] = {}

    @property
    def asked(self) -> int:
        """Number of questions, those under way included."""
        return self.pending + sum(each.count for each in self.durations.values())

    def count(self, outcome: DecisionOutcome) -> int:
        """Return the number of questions that ended in a way."""
        return self.durations[outcome].count if outcome in self.durations else 0


_figures: WeakKeyDictionary[Bus, dict[str, DecisionFigures]] = WeakKeyDictionary()


def decision_figures(bus: Bus) -> Mapping[str, DecisionFigures]:
    """Return what became of the questions of remote hooks that this process has asked over a bus, by name."""
    return _figures.get(bus, {})


@contextmanager
def count_decision(bus: Bus, name: str) -> Iterator[None]:
    """Count a question of a remote hook, which is asked while the context is open."""
    figures = _figures.setdefault(bus, {}).setdefault(name, DecisionFigures())
    figures.pending += 1
    began = perf_counter()
    outcome: DecisionOutcome = "cancelled"
    try:
        yield
        outcome = "answered"
    except NobodyServesError:
        outcome = "nobody"
        raise
    except TimeoutError:
        outcome = "late"
        raise
    except UnsignedAnswerError:
        outcome = "unsigned"
        raise
    except Exception:
        outcome = "failed"
        raise
    finally:
        figures.pending -= 1
        figures.durations.setdefault(outcome, DurationHistogram()).add(perf_counter() - began)
