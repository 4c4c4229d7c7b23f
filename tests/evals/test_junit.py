"""JUnit XML that a CI server reads: a suite per suite, a case per task, nothing that XML cannot carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from hookline import ModelResponse, ToolRequest
from hookline.evals import ReportError, SuiteRun
from hookline.evals.faults import FailedResult, FaultSpec
from hookline.evals.reports import junit_xml, write_junit
from hookline.evals.suites import Task, checks

from .shop import ask_for_tea, order_tea, run_suite


def properties(node: ElementTree.Element) -> dict[str, str]:
    return {each.get("name", ""): each.get("value", "") for each in node.findall("properties/property")}


def test_every_task_is_a_case_of_its_suite(real: SuiteRun) -> None:
    root = ElementTree.fromstring(junit_xml([real]))

    suites = {suite.get("name"): suite for suite in root.findall("testsuite")}
    assert {name: suite.get("tests") for name, suite in suites.items()} == {
        "banking": "16",
        "workspace": "40",
        "travel": "20",
        "slack": "21",
    }
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("97", "0", "0", "0")
    assert properties(suites["banking"])["tools never called"].count(",") == 2
    case = suites["banking"].findall("testcase")[0]
    assert (case.get("classname"), case.get("name")) == ("banking", "user_task_0")
    assert float(case.get("time", "")) > 0


def test_a_case_tells_what_was_mocked_and_what_struck(tmp_path: Path) -> None:
    faults = [FaultSpec(tool="order", fault=FailedResult(), probability=1.0)]
    run = run_suite([order_tea(checks=[checks.max_calls(1)])], mode="record", cassettes=tmp_path, faults=faults)

    (case,) = ElementTree.fromstring(junit_xml([run])).findall("testsuite/testcase")

    told = properties(case)
    assert (told["mocked"], told["real"], told["faults"], told["score"]) == ("2", "0", "2", "0")
    assert told["cassette"] == str(tmp_path / "shop" / "order.yaml")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "at most 1 calls: there were 2: local/order, local/order"
    assert "failed: local/order (mocked fault failed_result)" in (failure.text or "")


def test_a_task_that_broke_is_an_error_and_one_that_did_not_run_is_skipped() -> None:
    broken = Task(id="broken", prompt="x", model=lambda: 1 / 0)
    run = run_suite([ask_for_tea(checks=[checks.max_calls(1)]), broken])
    run.not_run.append("shop/later")

    root = ElementTree.fromstring(junit_xml([run]))

    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "0", "1", "1"]
    error, skipped = root.find(".//error"), root.find(".//testcase[@name='later']/skipped")
    assert error is not None
    assert skipped is not None
    assert "ZeroDivisionError" in error.get("message", "")


def test_two_runs_are_told_apart_by_their_mode(real: SuiteRun, replayed: SuiteRun) -> None:
    root = ElementTree.fromstring(junit_xml([real, replayed]))

    names = [suite.get("name") for suite in root.findall("testsuite")]
    assert names[0] == "banking (real)"
    assert len(set(names)) == 8


def test_what_xml_cannot_carry_is_replaced() -> None:
    nasty = "\x00\x1b]]>&<\ud800\ufffe"
    turn = ModelResponse(tool_calls=[ToolRequest(tool_name=nasty, tool_call_id="1")])
    task = Task(
        id=f"id{nasty}",
        prompt=nasty,
        script=[turn, ModelResponse(content=nasty)],
        checks=[checks.output_contains("never")],
    )
    run = run_suite([task])

    root = ElementTree.fromstring(junit_xml([run]))

    (case,) = root.findall("testsuite/testcase")
    assert case.get("name") == "id\ufffd\ufffd]]>&<\ufffd\ufffd"


def test_it_is_written_as_a_file_or_refused_with_the_reason(tmp_path: Path, real: SuiteRun) -> None:
    target = write_junit(tmp_path / "junit.xml", [real])

    assert len(ElementTree.parse(target).findall("testsuite")) == 4
    with pytest.raises(ReportError, match="there is no folder"):
        write_junit(tmp_path / "none" / "junit.xml", [real])


def test_a_failing_utility_says_so(real: SuiteRun) -> None:
    worse = msgspec.structs.replace(real.results[0], utility=False)
    run = SuiteRun(mode="spy", results=[worse], operations=real.operations, cassettes={}, duration_ms=1.0, not_run=[])

    failure = ElementTree.fromstring(junit_xml([run])).find(".//failure")

    assert failure is not None
    assert "the suite's own check failed" in failure.get("message", "")


def test_a_task_that_nothing_judges_is_skipped_and_not_passed() -> None:
    run = run_suite([ask_for_tea(), order_tea(checks=[checks.max_calls(2)])])

    root = ElementTree.fromstring(junit_xml([run]))

    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "1"]
    skipped = root.find(".//testcase[@name='tea']/skipped")
    assert skipped is not None
    assert "neither checks nor expected calls" in skipped.get("message", "")
    assert (run.judged, run.not_judged) == (True, ["shop/tea"])


def test_a_replay_is_judged_by_its_recording(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cassettes": tmp_path}

    recorded = run_suite([ask_for_tea()], mode="record", **options)
    replayed = run_suite([ask_for_tea()], mode="replay", **options)

    assert (recorded.judged, replayed.judged) == (False, True)
    assert "skipped" not in [node.tag for node in ElementTree.fromstring(junit_xml([replayed])).iter()]


def test_an_attempt_is_a_case_of_its_own_and_rates_are_properties_of_the_suite() -> None:
    (good,) = run_suite([ask_for_tea(checks=[checks.max_calls(1)])]).results
    results = [
        msgspec.structs.replace(good, attempt=attempt, model=model, utility=score == 1, score=score)
        for attempt in (1, 2)
        for model, score in (("large", 1.0), ("small", 2.0 - attempt))
    ]
    run = SuiteRun(
        mode="spy",
        results=results,
        operations={},
        cassettes={},
        duration_ms=1.0,
        repeat=3,
        models=["large", "small"],
        not_run=["shop/tea"],
    )

    root = ElementTree.fromstring(junit_xml([run]))

    (suite,) = root.findall("testsuite")
    assert [case.get("name") for case in suite.findall("testcase")] == [
        "tea [large, attempt 1]",
        "tea [small, attempt 1]",
        "tea [large, attempt 2]",
        "tea [small, attempt 2]",
        "tea [not run]",
    ]
    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "1", "0", "1"]
    told = properties(suite)
    assert told["pass rate with large"].startswith("1 (0.2")
    assert (told["flaky with large"], told["flaky with small"]) == ("", "shop/tea")
    assert told["pass^2 with small"].startswith("0 (0 to")
    assert "2 of 6 attempts were done" in str(ElementTree.tostring(suite.findall("testcase")[-1]))
