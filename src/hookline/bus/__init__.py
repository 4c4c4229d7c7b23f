"""Carry questions, committed events, small values and wake-ups between processes: `NatsBus`, and `MemoryBus` for tests.

`remote` and `serve` are for hooks that run in another process.

`NatsBus` needs the extra `nats`. Nothing is only in a bus: what was committed is in the database.
"""

from hookline.bus._bus import Bus
from hookline.bus._decision_figures import DecisionFigures as DecisionFigures
from hookline.bus._decision_figures import decision_figures as decision_figures
from hookline.bus._durations import BUCKETS as BUCKETS
from hookline.bus._durations import DurationHistogram as DurationHistogram
from hookline.bus._hearing import is_for as is_for
from hookline.bus._memory import MemoryBus
from hookline.bus._messages import NAME as NAME
from hookline.bus._messages import (
    Answerer,
    BusAnswerError,
    BusUnavailableError,
    CommittedEvents,
    CommitTooLargeError,
    EventFilter,
    Hearer,
    NobodyServesError,
    Watcher,
)
from hookline.bus._nats import NatsBus
from hookline.bus._remote import REVISIONS, remote, serve
from hookline.bus._remote import ask_about as ask_about
from hookline.bus._remote_observers import DEAD_LETTERS as DEAD_LETTERS
from hookline.bus._remote_observers import FailedEvent as FailedEvent
from hookline.bus._remote_observers import heard_event_id
from hookline.bus._signing import SECRET_VARIABLE as SECRET_VARIABLE
from hookline.bus._signing import UnsignedAnswerError as UnsignedAnswerError
from hookline.bus._signing import check_secret as check_secret

__all__ = [
    "REVISIONS",
    "Answerer",
    "Bus",
    "BusAnswerError",
    "BusUnavailableError",
    "CommitTooLargeError",
    "CommittedEvents",
    "EventFilter",
    "Hearer",
    "MemoryBus",
    "NatsBus",
    "NobodyServesError",
    "Watcher",
    "heard_event_id",
    "remote",
    "serve",
]
