"""Store operations, their events and their deliveries in a database: SQLite, or PostgreSQL for several machines."""

from importlib.util import find_spec

from hookline.errors import MissingExtraError

# They are not imported here: only PostgreSQL needs asyncpg, and only tables that have to be migrated need alembic.
if not all(find_spec(each) for each in ("aiosqlite", "alembic", "asyncpg", "greenlet", "sqlalchemy")):
    raise MissingExtraError("server", "A store in a database")

from hookline.store._changes import raise_revision as raise_revision
from hookline.store._changes import read_revision as read_revision
from hookline.store._changes import write_audit as write_audit
from hookline.store._circuit_breaker import Breaker
from hookline.store._conversation import ConversationHead as ConversationHead
from hookline.store._conversation import EventPart as EventPart
from hookline.store._conversation import StoredMessage as StoredMessage
from hookline.store._database import StoreVersionError
from hookline.store._database import after_commit as after_commit
from hookline.store._database import insert_into as insert_into
from hookline.store._database import limit_waiting as limit_waiting
from hookline.store._database import parse_address as parse_address
from hookline.store._database import read_clock as read_clock
from hookline.store._dead_letters import DeadLetter as DeadLetter
from hookline.store._dead_letters import add_dead_letter as add_dead_letter
from hookline.store._dead_letters import read_dead_letters as read_dead_letters
from hookline.store._dead_letters import replay_dead_letters as replay_dead_letters
from hookline.store._decisions import DecisionFilter as DecisionFilter
from hookline.store._decisions import DecisionRecord as DecisionRecord
from hookline.store._decisions import StoredDecision
from hookline.store._decisions import decision_cursor as decision_cursor
from hookline.store._decisions import make_seen_token as make_seen_token
from hookline.store._deliveries import build_delivery_rows as build_delivery_rows
from hookline.store._deliveries import insert_deliveries as insert_deliveries
from hookline.store._deliveries import settle_deliveries as settle_deliveries
from hookline.store._delivery_claims import LONGEST_LEASE as LONGEST_LEASE
from hookline.store._delivery_claims import ClaimedDelivery as ClaimedDelivery
from hookline.store._delivery_claims import DeliveryOutcome as DeliveryOutcome
from hookline.store._delivery_claims import DeliveryRun as DeliveryRun
from hookline.store._delivery_claims import claim_deliveries as claim_deliveries
from hookline.store._delivery_claims import correct_due_times as correct_due_times
from hookline.store._delivery_claims import extend_claims as extend_claims
from hookline.store._delivery_claims import has_due_deliveries as has_due_deliveries
from hookline.store._delivery_claims import read_next_due as read_next_due
from hookline.store._delivery_claims import release_claims as release_claims
from hookline.store._delivery_claims import release_uncertain_claims as release_uncertain_claims
from hookline.store._delivery_log import DeliveryFilter, DeliveryLog, StoredAttempt, StoredDelivery, StoredEndpoint
from hookline.store._delivery_log import DeliveryStatus as DeliveryStatus
from hookline.store._engine import StoreEngine as StoreEngine
from hookline.store._engine import WorkWatch as WorkWatch
from hookline.store._event_log import EventLog
from hookline.store._inspection import StoreInspection as StoreInspection
from hookline.store._inspection import StoreProcess as StoreProcess
from hookline.store._inspection import holds_store as holds_store
from hookline.store._inspection import inspect_store as inspect_store
from hookline.store._inspection import read_revision_and_processes as read_revision_and_processes
from hookline.store._lease import generate_worker_id as generate_worker_id
from hookline.store._migrate import downgrade_store
from hookline.store._operation_search import LONGEST_SEARCH as LONGEST_SEARCH
from hookline.store._operation_search import OperationFilter as OperationFilter
from hookline.store._operation_search import OperationPage, OperationSort
from hookline.store._operation_search import read_known_names as read_known_names
from hookline.store._operation_totals import OperationSummary as OperationSummary
from hookline.store._operation_totals import OperationTotals as OperationTotals
from hookline.store._operation_totals import summarize_operations as summarize_operations
from hookline.store._partitions import DAY as DAY
from hookline.store._partitions import KEPT as KEPT
from hookline.store._partitions import day_of as day_of
from hookline.store._partitions import drop_days as drop_days
from hookline.store._past_conversations import PastConversation as PastConversation
from hookline.store._past_conversations import PastModelCall as PastModelCall
from hookline.store._past_conversations import read_past_conversations as read_past_conversations
from hookline.store._past_events import PastEvent as PastEvent
from hookline.store._past_events import PastEvents as PastEvents
from hookline.store._past_events import PastOperation as PastOperation
from hookline.store._past_events import read_past_events as read_past_events
from hookline.store._reading import LIVE as LIVE
from hookline.store._reading import Page, StoredOperation
from hookline.store._reading import check_limit as check_limit
from hookline.store._reading import cursor_after as cursor_after
from hookline.store._reading import encode_cursor as encode_cursor
from hookline.store._reading import operation_from_row as operation_from_row
from hookline.store._reading import parse_cursor as parse_cursor
from hookline.store._recent_events import OperationLineage as OperationLineage
from hookline.store._recent_events import RecentEvent as RecentEvent
from hookline.store._recent_events import read_event as read_event
from hookline.store._recent_events import read_events_after as read_events_after
from hookline.store._recent_events import read_lineages as read_lineages
from hookline.store._recent_events import read_operation_sums as read_operation_sums
from hookline.store._recent_events import read_recent_events as read_recent_events
from hookline.store._recent_events import read_recent_operations as read_recent_operations
from hookline.store._relay_lease import RelayStatus as RelayStatus
from hookline.store._relay_lease import claim_relay as claim_relay
from hookline.store._relay_lease import note_relay as note_relay
from hookline.store._relay_lease import note_stream as note_stream
from hookline.store._relay_lease import read_losses as read_losses
from hookline.store._relay_lease import read_relay_status as read_relay_status
from hookline.store._relay_lease import release_relay as release_relay
from hookline.store._relay_queue import QueuedCommit as QueuedCommit
from hookline.store._relay_queue import confirm_told as confirm_told
from hookline.store._relay_queue import read_queue as read_queue
from hookline.store._relay_queue import replay_events as replay_events
from hookline.store._rows import is_storable as is_storable
from hookline.store._rows import parse_tags as parse_tags
from hookline.store._rows import replace_unstorable as replace_unstorable
from hookline.store._state_rows import decode_head as decode_head
from hookline.store._state_rows import head_columns as head_columns
from hookline.store._store import SqlStore
from hookline.store._tables import api_keys as api_keys
from hookline.store._tables import audit as audit
from hookline.store._tables import decisions as decisions
from hookline.store._tables import definition_fences as definition_fences
from hookline.store._tables import definition_revisions as definition_revisions
from hookline.store._tables import definitions as definitions
from hookline.store._tables import deliveries as deliveries
from hookline.store._tables import ended_sessions as ended_sessions
from hookline.store._tables import endpoint_secrets as endpoint_secrets
from hookline.store._tables import endpoints as endpoints
from hookline.store._tables import events as events
from hookline.store._tables import execution_hooks as execution_hooks
from hookline.store._tables import executions as executions
from hookline.store._tables import grouped_statistics as grouped_statistics
from hookline.store._tables import idempotency as idempotency
from hookline.store._tables import master_keys as master_keys
from hookline.store._tables import operations as operations
from hookline.store._tables import policy_alerts as policy_alerts
from hookline.store._tables import registry_members as registry_members
from hookline.store._tables import statistics as statistics
from hookline.store._topics import DEFINITIONS as DEFINITIONS
from hookline.store._topics import DELIVERIES as DELIVERIES
from hookline.store._topics import FENCES as FENCES
from hookline.store._topics import INTERRUPTS as INTERRUPTS
from hookline.store._topics import OPERATIONS as OPERATIONS
from hookline.store._topics import RELAY as RELAY
from hookline.store._topics import RELAY_LEASE as RELAY_LEASE
from hookline.store._topics import WORK as WORK
from hookline.store._topics import events_topic as events_topic
from hookline.store._worker import Worker

__all__ = [
    "Breaker",
    "DeliveryFilter",
    "DeliveryLog",
    "EventLog",
    "OperationPage",
    "OperationSort",
    "Page",
    "SqlStore",
    "StoreVersionError",
    "StoredAttempt",
    "StoredDecision",
    "StoredDelivery",
    "StoredEndpoint",
    "StoredOperation",
    "Worker",
    "downgrade_store",
]
