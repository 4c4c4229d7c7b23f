"""What can be wrong with mocks."""

from __future__ import annotations

from hookline.errors import HooklineError, HookUsageError

__all__ = ["AnswerError", "NeverMatchingRuleWarning", "checked_name"]


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


def checked_name(name: object) -> str:
    """The name of a rule or of a fault, which stands in the provenance of every call that it is for.

    Raises:
        HookUsageError: If it is no text.
    """
    if not isinstance(name, str):
        raise HookUsageError(f"The name of a rule or of a fault is text; got {name!r:.100}.")
    return name
