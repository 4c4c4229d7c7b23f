"""What asking a recorder for something raises, in one tree.

```
HooklineError
├── UnrecordedOperationError (KeyError)   no such operation was recorded; says which were
├── NotOneOperationError (LookupError)    the only operation was asked for, and there are none or several
├── UnseenEventError (LookupError)        an operation has no such event; says which it has
└── EventWaitError (TimeoutError)         an event did not happen in time; says what did
```
"""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["EventWaitError", "NotOneOperationError", "UnrecordedOperationError", "UnseenEventError"]


class UnrecordedOperationError(HooklineError, KeyError):
    """A recorder has seen nothing of an operation.

    Attributes:
        operation_id: What was asked for.
        known: The operations that it has.
    """

    def __init__(self, operation_id: str, known: list[str]) -> None:
        super().__init__(operation_id, known)
        self.operation_id, self.known = operation_id, known

    def __str__(self) -> str:
        return f"No operation {self.operation_id!r} was recorded. {_recorded(self.known)}"


class NotOneOperationError(HooklineError, LookupError):
    """The only operation was asked for, and there is none, or more than one.

    Attributes:
        known: The operations that were recorded, sub-agents' left out.
    """

    def __init__(self, known: list[str]) -> None:
        super().__init__(known)
        self.known = known

    def __str__(self) -> str:
        if not self.known:
            return f"No operation was recorded. {_recorded(self.known)}"
        return (
            f"{len(self.known)} operations were recorded, not one. {_recorded(self.known)} Ask for one with `of(id)`."
        )


class UnseenEventError(HooklineError, LookupError):
    """An operation has no event of the kind that was asked for.

    Attributes:
        wanted: What was asked for.
        seen: What the operation has, a line per event.
    """

    def __init__(self, wanted: str, seen: list[str]) -> None:
        super().__init__(wanted, seen)
        self.wanted, self.seen = wanted, seen

    def __str__(self) -> str:
        return f"There is no {self.wanted}.{_told(self.seen)}"


class EventWaitError(HooklineError, TimeoutError):
    """An event that was waited for did not happen in time.

    Attributes:
        wanted: What was waited for.
        timeout: For how many seconds.
        count: How many of them were to happen.
        met: How many did.
        seen: What was seen, a line per event.
    """

    def __init__(self, wanted: str, timeout: float, count: int, met: int, seen: list[str]) -> None:
        super().__init__(wanted, timeout, count, met, seen)
        self.wanted, self.timeout, self.count, self.met, self.seen = wanted, timeout, count, met, seen

    def __str__(self) -> str:
        wanted = f"no {self.wanted}" if self.count == 1 else f"only {self.met} of {self.count} {self.wanted}"
        return f"There was {wanted} within {self.timeout:g} s.{_told(self.seen)}"


def _recorded(known: list[str]) -> str:
    if not known:
        return "Give `recorder.hooks` to the run, as hooks=[recorder.hooks]."
    names = ", ".join(map(repr, known[:20]))
    return f"There are: {names}{', …' if len(known) > 20 else ''}."


def _told(seen: list[str]) -> str:
    if not seen:
        return " No event was seen at all: give `recorder.hooks` to the run, as hooks=[recorder.hooks]."
    return "\nSeen:\n" + "\n".join(f"  {line}" for line in seen)
