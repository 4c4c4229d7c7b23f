"""What goes wrong on the way to another process, and in a store."""

from __future__ import annotations

from typing import Literal

from hookline._error_root import HooklineError

__all__ = ["CriticalDeliveryError", "DeliveryCode", "DeliveryError", "StoreOverloadedError", "StoreUnavailableError"]

DeliveryCode = Literal[
    "configuration",
    "blocked",
    "network_error",
    "timeout",
    "http_error",
    "gone",
    "response_too_large",
    "invalid_response",
]


class DeliveryError(HooklineError):
    """An event did not get where it belongs, or a receiver gave no valid answer.

    Attributes:
        hook_id: The hook.
        code: What went wrong, to switch on: `"configuration"` (no key, no such variable), `"blocked"` (an address that
            may not be reached), `"network_error"`, `"timeout"`, `"http_error"` (any status but 2xx), `"gone"` (410),
            `"response_too_large"`, `"invalid_response"`.
        problem: What happened, without secrets.
        status_code: What the receiver answered, if it did.
        retry_after: Seconds that the receiver asks to be left alone.
    """

    def __init__(
        self,
        hook_id: str,
        code: DeliveryCode,
        problem: str,
        *,
        status_code: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(hook_id, code, problem)
        self.hook_id, self.code, self.problem = hook_id, code, problem
        self.status_code, self.retry_after = status_code, retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.hook_id, self.code, self.problem), self.__dict__

    def __str__(self) -> str:
        return f"Hook {self.hook_id!r} could not be delivered ({self.code}): {self.problem}"


class CriticalDeliveryError(DeliveryError):
    """A delivery with `fallback="none"` was not handed over, so that the operation has failed."""


class StoreUnavailableError(HooklineError, OSError):
    """A database that cannot be reached, is locked, or is full.

    Attributes:
        store: Which, without its password.
        problem: What it said.
    """

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(store, problem)
        self.store, self.problem = store, problem

    def __str__(self) -> str:
        return f"The store {self.store} cannot be used now: {self.problem}"


class StoreOverloadedError(StoreUnavailableError):
    """More waits to be written than the store was told to hold, and it was told to refuse rather than to wait."""
