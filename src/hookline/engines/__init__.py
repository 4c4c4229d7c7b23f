"""Engines say which process runs an operation, and when: the leases of the store, or the queues of DBOS.

`StoreEngine` and `DbosEngine` need the extra `server`, and `DbosEngine` the extra `dbos` as well; neither is loaded
before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hookline.runtime import Engine, Segment

if TYPE_CHECKING:
    from hookline.engines._dbos import DbosEngine, QueueOptions
    from hookline.store import StoreEngine

__all__ = ["DbosEngine", "Engine", "QueueOptions", "Segment", "StoreEngine"]

_HOMES = {
    "DbosEngine": "hookline.engines._dbos",
    "QueueOptions": "hookline.engines._dbos",
    "StoreEngine": "hookline.store",
}
"""Modules of the names that are loaded when they are first used."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'hookline.engines' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
