"""hookline is a conforming host: the contract's own kit says so, run the way it wants to be run."""

from __future__ import annotations

import importlib.metadata
import pathlib

import pytest
from agent_hooks.ctk import load_vectors, run_vectors

from hookline.adapters.agent_hooks import CtkHarness

VECTORS = pathlib.Path(__file__).with_name("conformance.py")
PLUGINS = {each.name for each in importlib.metadata.entry_points(group="pytest11")}
UNRELATED = [*sorted(PLUGINS - {"agent_hooks_ctk", "anyio"}), "cacheprovider"]
HARNESS = "--agent-hooks-harness=hookline.adapters.agent_hooks:CtkHarness"


def test_all_vectors_pass_that_the_kit_can_drive(pytester: pytest.Pytester) -> None:
    page = pytester.makepyfile(VECTORS.read_text())

    unwanted = [word for name in UNRELATED for word in ("-p", f"no:{name}")]
    result = pytester.runpytest_inprocess(page, HARNESS, *unwanted, "-rs")

    result.assert_outcomes(passed=71, skipped=4)
    result.stdout.fnmatch_lines(['SKIPPED [[]4[]]*missing capabilities: [[]"incremental_output"[]]'])


def test_a_harness_can_be_used_again() -> None:
    harness = CtkHarness()
    vectors = [vector for vector in load_vectors() if vector["id"] in ("AH-CTK-001", "AH-CTK-020", "AH-CTK-031")]

    results = run_vectors(lambda: harness, [*vectors, *vectors])

    assert [result.status for result in results] == ["pass"] * 6


@pytest.mark.parametrize("wrong", ["tool_invocations", "final_output"])
def test_the_kit_would_notice_a_host_that_lies(wrong: str) -> None:
    class Lying(CtkHarness):
        async def run(self):
            record = await super().run()
            setattr(record, wrong, [{"name": "x", "args": {}}] if wrong == "tool_invocations" else "lies")
            return record

    vectors = [vector for vector in load_vectors() if vector["id"] == "AH-CTK-001"]

    assert [result.status for result in run_vectors(Lying, vectors)] == ["fail"]
