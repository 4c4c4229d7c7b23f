"""The bus within one process refuses what it cannot carry."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hookline.bus import MemoryBus
from hookline.errors import HookUsageError
from tests.tables import for_each

pytestmark = pytest.mark.anyio


@for_each("key", ["", ".", "a.", "a..b", "a b", "a.*", "a.>", "ä", "x" * 201, 7])
async def test_what_is_no_key_is_refused(key: Any) -> None:
    bus = MemoryBus()

    with pytest.raises(HookUsageError, match="A key on the bus"):
        await bus.put(key, b"")
    with pytest.raises(HookUsageError, match="A key on the bus"):
        await bus.get(key)
    with pytest.raises(HookUsageError, match="A key on the bus"):
        await bus.delete(key)
    with pytest.raises(HookUsageError, match="A key on the bus"):
        async with bus.watch(key, lambda key, value: None):
            pass


@for_each("value, seconds", [("text", None), (b"x" * 65_537, None), (b"", 0), (b"", True)])
async def test_what_is_no_value_is_refused(value: Any, seconds: Any) -> None:
    with pytest.raises(HookUsageError):
        await MemoryBus().put("a", value, seconds=seconds)


async def test_a_watcher_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bus, seen = MemoryBus(), []

    def fail(key: str, value: bytes | None) -> None:
        raise ValueError("out of paper")

    with caplog.at_level(logging.ERROR, "hookline"):
        async with bus.watch("a", fail), bus.watch("a", lambda key, value: seen.append(value)):
            await bus.put("a.x", b"1")

    assert seen == [b"1"]
    assert "out of paper" in caplog.text
