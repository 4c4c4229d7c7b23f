"""The fixture `model_tape`: the model of a test is asked once, and its tape answers from then on."""

from __future__ import annotations

import pytest

from .conftest import Project

TEST = """
from pathlib import Path

from hookline import Agent, ModelResponse, ScriptedModel, exec_agent

ASKED = Path(__file__).with_name("asked.txt")


def answer(call):
    with ASKED.open("a") as asked:
        asked.write(call.messages[-1].content + "\\n")
    return ModelResponse(content="4 EUR")


async def test_price(model_tape):
    agent = Agent(id="clerk", model=ScriptedModel(answer, name="m"))
    result = await exec_agent(agent, "PROMPT", hooks=[model_tape.hooks])
    assert result.output in ("4 EUR", "")
"""


@pytest.fixture
def backend(project: Project) -> Project:
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    return project


def test_the_model_is_asked_in_the_first_run_only(backend: Project) -> None:
    backend.test(TEST.replace("PROMPT", "Tea?"))

    backend.run().assert_outcomes(passed=1)
    backend.run().assert_outcomes(passed=1)
    backend.run("--hookline-record=none").assert_outcomes(passed=1)

    assert (backend.path / "asked.txt").read_text().split() == ["Tea?"]
    assert (backend.path / "cassettes/test_agent/test_price.tape.yaml").exists()


def test_a_test_with_a_question_that_was_not_recorded_fails(backend: Project) -> None:
    backend.test(TEST.replace("PROMPT", "Tea?"))
    backend.run()
    backend.test(TEST.replace("PROMPT", "Juice?"))

    result = backend.run()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*1 question of this test had no recording, and no model was asked:*"])
