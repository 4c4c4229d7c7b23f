"""Operations that outlive their processes, on both databases."""

from tests.databases import *  # noqa: F403
