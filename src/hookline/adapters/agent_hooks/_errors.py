"""Errors of policies whose decisions hookline cannot apply."""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["PolicyTransformError"]


class PolicyTransformError(HooklineError, ValueError):
    """A policy changed something to a value that hookline cannot use, so the call was denied.

    Attributes:
        point: The interception point.
        problem: Why the value cannot be used.
    """

    def __init__(self, point: str, problem: str) -> None:
        super().__init__(point, problem)
        self.point, self.problem = point, problem

    def __str__(self) -> str:
        return (
            f"A policy's transform at {self.point} cannot be used: {self.problem}. The call was denied, because it "
            "must not continue without the change. Make the policy write a value of the same shape, or deny."
        )
