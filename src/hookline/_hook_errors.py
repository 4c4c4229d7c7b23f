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
    """An interceptor was still running when its time had passed.

    Attributes:
        hook_id: The hook.
        point: The call that it was asked about (`"ToolCall"`).
        timeout: Seconds that it had, or the chain's budget where that ended first.
    """

    def __init__(self, hook_id: str, point: str, timeout: float) -> None:
        super().__init__(hook_id, point, timeout)
        self.hook_id, self.point, self.timeout = hook_id, point, timeout

    def __str__(self) -> str:
        return (
            f"Hook {self.hook_id!r} on {self.point} took more than the {self.timeout:g} s of its own time that it had; "
            "give it a longer `timeout`, or the chain a larger `budget`"
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
