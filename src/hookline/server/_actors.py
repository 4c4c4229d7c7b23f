"""Describe for people who made a change: an API key by its name, or a person on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from hookline.server._callers import Caller
from hookline.server._parts import ServerParts
from hookline.store import api_keys

__all__ = ["describe_actors"]


async def describe_actors(parts: ServerParts, caller: Caller, actors: Iterable[str]) -> dict[str, str]:
    """Describe actors of the audit log and of revisions, to be read after the word *by*.

    The name of a key of another tenant is shown only to callers who see all tenants.

    Args:
        parts: The parts of the server.
        caller: Who reads it.
        actors: The actors: `"key:<id>"`, `"cli:<name>"`, or others.

    Returns:
        The descriptions by actor.
    """
    wanted = set(actors)
    ids = {each.removeprefix("key:") for each in wanted if each.startswith("key:")}
    query = select(api_keys.c.id, api_keys.c.name).where(api_keys.c.id.in_(ids))
    if not caller.sees_all:
        query = query.where(api_keys.c.tenant_id == caller.tenant_id)
    names: dict[str, str] = {}
    if ids:
        async with parts.store.reading() as connection:
            names = {row[0]: row[1] for row in await connection.execute(query)}
    return {each: _describe(each, names, caller) for each in wanted}


def _describe(actor: str, names: dict[str, str], caller: Caller) -> str:
    kind, _, name = actor.partition(":")
    if kind == "key":
        known = f"{names[name]} (API key {name})" if names.get(name) else f"API key {name}"
        return f"you, {known}" if actor == caller.actor else known
    if kind == "cli":
        return f"{name or 'somebody'} on the command line"
    return actor or "somebody who was not named"
