"""Attach hookline to the tests of Pydantic AI: every run of an agent has the capability."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

from peer_hooks import hooks_that_do_nothing
from pydantic_ai import Agent

from hookline.adapters.pydantic_ai import Hookline

begin = Agent.iter


@wraps(begin)
def _iter(self: Any, *given: Any, capabilities: Sequence[Any] | None = None, **options: Any) -> Any:
    ours = Hookline(hooks_that_do_nothing())
    return begin(self, *given, capabilities=[*(capabilities or ()), ours], **options)


Agent.iter = _iter  # type: ignore[assignment]
