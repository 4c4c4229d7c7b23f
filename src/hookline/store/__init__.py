"""Keeping operations, their events and their deliveries in a database: SQLite, or PostgreSQL for several machines."""

from importlib import import_module

from hookline.errors import MissingExtraError

try:
    for driver in ("aiosqlite", "alembic", "asyncpg", "sqlalchemy.ext.asyncio"):
        import_module(driver)
except ImportError as error:
    raise MissingExtraError("server", "A store in a database") from error

from hookline.store._decisions import StoredDecision
from hookline.store._deliveries_endpoints import Breaker
from hookline.store._deliveries_log import (
    DeliveryFilter,
    DeliveryLog,
    StoredAttempt,
    StoredDelivery,
    StoredEndpoint,
)
from hookline.store._event_log import EventLog
from hookline.store._failures import StoreVersionError
from hookline.store._reading import Page, StoredOperation
from hookline.store._store import SqlStore
from hookline.store._worker import Worker

__all__ = [
    "Breaker",
    "DeliveryFilter",
    "DeliveryLog",
    "EventLog",
    "Page",
    "SqlStore",
    "StoreVersionError",
    "StoredAttempt",
    "StoredDecision",
    "StoredDelivery",
    "StoredEndpoint",
    "StoredOperation",
    "Worker",
]
