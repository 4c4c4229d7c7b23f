"""Wake-ups, on both databases."""

from tests.databases import *  # noqa: F403
