"""What is raised where a policy and hookline cannot come together."""

from __future__ import annotations

from hookline.errors import HooklineError, define_error

__all__ = ["PolicyTransformError"]


@define_error(
    "A policy's transform at {point} cannot be used: {problem}. Nothing goes on with what the policies wanted "
    "changed; let the policy write a value of the same shape, or deny."
)
class PolicyTransformError(HooklineError, ValueError):
    """A policy changed something into a value that hookline cannot use, so the call was denied.

    Attributes:
        point: The interception point.
        problem: What is wrong with the value.
    """

    point: str
    problem: str
