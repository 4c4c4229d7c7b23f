"""Errors of policies whose decisions hookline cannot apply."""

from __future__ import annotations

from hookline.errors import HooklineError, define_error

__all__ = ["PolicyTransformError"]


@define_error(
    "A policy's transform at {point} cannot be used: {problem}. The call was denied, because it must not continue "
    "without the change. Make the policy write a value of the same shape, or deny."
)
class PolicyTransformError(HooklineError, ValueError):
    """A policy changed something to a value that hookline cannot use, so the call was denied.

    Attributes:
        point: The interception point.
        problem: Why the value cannot be used.
    """

    point: str
    problem: str
