"""Refusing arguments that make no sense."""

from __future__ import annotations

from hookline.errors import HookUsageError

__all__ = ["flags", "one_of", "positive", "provider"]


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse a value that is none of a few."""
    if not any(value is each or (value == each and type(value) is type(each)) for each in allowed):
        raise HookUsageError(f"`{name}` is one of {', '.join(map(repr, allowed))}; got {value!r}.")


def positive(name: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no number above 0."""
    fits = isinstance(value, int) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not fits or not value > 0:  # type: ignore[operator]
        raise HookUsageError(f"`{name}` is a {'whole ' if whole else ''}number above 0; got {value!r}.")


def provider(name: str, value: object, method: str) -> None:
    """Refuse what gives no tracers, meters or loggers."""
    if value is not None and not callable(getattr(value, method, None)):
        raise HookUsageError(f"`{name}` is a provider of OpenTelemetry with `{method}`, or None; got {value!r:.200}.")


def flags(**values: object) -> None:
    """Refuse what is neither True nor False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise HookUsageError(f"`{name}` is True or False; got {value!r:.200}.")
