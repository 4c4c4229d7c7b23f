"""What hooks may still change or withhold is not streamed before they have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.constants import TAG_NOSTREAM

from hookline.adapters._relay import holds
from hookline.calls import Call
from hookline.runtime import ForeignRun

__all__ = ["HELD", "held", "without_held"]

HELD = "hookline:held"
"""A tag of what is asked inside of hooks that may change or withhold what comes of it."""


@contextmanager
def held(run: ForeignRun, call: type[Call]) -> Iterator[None]:
    """Stream nothing of a model in here, if hooks of such calls come after it; LangGraph streams what they leave."""
    if not holds(run, call):
        yield
        return
    config = ensure_config()
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):  # other than those of a config, its tags outlive a model's own
        callbacks = callbacks.copy()
        callbacks.add_tags([TAG_NOSTREAM, HELD])
    token = var_child_runnable_config.set({**config, "callbacks": callbacks})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


async def without_held(events: Any) -> AsyncIterator[Any]:
    """LangChain's events, without what models said that hooks may have changed or withheld."""
    async with aclosing(events):
        async for event in events:
            if HELD not in event.get("tags", ()):
                yield event
            elif event["event"].endswith("_end"):
                yield {**event, "data": {key: each for key, each in event["data"].items() if key != "output"}}
            elif not event["event"].endswith("_stream"):
                yield event
