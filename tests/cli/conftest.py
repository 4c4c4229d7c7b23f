"""Worker processes of `hookline eval` are forked from one that has imported what they need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forks import fork_python


@pytest.fixture
def forked_workers() -> Iterator[None]:
    with fork_python("models"):
        yield
