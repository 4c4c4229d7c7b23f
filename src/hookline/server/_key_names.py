"""Find the names of the API keys that have made changes."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store import api_keys

__all__ = ["find_key_names"]


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
