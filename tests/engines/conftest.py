"""Engines, on both databases and over a real NATS server; the processes of their contract are forked."""

from collections.abc import Iterator

import pytest

from tests.databases import *  # noqa: F403
from tests.forks import fork_python
from tests.nats_servers import *  # noqa: F403


@pytest.fixture
def forked_processes() -> Iterator[None]:
    """Processes of the contract are forks of one that has imported what they need."""
    with fork_python("hookline"):
        yield
