"""A run says when, with what and by which call it was made."""

from __future__ import annotations

import platform
from typing import Any

import anyio
import pytest

from hookline import Agent, ScriptedModel
from hookline.evals import Provenance, SuiteRunner, cases_of, load_run, record, replay, save_run
from hookline.evals.suites import Task, UserSuite

from .shop import ask_for_tea, run_suite, tools


class Odd:
    """A suite that uses the names for something else."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_a_run_from_python_names_the_function_that_made_it() -> None:
    cases = cases_of([UserSuite("shop", tools=tools, tasks=[ask_for_tea()])])

    real = anyio.run(record, cases)
    replayed = anyio.run(replay, real, cases)
    spied = anyio.run(SuiteRunner(cases).run)

    assert [run.provenance.made_by for run in (real, replayed, spied)] == [
        "hookline.evals.record()",
        "hookline.evals.replay()",
        "hookline.evals.SuiteRunner.run()",
    ]


def test_a_suite_names_the_models_of_its_tasks_and_of_its_agent() -> None:
    agent = Agent(id="a", model=ScriptedModel([], name="gpt"))
    made = Task(id="made", prompt="Go.", model=lambda: ScriptedModel([], name="made later"))
    own = Task(id="own", prompt="Go.")

    assert UserSuite("shop", tools=tools, tasks=[ask_for_tea(), made]).models == ["scripted"]
    assert UserSuite("shop", agent=agent, tasks=[own, made]).models == ["gpt"]


@pytest.mark.parametrize("attributes", [{}, {"versions": "v1", "models": "gpt"}, {"versions": ["1"], "models": 3}])
def test_a_suite_that_uses_the_names_for_something_else_adds_nothing(attributes: dict[str, Any]) -> None:
    found = Provenance.of([Odd(**attributes)], "a test")

    assert set(found.versions) == {"hookline", "Python"}
    assert found.versions["Python"] == platform.python_version()
    assert found.models == []


def test_versions_and_models_of_suites_are_texts_and_named_once() -> None:
    found = Provenance.of([Odd(versions={"shop": 2}, models=["gpt", None]), Odd(models=("gpt",))], "a test")

    assert found.versions["shop"] == "2"
    assert found.models == ["gpt"]


def test_a_saved_run_keeps_it_and_adds_when_it_was_saved(tmp_path: Any) -> None:
    run = run_suite([ask_for_tea()], made_by="a test")

    saved = load_run(save_run(tmp_path / "run.json", run))

    assert saved.provenance == run.provenance
    assert saved.suite_run().provenance.saved_at == saved.saved_at
