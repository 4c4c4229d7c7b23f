"""Refusing arguments that make no sense."""

from __future__ import annotations

from hookline.errors import HookUsageError

__all__ = ["one_of", "positive"]


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse a value that is none of a few."""
    if not any(value is each or (value == each and type(value) is type(each)) for each in allowed):
        raise HookUsageError(f"`{name}` is one of {', '.join(map(repr, allowed))}; got {value!r}.")


def positive(name: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no number above 0."""
    fits = isinstance(value, int) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not fits or not value > 0:  # type: ignore[operator]
        raise HookUsageError(f"`{name}` is a {'whole ' if whole else ''}number above 0; got {value!r}.")
