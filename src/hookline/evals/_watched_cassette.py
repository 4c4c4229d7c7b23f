"""A cassette of which a test's report can say what it was asked."""

from __future__ import annotations

from typing import Any, TypeAlias

from hookline.calls import ToolResult
from hookline.evals.cassette import Cassette
from hookline.events import BeforeToolCall

__all__ = ["Asked", "WatchedCassette"]

Asked: TypeAlias = tuple[BeforeToolCall, ToolResult | None]
"""A call, and what a cassette answered it: `None` for letting the real tool run."""


class WatchedCassette(Cassette):
    """A cassette that remembers what it was asked.

    Args:
        name: As for `Cassette`.
        **options: As for `Cassette`.

    Attributes:
        asked: Every call that it might have answered.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.asked: list[Asked] = []

    def answer(self, event: BeforeToolCall) -> ToolResult | None:
        """See `Cassette`."""
        result = super().answer(event)
        self.asked.append((event, result))
        return result
