"""Topics of wake-ups: what changes in a store, and who therefore looks."""

from zlib import crc32

from sqlalchemy.engine import URL

from hookline.store._database import Address
from hookline.wakeups import FileWakeups, PostgresWakeups, Wakeups

__all__ = [
    "DEFINITIONS",
    "DELIVERIES",
    "FENCES",
    "INTERRUPTS",
    "OPERATIONS",
    "RELAY",
    "RELAY_LEASE",
    "WORK",
    "choose_wakeups",
    "events_topic",
]

WORK = "work"
"""A person has decided, an operation was released, or a process has begun its lease or ended it: for workers."""
DELIVERIES = "deliveries"
"""Deliveries were stored, or have become due: for outboxes."""
DEFINITIONS = "definitions"
"""Definitions of hooks were changed: for registries."""
FENCES = "fences"
"""A process has confirmed a fenced change: for whoever waits for it."""
INTERRUPTS = "interrupts"
"""Somebody has asked for the interruption of operations: for the processes that run them."""
OPERATIONS = "operations"
"""Operations were changed: for those who follow all of them."""
RELAY = "relay"
"""Commits were stored that somebody hears in another process: for relays."""
RELAY_LEASE = "relay-lease"
"""The relay that tells the commits has ended its lease: for the other relays."""
SHARDS = 256


def events_topic(operation_id: str) -> str:
    """Return the topic of an operation's events, which it shares with some others: notifications stay small."""
    return f"events.{crc32(operation_id.encode(errors='surrogatepass')) % SHARDS:02x}"


def choose_wakeups(address: Address) -> Wakeups:
    """Return the wake-ups that suit a database."""
    if address.dialect == "postgresql":
        return PostgresWakeups(build_driver_url(address))
    file = address.url.database
    return FileWakeups() if address.in_memory or file is None else FileWakeups(file, f"{file}-wal")


def build_driver_url(address: Address) -> str:
    """Return the URL of a PostgreSQL database as libpq knows it, with its password and all parameters."""
    url: URL = address.url.set(drivername="postgresql")
    options = dict(address.arguments.get("server_settings", {}))
    if "ssl" in address.arguments:
        options["sslmode"] = address.arguments["ssl"]
    return url.update_query_dict(options).render_as_string(hide_password=False)
