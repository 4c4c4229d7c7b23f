"""Whoever follows a registry change by change knows what somebody who reads all of it anew knows."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.registry import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionNotFoundError,
    HookDefinition,
    QuotaError,
    Registry,
)
from hookline.store import SqlStore

from .scenes import definition, ids

TENANTS = ("", "acme", "other")
REFUSED = (DefinitionConflictError, DefinitionNotFoundError, DefinitionError, QuotaError)

changes = st.tuples(
    st.sampled_from(["create", "update", "toggle", "delete", "apply", "follow"]),
    st.sampled_from(TENANTS),
    st.integers(0, 3),
    st.booleans(),
)


async def change(registry: Registry, what: str, tenant: str, number: int, flag: bool) -> None:
    """Do something that may be refused."""
    with contextlib.suppress(*REFUSED):
        match what:
            case "create":
                await registry.create(definition(id=f"h{number}", name=f"n{number}", handler="log", tenant_id=tenant))
            case "update":
                await registry.update(f"h{number}", {"priority": 7 if flag else 8}, tenant_id=tenant or None)
            case "toggle":
                await registry.set_enabled(f"h{number}", flag, tenant_id=tenant or None)
            case "delete":
                await registry.delete(f"h{number}", tenant_id=tenant or None)
            case "apply":
                batch = [definition(name=f"n{each}", handler="log", enabled=flag) for each in range(number)]
                await registry.apply(batch, tenant_id=tenant, prune=flag)


async def seen(registry: Registry) -> tuple[list[HookDefinition], list[list[str]]]:
    return (await registry.list(limit=1000)).items, [ids(registry.hooks(tenant)) for tenant in TENANTS]


@settings(max_examples=25, deadline=None)
@given(st.lists(changes, max_size=25))
def test_following_every_change_gives_what_reading_anew_gives(history: list[tuple[str, str, int, bool]]) -> None:
    async def run() -> None:
        async with (
            SqlStore("sqlite:///:memory:") as store,
            Registry(store, quota=3, refresh_seconds=3600) as changing,
            Registry(store, refresh_seconds=3600) as following,
        ):
            for what, *rest in history:
                await (following.refresh() if what == "follow" else change(changing, what, *rest))
            await following.refresh()
            async with Registry(store) as fresh:
                assert await seen(changing) == await seen(following) == await seen(fresh)
                for tenant in TENANTS[1:]:
                    assert len([each for each in (await fresh.list(tenant)).items if each.tenant_id]) <= 3

    asyncio.run(run())
