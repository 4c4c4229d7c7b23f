"""Where the stored files are, and how what is written today is compared with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

FILES = Path(__file__).with_name("by_8ffe382")


def read_json(name: str) -> Any:
    """Return what a stored JSON file holds."""
    return msgspec.json.decode((FILES / name).read_bytes())


def added_paths(stored: Any, now: Any, path: str = "$") -> set[str]:
    """Return the paths of keys that are in `now` alone; indices of lists are left out of them.

    Raises:
        AssertionError: If anything that was stored is not in `now` as it was.
    """
    if isinstance(stored, dict) and isinstance(now, dict):
        assert set(stored) <= set(now), f"{path} has lost {sorted(set(stored) - set(now))}"
        added = {f"{path}.{key}" for key in set(now) - set(stored)}
        return added.union(*(added_paths(stored[key], now[key], f"{path}.{key}") for key in stored))
    if isinstance(stored, list) and isinstance(now, list):
        assert len(stored) == len(now), f"{path} had {len(stored)} items, and has {len(now)}"
        return set[str]().union(*(added_paths(a, b, f"{path}[]") for a, b in zip(stored, now, strict=True)))
    assert (stored, type(stored)) == (now, type(now)), f"{path} was {stored!r}, and is {now!r}"
    return set()


def without_times(value: Any) -> Any:
    """Return a JSON value without the values of its clock: nanoseconds, durations and ISO timestamps."""
    if isinstance(value, dict):
        timed = re.compile(r"(UnixNano|Ms|_seconds|createdAt|updatedAt|timestamp)$")
        return {key: None if timed.search(key) else without_times(item) for key, item in value.items()}
    return [without_times(item) for item in value] if isinstance(value, list) else value
