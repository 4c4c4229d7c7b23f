"""What the tests of coding agents share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.databases import sqlite_tables

__all__ = ["anyio_backend", "folder", "sqlite_tables"]


@pytest.fixture
def anyio_backend() -> str:
    """The resident process runs on asyncio."""
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path, sqlite_tables: Path) -> Path:
    """A folder with a store that has its tables, which take longer to make than anything that a test does with them."""
    shutil.copyfile(sqlite_tables, tmp_path / "hookline.db")
    return tmp_path
