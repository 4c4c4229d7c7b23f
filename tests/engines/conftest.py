"""Engines, on both databases and over a real NATS server; the processes of their contract are forked."""

import sys

import pytest

from tests.databases import *  # noqa: F403
from tests.forks import forking_python
from tests.nats_servers import *  # noqa: F403


@pytest.fixture
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the contract are forks of one that has imported the engines."""
    monkeypatch.setattr(sys, "executable", forking_python("engines"))
