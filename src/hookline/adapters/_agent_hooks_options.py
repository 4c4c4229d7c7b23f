"""What `PolicyHooks` is given, checked, in the SDK's words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from agent_hooks import (
    JCS_SHA256,
    ApprovalResolver,
    CompositionConfig,
    CompositionProfile,
    EnforcementMode,
    HostDeclaration,
    IdentityProvider,
    InterceptionPoint,
)

from hookline.adapters._agent_hooks_emitting import Bounded, BoundedResolver
from hookline.errors import HookDefinitionError

__all__ = [
    "Approvals",
    "Profile",
    "checked_composition",
    "checked_declaration",
    "checked_identity",
    "checked_interceptor",
    "checked_mode",
    "checked_points",
    "checked_resolver",
    "checked_seconds",
]

Approvals = Literal["ask"] | ApprovalResolver | None
Profile = Literal["sequential/first_deny", "sequential/run_all", "parallel/strictest", "parallel/unanimous"]


def checked_interceptor(where: str, given: Any, timeout: float | None, in_thread: bool) -> tuple[str | None, Bounded]:
    """The name of an interceptor, for records, and what the emitter calls."""
    if not callable(getattr(given, "intercept", None)):
        raise HookDefinitionError(where, f"a policy is an object with a method `intercept(context)`; got {given!r}")
    name = getattr(given, "name", None)
    return name if isinstance(name, str) and name else None, Bounded(given, timeout, in_thread=in_thread)


def checked_resolver(where: str, given: object, timeout: float | None) -> BoundedResolver | None:
    """Who decides about liftable denials at once; `None` for nobody."""
    if given is None or given == "ask":
        return None
    if not callable(getattr(given, "resolve", None)):
        raise HookDefinitionError(
            where, f'`approvals` is "ask", an object with a method `resolve(request)`, or None; got {given!r}'
        )
    return BoundedResolver(given, timeout)


def checked_mode(where: str, given: str) -> EnforcementMode:
    """The mode."""
    try:
        return EnforcementMode(given)
    except ValueError:
        raise HookDefinitionError(where, f'`mode` is "enforce" or "evaluate_only"; got {given!r}') from None


def checked_composition(where: str, given: str | CompositionConfig) -> CompositionConfig:
    """How several interceptors decide together."""
    if isinstance(given, CompositionConfig):
        return given
    try:
        return CompositionConfig.from_wire({"profile": CompositionProfile(given).value})
    except ValueError:
        names = ", ".join(repr(profile.value) for profile in CompositionProfile)
        raise HookDefinitionError(
            where, f"`profile` is one of {names}, or a CompositionConfig; got {given!r}"
        ) from None


def checked_points(where: str, given: Iterable[str] | None) -> frozenset[InterceptionPoint]:
    """The points at which they judge."""
    if given is None:
        return frozenset(InterceptionPoint)
    try:
        points = frozenset(map(InterceptionPoint, [given] if isinstance(given, str) else given))
    except ValueError:
        points = frozenset()
    if not points:
        names = ", ".join(repr(point.value) for point in InterceptionPoint)
        raise HookDefinitionError(where, f"`at` names some of the points {names}; got {given!r}")
    return points


def checked_declaration(document: Mapping[str, Any] | HostDeclaration | os.PathLike[str]) -> HostDeclaration:
    """The document as the SDK reads it."""
    if isinstance(document, HostDeclaration):
        return document
    if isinstance(document, os.PathLike):
        return HostDeclaration.from_path(document)
    return HostDeclaration.from_value(document)


def checked_identity(where: str, given: object) -> str | IdentityProvider | None:
    """The provider of identities."""
    if given is None or given == JCS_SHA256 or isinstance(given, IdentityProvider):
        return given
    raise HookDefinitionError(where, f"`identity` is {JCS_SHA256!r}, an IdentityProvider, or None; got {given!r}")


def checked_seconds(where: str, name: str, given: object) -> None:
    """Refuse what is no time limit."""
    number = isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    if given is not None and not number:
        raise HookDefinitionError(where, f"`{name}` is a number of seconds above 0, or None; got {given!r}")
