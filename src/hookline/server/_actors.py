"""Describe in words who made a change: an API key by its name, or a person on the command line."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.server._callers import Caller
from hookline.server._parts import ServerParts
from hookline.store import api_keys

__all__ = ["describe_actor", "describe_actors", "find_key_names"]


def describe_actor(actor: str, name: str = "") -> str:
    """Describe who made a change, to be read after the word *by*.

    Args:
        actor: The actor: `"key:<id>"`, `"cli:<name>"`, `"address:<address>"`, or another.
        name: The name of the API key; `""` if it is not known.
    """
    kind, _, its = actor.partition(":")
    if not actor:
        return "somebody who was not named"
    if kind == "key":
        return f"{name} (API key {its})" if name else f"API key {its}"
    if kind == "cli":
        return f"{its or 'somebody'} on the command line"
    if kind == "address":
        return f"somebody at {its}" if its else "somebody"
    return actor


async def describe_actors(parts: ServerParts, caller: Caller, actors: Collection[str]) -> dict[str, str]:
    """Describe those who made changes, to be read after the word *by*; the caller is described as *you*.

    The name of a key of another tenant is shown only to callers who see all tenants.

    Args:
        parts: The parts of the server.
        caller: Who reads it.
        actors: The actors of the audit log, of revisions or of operations.

    Returns:
        The descriptions by actor.
    """
    names: dict[str, str] = {}
    if any(each.startswith("key:") for each in actors):
        tenant_id = None if caller.sees_all else caller.tenant_id
        names = await parts.store.read(partial(find_key_names, actors=actors, tenant_id=tenant_id))
    return {
        each: f"{'you, ' if each == caller.actor else ''}{describe_actor(each, names.get(each, ''))}"
        for each in set(actors)
    }


async def find_key_names(connection: AsyncConnection, actors: Collection[str], tenant_id: str | None) -> dict[str, str]:
    """Find the names of API keys by their name as actors (`"key:<id>"`).

    Args:
        connection: A connection to the store.
        actors: Actors, among them API keys.
        tenant_id: Only keys of this tenant; `None` for all tenants.
    """
    ids = {actor.removeprefix("key:") for actor in actors if actor.startswith("key:")}
    if not ids:
        return {}
    query = select(api_keys.c.id, api_keys.c.name).where(api_keys.c.id.in_(ids))
    if tenant_id is not None:
        query = query.where(api_keys.c.tenant_id == tenant_id)
    return {f"key:{row[0]}": row[1] for row in await connection.execute(query)}
