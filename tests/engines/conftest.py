"""Engines, on both databases."""

from tests.databases import *  # noqa: F403
