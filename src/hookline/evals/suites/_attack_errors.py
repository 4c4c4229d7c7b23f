"""What a person can say wrong about attacks."""

from __future__ import annotations

from collections.abc import Sequence

from hookline.errors import HooklineError

__all__ = ["UnknownAttackChoiceError"]


class UnknownAttackChoiceError(HooklineError, LookupError):
    """There is no such policy or wording of an attack.

    Attributes:
        choice: What was to be chosen: `"policy"` or `"wording"`.
        given: What was asked for.
        known: What there is.
    """

    def __init__(self, choice: str, given: str, known: Sequence[str]) -> None:
        super().__init__(choice, given, known)
        self.choice, self.given, self.known = choice, given, known

    def __str__(self) -> str:
        return f"{self.given!r} is no {self.choice} of an attack; there are: {', '.join(map(repr, self.known))}."
