"""A real NATS server; a bus runs on asyncio alone."""

import pytest

from tests.nats_servers import *  # noqa: F403


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
