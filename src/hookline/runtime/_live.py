"""The operations that run in this process at this moment."""

from __future__ import annotations

from hookline.runtime._run import Run

__all__ = ["live"]

live: dict[str, Run | None] = {}
"""By operation id; `None` while one is being set up."""
