"""Write runs as JUnit XML, which CI servers show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hookline.evals.reports._report import write_text
from hookline.evals.running import SuiteRun, TaskResult

__all__ = ["junit_xml", "write_junit"]

NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, not even escaped."""

NOT_JUDGED = "the task has neither checks nor expected calls, so nothing judged it"


def write_junit(path: str | Path, runs: Sequence[SuiteRun]) -> Path:
    """Write runs as a JUnit file.

    Args:
        path: The file; one that exists is replaced.
        runs: The runs.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If the file cannot be written.
    """
    return write_text(path, junit_xml(runs))


def junit_xml(runs: Sequence[SuiteRun]) -> str:
    """Render runs as JUnit XML: a `testsuite` per suite, and a `testcase` per task with its figures as properties.

    Args:
        runs: The runs; one of several has its mode in the suites' names.
    """
    root = Element("testsuites", name="hookline")
    for run in runs:
        for name in dict.fromkeys([*(result.suite for result in run.results), *map(_suite_of, run.not_run)]):
            _add_suite(root, run, name, f"{name} ({run.mode})" if len(runs) > 1 else name)
    cases = root.findall("testsuite")
    for total in ("tests", "failures", "errors", "skipped"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in cases)))
    root.set("time", f"{sum(run.duration_ms for run in runs) / 1000:.3f}")
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_suite(root: Element, run: SuiteRun, name: str, title: str) -> None:
    results = [result for result in run.results if result.suite == name]
    undone = [task for task in run.not_run if _suite_of(task) == name]
    unjudged = {task for task in run.not_judged if _suite_of(task) == name}
    broken = [result for result in results if result.reason == "error"]
    suite = SubElement(
        root,
        "testsuite",
        name=_clean(title),
        tests=str(len(results) + len(undone)),
        failures=str(sum(not result.ok for result in results) - len(broken)),
        errors=str(len(broken)),
        skipped=str(len(undone) + len(unjudged)),
        time=f"{sum(result.duration_ms for result in results) / 1000:.3f}",
    )
    figures: dict[str, object] = {"mode": run.mode, "seed": run.seed, **run.provenance.facts}
    for coverage in run.coverage:
        if coverage.suite == name:
            figures["tools discovered"] = len(coverage.discovered)
            figures["tools called"] = len(coverage.called)
            figures["tools never called"] = ", ".join(coverage.never_called)
    _properties(suite, figures)
    for result in results:
        case = _add_case(suite, result, title)
        if result.name in unjudged:
            SubElement(case, "skipped", message=NOT_JUDGED)
    for task in undone:
        case = SubElement(suite, "testcase", classname=_clean(title), name=_clean(task.partition("/")[2]))
        SubElement(case, "skipped", message=_clean(run.stopped or "the run was interrupted before this task was done"))


def _add_case(suite: Element, result: TaskResult, title: str) -> Element:
    seconds = f"{result.duration_ms / 1000:.3f}"
    case = SubElement(suite, "testcase", classname=_clean(title), name=_clean(result.task_id), time=seconds)
    _properties(
        case,
        {
            "mocked": result.mocked,
            "real": result.tools_run,
            "faults": sum(call.fault is not None for call in result.calls),
            "cassette": result.cassette or "",
            "score": "" if result.score is None else f"{result.score:.4g}",
            "cost_usd": f"{result.cost_usd:.6g}",
        },
    )
    failure = result.failure
    if failure is None:
        return case
    kind = "error" if result.reason == "error" else "failure"
    told = [f"prompt: {result.prompt}", f"answer: {result.output}"]
    told += [f"{'passed' if check.passed else 'missed'}: {check.name} {check.why}".rstrip() for check in result.checks]
    told += [
        f"{'ok' if call.success else 'failed'}: {call.tool} ({' '.join(filter(None, (call.outcome, call.source)))})"
        for call in result.calls
    ]
    node = SubElement(case, kind, message=_clean(failure), type=result.reason)
    node.text = _clean("\n".join([failure, "", *told]))
    return case


def _properties(parent: Element, values: Mapping[str, object]) -> None:
    node = SubElement(parent, "properties")
    for name, value in values.items():
        SubElement(node, "property", name=name, value=_clean(str(value)))


def _suite_of(task: str) -> str:
    return task.partition("/")[0]


def _clean(text: str) -> str:
    return NO_XML.sub("\ufffd", text)
