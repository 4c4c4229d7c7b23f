"""What is sent to make, change and try out hook definitions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hookline.hooks import OnError
from hookline.registry import READ_ONLY, HookDefinition, Id, Name, Seconds, Tag, Tenant, Text
from hookline.server._problems import ApiError, FieldProblem
from hookline.webhooks import Webhook

__all__ = ["HookChanges", "NewHook", "Switching", "Trial", "WholeHook", "definition_of", "replacing"]

Priority = Annotated[int, Meta(ge=0, le=1000)]
Reference = Annotated[str, Meta(min_length=1, max_length=300)]
Point = Annotated[str, Meta(min_length=1, max_length=40)]
Tags = Annotated[list[Tag], Meta(max_length=30)]


class NewHook(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A definition to be stored. Exactly one of `handler`, `webhook` and `script` says what it does.

    Attributes:
        id: Names it; made up unless given.
        tenant_id: Whose it is; that of the key unless given. `""` is the system.
        name: See `HookDefinition`, as for all that follows.
        point: Where it stands.
        description: What it is for.
        priority: Its place among the interceptors.
        handler: The handler.
        webhook: Where to deliver the event instead.
        script: A script to run instead.
        tool: Glob over `toolset/tool_name`.
        timeout: Seconds that it may take.
        enabled: Whether it takes part in the next run.
        config: Arguments of the handler.
        on_error: What becomes of the call when it fails.
        inherit: Whether it goes along into the operations of sub-agents; `null` for what is usual at its point.
        tags: Words to find it by.
    """

    id: Id | UnsetType = UNSET
    tenant_id: Tenant | UnsetType = UNSET
    name: Name
    point: Point
    description: Text = ""
    priority: Priority = 100
    handler: Reference | None = None
    webhook: Webhook | None = None
    script: Reference | None = None
    tool: Reference | None = None
    timeout: Seconds | None = None
    enabled: bool = True
    config: dict[str, Any] = {}
    on_error: OnError = "closed"
    inherit: bool | None = None
    tags: Tags = []


class WholeHook(NewHook, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A definition as it is to be, which may be as a GET has given it. Fields that are left out get their defaults.

    Attributes:
        id: Its own, if it is given.
        tenant_id: Its own, if it is given.
        source: Set by the server, as all that follows: whatever is given is left aside.
        revision: Of its last change.
        created_at: Seconds since 1970.
        updated_at: Seconds since 1970.
        problem: Why it cannot run.
    """

    source: str | UnsetType = UNSET
    revision: int | UnsetType = UNSET
    created_at: float | UnsetType = UNSET
    updated_at: float | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class HookChanges(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Fields of a definition to be changed; what is left out stays as it is.

    Attributes:
        name: See `HookDefinition`, as for all that follows.
        point: Where it stands.
        description: What it is for.
        priority: Its place among the interceptors.
        handler: The handler; `null` takes it away.
        webhook: Where to deliver the event instead.
        script: A script to run instead.
        tool: Glob over `toolset/tool_name`.
        timeout: Seconds that it may take.
        enabled: Whether it takes part in the next run.
        config: Arguments of the handler.
        on_error: What becomes of the call when it fails.
        inherit: Whether it goes along into the operations of sub-agents; `null` for what is usual at its point.
        tags: Words to find it by.
    """

    name: Name | UnsetType = UNSET
    point: Point | UnsetType = UNSET
    description: Text | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    handler: Reference | UnsetType | None = UNSET
    webhook: Webhook | UnsetType | None = UNSET
    script: Reference | UnsetType | None = UNSET
    tool: Reference | UnsetType | None = UNSET
    timeout: Seconds | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    config: dict[str, Any] | UnsetType = UNSET
    on_error: OnError | UnsetType = UNSET
    inherit: bool | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET


class Switching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a definition is to take part in the next run.

    Attributes:
        enabled: Whether.
    """

    enabled: bool


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to try a definition out on.

    Attributes:
        sample: Fields of the call or the event; others are filled in. `result` has that of the call, for a hook that
            comes after one.
        timeout: Seconds that it may take.
    """

    sample: dict[str, Any] = {}
    timeout: Annotated[float, Meta(gt=0, le=30)] = 5.0


def definition_of(given: NewHook, tenant_id: str) -> HookDefinition:
    """The definition that a body means."""
    fields = {name: getattr(given, name) for name in NewHook.__struct_fields__}
    fields |= {"id": "" if given.id is UNSET else given.id, "tenant_id": tenant_id}
    return HookDefinition(**fields)


def replacing(given: WholeHook, found: HookDefinition) -> dict[str, Any]:
    """The changes after which a definition is as a body has it.

    Args:
        given: The body.
        found: The definition.

    Raises:
        ApiError: 422, if the body has another id or tenant.
    """
    for name, its, meant in (("id", given.id, found.id), ("tenantId", given.tenant_id, found.tenant_id)):
        if its not in (UNSET, meant):
            field = FieldProblem(detail=f"It is {meant!r}.", pointer=f"#/{name}")
            detail = f"`{name}` cannot be changed; leave it out, or send what it is."
            raise ApiError(422, "read_only", detail, errors=(field,))
    fields: dict[str, Any] = msgspec.to_builtins(given)
    return {name: value for name, value in fields.items() if name not in READ_ONLY}
