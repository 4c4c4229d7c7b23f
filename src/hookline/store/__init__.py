"""Keeping operations, their events and their deliveries in a database: SQLite, or PostgreSQL for several machines."""

from importlib import import_module

from hookline.errors import MissingExtraError

try:
    for driver in ("aiosqlite", "alembic", "asyncpg", "sqlalchemy.ext.asyncio"):
        import_module(driver)
except ImportError as error:
    raise MissingExtraError("server", "A store in a database") from error

from hookline.store._database import StoreVersionError
from hookline.store._database import address_of as address_of
from hookline.store._database import after_commit as after_commit
from hookline.store._database import waiting_at_most as waiting_at_most
from hookline.store._decisions import StoredDecision
from hookline.store._decisions import seen_of as seen_of
from hookline.store._deliveries import Breaker
from hookline.store._deliveries import Outcome as Outcome
from hookline.store._deliveries import insert_deliveries as insert_deliveries
from hookline.store._deliveries import rows_of as rows_of
from hookline.store._deliveries import settle as settle
from hookline.store._delivery_claims import LONGEST_LEASE as LONGEST_LEASE
from hookline.store._delivery_claims import Claimed as Claimed
from hookline.store._delivery_claims import Run as Run
from hookline.store._delivery_claims import claim as claim
from hookline.store._delivery_claims import correct_times as correct_times
from hookline.store._delivery_claims import due as due
from hookline.store._delivery_claims import extend as extend
from hookline.store._delivery_claims import lock as lock
from hookline.store._delivery_claims import release as release
from hookline.store._delivery_claims import release_unknown as release_unknown
from hookline.store._delivery_log import DeliveryFilter, DeliveryLog, StoredAttempt, StoredDelivery, StoredEndpoint
from hookline.store._delivery_log import DeliveryStatus as DeliveryStatus
from hookline.store._event_log import EventLog
from hookline.store._reading import Page, StoredOperation
from hookline.store._reading import check_limit as check_limit
from hookline.store._reading import cursor_at as cursor_at
from hookline.store._reading import shown as shown
from hookline.store._rows import is_storable as is_storable
from hookline.store._rows import state_of as state_of
from hookline.store._rows import storable as storable
from hookline.store._store import SqlStore
from hookline.store._tables import api_keys as api_keys
from hookline.store._tables import audit as audit
from hookline.store._tables import decisions as decisions
from hookline.store._tables import definitions as definitions
from hookline.store._tables import deliveries as deliveries
from hookline.store._tables import ended_sessions as ended_sessions
from hookline.store._tables import endpoint_secrets as endpoint_secrets
from hookline.store._tables import endpoints as endpoints
from hookline.store._tables import events as events
from hookline.store._tables import execution_hooks as execution_hooks
from hookline.store._tables import executions as executions
from hookline.store._tables import idempotency as idempotency
from hookline.store._tables import master_keys as master_keys
from hookline.store._tables import operations as operations
from hookline.store._tables import revisions as revisions
from hookline.store._tables import statistics as statistics
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
