"""Engines say which process runs an operation, and when: the leases of the store, or a scheduler such as DBOS."""

from hookline.engines._contract import KILL_PLACES, Takeover, check_engine
from hookline.runtime import Engine, Segment
from hookline.store import StoreEngine

__all__ = ["KILL_PLACES", "Engine", "Segment", "StoreEngine", "Takeover", "check_engine"]
