"""Tests in files of definitions ask remote hooks over the bus."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hookline import Deny, Hooks, ToolCall
from hookline.bus import NatsBus
from tests.cli.operated import database, run
from tests.nats_servers import NatsServer

pytestmark = pytest.mark.anyio

FILE = """\
[[hooks]]
name = "Payments"
point = "ToolCall.before"
remote = { name = "payments", deadline = 60.0 }

[[tests]]
name = "A large payment is refused"
call = { tool_name = "pay", args = { amount = 2000 } }
expect = { verdict = "denied", reason = "Nothing above 1000" }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "hooks.toml"
    file.write_text(FILE)
    return file


def policy(limit: int) -> Hooks:
    hooks = Hooks("payments")

    @hooks.guard(ToolCall)
    def judge(call: ToolCall) -> Deny | None:
        return Deny(f"Nothing above {limit}") if call.args["amount"] > limit else None

    return hooks


@pytest.mark.parametrize(("limit", "code"), [(1000, 0), (5000, 1)], ids=["passes", "fails"])
async def test_the_processes_that_serve_the_name_answer_a_check(
    nats_server: NatsServer, nats_prefix: str, file: Path, limit: int, code: int
) -> None:
    bus = ("--bus", nats_server.url, "--bus-prefix", nats_prefix)
    async with NatsBus(nats_server.url, prefix=nats_prefix) as serving, serving.serve(policy(limit)):
        result = await asyncio.to_thread(run, "hooks", "check", str(file), *bus)

    assert result.exit_code == code, result.stdout + result.stderr


async def test_where_nobody_serves_the_name_the_test_fails_and_says_so(
    nats_server: NatsServer, nats_prefix: str, file: Path
) -> None:
    result = await asyncio.to_thread(
        run, "hooks", "check", str(file), HOOKLINE_BUS=nats_server.url, HOOKLINE_BUS_PREFIX=nats_prefix
    )

    assert result.exit_code == 1
    assert "Nobody on the bus answers 'payments'" in " ".join(result.stdout.split())


async def test_a_bus_that_is_away_is_an_error(file: Path) -> None:
    result = await asyncio.to_thread(run, "hooks", "check", str(file), "--bus", "nats://127.0.0.1:9")

    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr
    assert "passed" not in result.stdout


async def test_a_file_is_stored_after_the_processes_have_answered(
    nats_server: NatsServer, nats_prefix: str, file: Path, tmp_path: Path
) -> None:
    async with NatsBus(nats_server.url, prefix=nats_prefix) as serving, serving.serve(policy(1000)):
        result = await asyncio.to_thread(
            run,
            *("hooks", "apply", str(file), "--yes"),
            url=database(tmp_path),
            HOOKLINE_BUS=nats_server.url,
            HOOKLINE_BUS_PREFIX=nats_prefix,
        )

    assert result.exit_code == 0, result.stderr
    assert "1 test passed." in result.stdout
