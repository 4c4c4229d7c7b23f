"""Cassettes that an earlier version has recorded answer the same calls, and are written as they were."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookline import OperationResult, exec_agent
from hookline.evals import Cassette

from . import bank
from .files import FILES

pytestmark = pytest.mark.anyio

CASSETTES = FILES / "cassettes"
MATCHING = ["keyed", "sequential"]


async def run(cassette: Cassette, *, real: bool) -> OperationResult:
    agent = bank.recorded_agent(real=real)
    return await exec_agent(agent, "Read.", hooks=[cassette.hooks()], operation_id="op_tape")


@pytest.mark.parametrize("name", MATCHING)
async def test_a_stored_cassette_answers_every_call_of_a_run(name: str) -> None:
    cassette = Cassette.load(CASSETTES / f"{name}.yaml", mode="none")

    result = await run(cassette, real=False)

    assert (result.reason, result.output) == ("done", "done")
    assert cassette.misses == []
    assert cassette.unused() == []
    told = {message.tool_call_id: message.content for message in result.messages if message.role == "tool"}
    assert told["t1"] == "welcome ann, your key is [redacted]"
    assert [told[key] for key in ("t2", "t3", "t4")] == [
        bank.LETTER + "1 (1)",
        bank.LETTER + "1 (2)",
        bank.LETTER + "2 (3)",
    ]
    assert '{"in":' in told["t5"]
    assert told["t6"].endswith("the line is down")
    assert told["t7"] == "refused: a: b"
    assert told["t8"] == "read"


@pytest.mark.parametrize("name", MATCHING)
async def test_the_same_run_is_recorded_as_the_same_bytes_but_for_the_tools(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    with Cassette(name, path=path, mode="rewrite", matching=name) as cassette:  # type: ignore[arg-type]
        await run(cassette, real=True)

    head, tools, calls = re.fullmatch(r"(.*?)(tools:\n.*?)(calls:\n.*)", path.read_text(), re.DOTALL).groups()  # type: ignore[union-attr]
    assert head + calls == (CASSETTES / f"{name}.yaml").read_text()
    assert "tool: local/login\n" in tools


def test_recordings_have_the_values_that_were_recorded() -> None:
    cassette = Cassette.load(CASSETTES / "keyed.yaml")
    by_tool = {recording.tool: recording for recording in cassette.recordings if not recording.agent}

    assert (cassette.name, cassette.matching, len(cassette)) == ("keyed", "keyed", 8)
    assert by_tool["local/login"].args == {"user": "ann", "password": "[redacted]"}
    assert by_tool["local/login"].metadata == {"session": [1, None]}
    assert by_tool["local/odd"].args == {
        "values": [None, True, 1, 2.5, "yes", "1", "", {"a b": {}, "ü": bank.DEEP}],
        "text": bank.LETTER,
    }
    assert (by_tool["local/broken"].raised, by_tool["local/broken"].success) == ("ConnectionError", False)
    assert (by_tool["local/refused"].raised, by_tool["local/refused"].success) == (None, False)
    assert [recording.agent for recording in cassette.recordings if recording.agent] == ["clerk"]
    assert Cassette.load(CASSETTES / "sequential.yaml").matching == "sequential"


def test_no_secret_is_in_a_stored_cassette() -> None:
    assert all(bank.SECRET not in path.read_text() for path in CASSETTES.iterdir())


async def test_a_keyed_cassette_does_not_answer_other_arguments() -> None:
    cassette = Cassette.load(CASSETTES / "keyed.yaml", mode="none")
    script = [bank.turn("", bank.request("letter", "x1", number=3)), bank.turn("done")]
    agent = bank.recorded_agent(real=False, script=script)

    await exec_agent(agent, "Read.", hooks=[cassette.hooks()])

    assert len(cassette.misses) == 1
    assert "local/letter" in cassette.misses[0]


async def test_a_sequential_cassette_answers_whatever_the_arguments() -> None:
    cassette = Cassette.load(CASSETTES / "sequential.yaml", mode="none")
    script = [bank.turn("", bank.request("letter", "x1", number=3)), bank.turn("done")]

    result = await exec_agent(bank.recorded_agent(real=False, script=script), "Read.", hooks=[cassette.hooks()])

    assert [message.content for message in result.messages if message.role == "tool"] == [bank.LETTER + "1 (1)"]
