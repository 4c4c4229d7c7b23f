"""Engines, on both databases and over a real NATS server."""

from tests.databases import *  # noqa: F403
from tests.nats_servers import *  # noqa: F403
