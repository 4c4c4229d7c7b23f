"""Tell the committed events of runs to remote observers, over a bus: `Relay`."""

from hookline.relay._relay import Relay, list_dead_letters, relay_status, replay, retry_dead_letters
from hookline.store import DeadLetter, RelayStatus

__all__ = ["DeadLetter", "Relay", "RelayStatus", "list_dead_letters", "relay_status", "replay", "retry_dead_letters"]
