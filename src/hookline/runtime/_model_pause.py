"""Let several runs wait together while the provider of their model limits one of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio

__all__ = ["ModelPause", "model_pause"]

SPREAD = 0.1
"""The share of a wait by which the runs come back one after the other: together they would be limited again."""
LONGEST_SPREAD = 1.0
"""The longest such time, in seconds."""


class ModelPause:
    """Makes the model calls of several runs wait when one of them was told to wait by the provider.

    Set it as `model_pause` where the runs begin. A model that raises a `TransientModelError` with `retry_after` pauses
    the calls to the model of that name, in every run that has the same `ModelPause`.

    Args:
        on_limit: Called when a provider limits a run, with the name of the model and the seconds to wait.

    Attributes:
        scopes: Cancel scopes of runs with a time limit. Their deadlines move by the time of a pause.
    """

    def __init__(self, on_limit: Callable[[str, float], object] | None = None) -> None:
        self.scopes: set[anyio.CancelScope] = set()
        self._on_limit = on_limit
        self._until: dict[str, float] = {}

    def limit(self, model: Any, seconds: float) -> None:
        """Pause the calls to a model, because its provider asked for that.

        Args:
            model: The model.
            seconds: The time to wait.
        """
        if not 0 < seconds < math.inf:
            return
        name = _name_of(model)
        if self.extend(name, seconds) and self._on_limit is not None:
            self._on_limit(name, seconds)

    def extend(self, name: str, seconds: float) -> bool:
        """Pause the calls to the model of a name; return whether the pause became longer by that."""
        now = anyio.current_time()
        before, until = max(self._until.get(name, now), now), now + seconds
        if until <= before:
            return False
        self._until[name] = until
        for scope in self.scopes:
            scope.deadline += until - before
        return True

    async def wait(self, model: Any) -> None:
        """Wait until calls to a model are no longer paused."""
        if not self._until:
            return
        name = _name_of(model)
        while (left := self._until.get(name, 0.0) - anyio.current_time()) > 0:  # noqa: ASYNC110  # it may get longer
            await anyio.sleep(left + random.random() * min(LONGEST_SPREAD, left * SPREAD))


model_pause: ContextVar[ModelPause | None] = ContextVar("hookline_model_pause", default=None)
"""The pause that the present run shares with others; `None` if it shares none."""


def _name_of(model: Any) -> str:
    return f"{getattr(model, 'provider', '')}:{getattr(model, 'name', '')}"
