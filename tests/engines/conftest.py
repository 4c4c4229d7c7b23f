"""Engines, on both databases and over a real NATS server; the processes of their contract are forked."""

import sys
from collections.abc import Iterator

import pytest

from tests.databases import *  # noqa: F403
from tests.engines.planted import import_engines
from tests.forked_python import fork_python
from tests.nats_servers import *  # noqa: F403


@pytest.fixture(scope="session")
def forking_python() -> Iterator[str]:
    with fork_python(import_engines) as python:
        yield python


@pytest.fixture
def forked_processes(forking_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the contract are forks of one that has imported the engines."""
    monkeypatch.setattr(sys, "executable", forking_python)
