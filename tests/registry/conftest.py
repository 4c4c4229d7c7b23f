"""A registry runs on asyncio alone, and its tests on both databases."""

from __future__ import annotations

import pytest

from tests.databases import database_url, dialect, new_database_url, postgresql, postgresql_url

__all__ = ["database_url", "dialect", "new_database_url", "postgresql", "postgresql_url"]


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param
