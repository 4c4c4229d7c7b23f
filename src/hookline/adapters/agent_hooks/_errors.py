"""What is raised where a policy and hookline cannot come together."""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["PolicyTransformError"]


class PolicyTransformError(HooklineError, ValueError):
    """A policy changed something into a value that hookline cannot use, so the call was denied.

    Attributes:
        point: The interception point.
        problem: What is wrong with the value.
    """

    def __init__(self, point: str, problem: str) -> None:
        super().__init__(point, problem)
        self.point, self.problem = point, problem

    def __str__(self) -> str:
        return (
            f"A policy's transform at {self.point} cannot be used: {self.problem}. Nothing goes on with what the "
            "policies wanted changed; let the policy write a value of the same shape, or deny."
        )
