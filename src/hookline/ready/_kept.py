"""What a bundle that many runs share keeps for each of them, and when it lets go of it."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from hookline.events import OnComplete
from hookline.hooks import Hooks

__all__ = ["Kept"]

T = TypeVar("T")

MOST = 100_000
"""How much is kept at most. Runs let go when they end; this is for those that wait for a person who never comes, and
for chains outside of a run, where nobody says that an operation has ended."""


class Kept(Generic[T]):
    """Something per operation or per tenant. Beyond `MOST`, what was not used for the longest time is forgotten.

    Args:
        make: Makes the first one.

    Attributes:
        lock: Held by whoever reads and then writes, since a bundle may be shared by event loops in several threads.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.lock = Lock()
        self._make = make
        self._kept: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def of(self, key: str, *, like: str | None = None) -> T:
        """What is kept under a key.

        Args:
            key: An operation or a tenant.
            like: Another key; if that is known and `key` is not yet, both share one.
        """
        if key not in self._kept:
            self._kept[key] = self._kept[like] if like is not None and like in self._kept else self._make()
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def drop_on_complete(self, hooks: Hooks) -> None:
        """Forget an operation when it ends; one that waits for a person goes on later."""

        @hooks.on(OnComplete, id=hooks.id)
        def forget(event: OnComplete) -> None:
            if event.reason != "waiting_for_human":
                with self.lock:
                    self._kept.pop(event.operation_id, None)
