"""What a hook did to a call. The whole tree stands in `hookline.errors`."""

from __future__ import annotations

from hookline._error_root import HooklineError

__all__ = ["HookDenied", "HookError", "HookExecutionError", "HookReturnError", "HookTimeoutError"]


class HookError(HooklineError):
    """A hook stood in the way of a call."""


class HookDenied(HookError):
    """A hook refused the call. Not a failure: `__cause__` is set only where the hook failed, and fails closed.

    Attributes:
        hook_id: The hook that refused.
        reason: Why, in its words.
    """

    def __init__(self, hook_id: str, reason: str) -> None:
        super().__init__(hook_id, reason)
        self.hook_id, self.reason = hook_id, reason

    def __str__(self) -> str:
        return f"Hook {self.hook_id!r} denied the call: {self.reason}"


class HookExecutionError(HookError):
    """A hook that fails closed failed, so the call was denied; `__cause__` is what it raised.

    Attributes:
        hook_id: The hook.
        point: The call that it was asked about (`"ToolCall"`).
        kind: How it stood there: `"before"`, `"guard"`, `"after"` or `"around"`.
        problem: What went wrong.
    """

    def __init__(self, hook_id: str, point: str, kind: str, problem: str) -> None:
        super().__init__(hook_id, point, kind, problem)
        self.hook_id, self.point, self.kind, self.problem = hook_id, point, kind, problem

    def __str__(self) -> str:
        return (
            f"Hook {self.hook_id!r} ({self.kind} {self.point}) failed, and it fails closed, so the call was denied: "
            f"{self.problem}. Mend the hook, or register it with on_error='open'."
        )


class HookTimeoutError(HookError, TimeoutError):
    """An interceptor took more time of its own than it had.

    Attributes:
        hook_id: The hook.
        point: The call that it was asked about (`"ToolCall"`).
        timeout: Seconds that it had.
        of_chain: Whether that is what all hooks of the chain had together, its budget.
    """

    def __init__(self, hook_id: str, point: str, timeout: float, of_chain: bool = False) -> None:
        super().__init__(hook_id, point, timeout, of_chain)
        self.hook_id, self.point, self.timeout, self.of_chain = hook_id, point, timeout, of_chain

    def __str__(self) -> str:
        if self.of_chain:
            return (
                f"Hook {self.hook_id!r} on {self.point}: the {self.timeout:g} s are used up that all hooks of the "
                "chain have together; give the chain a larger `budget`"
            )
        return (
            f"Hook {self.hook_id!r} on {self.point} took more than the {self.timeout:g} s of its own time that it had; "
            "give it a longer `timeout`"
        )


class HookReturnError(HookError, TypeError):
    """An interceptor returned something that its kind may not return.

    Attributes:
        hook_id: The hook.
        point: The call that it was asked about (`"ToolCall"`).
        problem: What it returned, and what it may return.
    """

    def __init__(self, hook_id: str, point: str, problem: str) -> None:
        super().__init__(hook_id, point, problem)
        self.hook_id, self.point, self.problem = hook_id, point, problem

    def __str__(self) -> str:
        return f"Hook {self.hook_id!r} on {self.point} {self.problem}"
