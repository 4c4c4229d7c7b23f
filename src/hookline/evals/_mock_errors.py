"""What can be wrong with mocks."""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["AnswerError", "NeverMatchingRuleWarning"]


class AnswerError(HooklineError):
    """A rule is for a call and has no answer to it; the model is told so, and the real tool does not run.

    Attributes:
        reason: Why it has none.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class NeverMatchingRuleWarning(UserWarning):
    """A rule was made that no call can ever match."""
