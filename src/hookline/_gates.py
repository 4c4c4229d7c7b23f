"""What stands in for the tables of a dispatcher that is not open, and how it refuses what it cannot dispatch."""

from typing import Any

from hookline.errors import HookUsageError
from hookline.events import BeforeToolCall

__all__ = ["LEFT", "NOT_ENTERED", "Closed", "undispatchable"]


class Closed:
    """Stands in for every table of a dispatcher that is not open."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getitem__(self, key: object, default: object = None) -> Any:
        raise HookUsageError(
            f"This HookDispatcher {self.why}. Use it inside of `async with HookDispatcher() as dispatcher`."
        )

    get = pop = __getitem__


NOT_ENTERED = Closed("has not been entered")
LEFT = Closed("has been left")


def undispatchable(event: object) -> HookUsageError:
    """Why something cannot be dispatched."""
    if isinstance(event, BeforeToolCall):
        return HookUsageError(
            "BeforeToolCall may be answered, so it is awaited: use `await dispatcher.dispatch_before_tool_call(event)`."
        )
    return HookUsageError(f"Only the sixteen events of hookline.events can be dispatched; got {event!r}.")
