"""What a server was given in confidence is in no error, result or log, however it writes it and wherever it is cut."""

from __future__ import annotations

import logging

import pytest

from adapters.mcp_servers import raw
from tests.tables import for_each

pytestmark = pytest.mark.anyio

LONG = "abcdefghij" * 150
"""A key of which a part is left wherever a text of a few thousand characters is cut."""


@pytest.mark.parametrize("mode", ["repeats", "shouts"])
async def test_no_part_of_a_long_key_is_told_where_an_output_is_cut(mode: str) -> None:
    async with raw(env={"RAW_KEY": LONG}, stop_timeout=0.05).open() as (act, _):
        result = await act.run({"mode": mode})

    assert "[redacted]" in result.content
    assert "abcdefghij" not in result.content


@for_each("key", ["one-line-of-it\nanother-line-of-it\n", 'with"quotes\\in-it', "with-ümlauts"])
async def test_a_key_that_is_written_as_json_is_found(key: str) -> None:
    async with raw(env={"RAW_KEY": key}).open() as (act, _):
        result = await act.run({"mode": "quotes"})

    assert result.content == '"[redacted]"'


async def test_a_key_in_a_notification_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async with raw(env={"RAW_KEY": "a-key-of-ours"}).open() as (act, _):
        await act.run({"mode": "notifies"})

    assert "Failed to validate notification" in caplog.text
    assert "a-key-of-ours" not in caplog.text
