"""Write runs as JUnit XML, which CI servers show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hookline.evals._costs import format_cost
from hookline.evals.reports._report import write_text
from hookline.evals.running import REPLAYS, SuiteRun, TaskResult
from hookline.evals.statistics import Estimate, ModelStatistics, ModelTally

__all__ = ["clean_text", "junit_xml", "render_suites", "write_junit"]

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
    """Render runs as JUnit XML: a `testsuite` per suite and a `testcase` per task, with figures as properties.

    An attempt of a task that was repeated is a `testcase` of its own, since servers count and show these; its name says
    which one it is: `order-tea [attempt 2]`. Rates over all attempts are properties of the suite.

    Args:
        runs: The runs; one of several has its mode in the suites' names.
    """
    suites = [suite for run in runs for suite in _suites(run, with_mode=len(runs) > 1)]
    return render_suites(suites, duration_ms=sum(run.duration_ms for run in runs))


def render_suites(suites: Sequence[Element], *, duration_ms: float) -> str:
    """Render `testsuite` elements as a JUnit document with their totals."""
    root = Element("testsuites", name="hookline")
    root.extend(suites)
    for total in ("tests", "failures", "errors", "skipped"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in suites)))
    root.set("time", f"{duration_ms / 1000:.3f}")
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _suites(run: SuiteRun, *, with_mode: bool) -> list[Element]:
    """Return the suites of a run, whose results are read once."""
    suites: dict[str, SuiteCases] = {}

    def suite_of(name: str) -> SuiteCases:
        if name not in suites:
            suites[name] = SuiteCases(run, name, f"{name} ({run.mode})" if with_mode else name)
        return suites[name]

    unjudged = set(run.not_judged)
    for result in run.results:
        suite_of(result.suite).add(result, judged=result.name not in unjudged)
    for task in run.not_run:
        suite_of(task.partition("/")[0]).add_not_run(task)
    return [suite.element() for suite in suites.values()]


class SuiteCases:
    """The cases of one suite of a run.

    Args:
        run: The run.
        name: The name of the suite.
        title: The name that the file gives it.
    """

    def __init__(self, run: SuiteRun, name: str, title: str) -> None:
        self.run, self.name, self.title = run, name, title
        self._cases: list[Element] = []
        self._tallies: dict[str, ModelTally] = {}
        self._attempts: dict[str, int] = {}
        self._failures, self._errors, self._skipped, self._duration_ms = 0, 0, 0, 0.0

    def add(self, result: TaskResult, *, judged: bool) -> None:
        """Add a result."""
        case = self._case(result)
        self._cases.append(case)
        self._tallies.setdefault(result.model, ModelTally()).add(result, replays=self.run.mode in REPLAYS)
        self._attempts[result.name] = self._attempts.get(result.name, 0) + 1
        self._duration_ms += result.duration_ms
        if result.reason == "error":
            self._errors += 1
        elif not result.ok:
            self._failures += 1
        elif not judged:
            self._skipped += 1
            SubElement(case, "skipped", message=NOT_JUDGED)

    def add_not_run(self, task: str) -> None:
        """Add a task of which an attempt is missing."""
        done, planned = self._attempts.get(task, 0), self.run.repeat * max(len(self.run.models), 1)
        missing = "this task was done" if planned == 1 else f"{planned - done} of {planned} attempts were done"
        name = task.partition("/")[2] + (" [not run]" if done else "")
        case = Element("testcase", classname=clean_text(self.title), name=clean_text(name))
        message = self.run.stopped or f"the run was interrupted before {missing}"
        SubElement(case, "skipped", message=clean_text(message))
        self._cases.append(case)
        self._skipped += 1

    def element(self) -> Element:
        """Return the suite with its cases."""
        suite = Element(
            "testsuite",
            name=clean_text(self.title),
            tests=str(len(self._cases)),
            failures=str(self._failures),
            errors=str(self._errors),
            skipped=str(self._skipped),
            time=f"{self._duration_ms / 1000:.3f}",
        )
        figures: dict[str, object] = {"mode": self.run.mode, "seed": self.run.seed, **self.run.provenance.facts}
        for coverage in self.run.coverage:
            if coverage.suite == self.name:
                figures["tools discovered"] = len(coverage.discovered)
                figures["tools called"] = len(coverage.called)
                figures["tools never called"] = ", ".join(coverage.never_called)
        for model, tally in self._tallies.items():
            figures |= _rates(tally.statistics(model), several=len(self._tallies) > 1)
        _add_properties(suite, figures)
        suite.extend(self._cases)
        return suite

    def _case(self, result: TaskResult) -> Element:
        """Return the case of a result, with its figures, and with the reason if it failed."""
        which = [result.model] if len(self.run.models) > 1 else []
        which += [f"attempt {result.attempt}"] if max(self.run.repeat, result.attempt) > 1 else []
        name = f"{result.task_id} [{', '.join(which)}]" if which else result.task_id
        seconds = f"{result.duration_ms / 1000:.3f}"
        case = Element("testcase", classname=clean_text(self.title), name=clean_text(name), time=seconds)
        _add_properties(
            case,
            {
                "mocked": result.mocked,
                "real": result.tools_run,
                "faults": sum(call.fault is not None for call in result.calls),
                "cassette": result.cassette or "",
                "score": "" if result.score is None else f"{result.score:.4g}",
                "weight": f"{result.weight:g}",
                "cost_usd": format_cost(result.cost_usd, "{:.6g}"),
                "judge_cost_usd": f"{result.judge_usage.cost_usd:.6g}",
                "user_cost_usd": f"{result.user_usage.cost_usd:.6g}",
                "input_tokens": result.input_tokens,
                "output_tokens": result.output_tokens,
                "attempt": result.attempt,
                "model": result.model,
                "tags": ", ".join(result.tags),
            },
        )
        failure = result.failure
        if failure is None:
            return case
        kind = "error" if result.reason == "error" else "failure"
        told = [f"prompt: {result.prompt}", f"answer: {result.output}"]
        told += [
            f"{'passed' if check.passed else 'missed'}: {check.name} {check.why}".rstrip() for check in result.checks
        ]
        told += [
            f"{'ok' if call.success else 'failed'}: {call.tool} ({' '.join(filter(None, (call.outcome, call.source)))})"
            for call in result.calls
        ]
        node = SubElement(case, kind, message=clean_text(failure), type=result.reason)
        node.text = clean_text("\n".join([failure, "", *told]))
        return case


def _rates(statistics: ModelStatistics, *, several: bool) -> dict[str, object]:
    """Return the figures of a model's attempts: rates with their 95 % intervals, costs and latency."""
    most = max(statistics.pass_at_k, default=0)
    rates: dict[str, Estimate | None] = {"pass rate": statistics.passed, "mean score": statistics.score}
    if most > 1:
        rates |= {f"pass@{most}": statistics.pass_at_k.get(most), f"pass^{most}": statistics.pass_hat_k.get(most)}
    figures: dict[str, object] = {
        name: f"{rate.mean:.4g} ({rate.low:.4g} to {rate.high:.4g})" for name, rate in rates.items() if rate is not None
    }
    figures |= {
        "cost_usd": format_cost(statistics.total_cost_usd, "{:.6g}"),
        "judge_cost_usd": f"{statistics.judge_cost_usd.total:.6g}",
        "user_cost_usd": f"{statistics.user_cost_usd.total:.6g}",
        "latency_p50_ms": f"{statistics.duration_ms.p50:.6g}",
        "latency_p90_ms": f"{statistics.duration_ms.p90:.6g}",
        "flaky": ", ".join(statistics.flaky),
    }
    return {f"{name} with {statistics.model}" if several else name: value for name, value in figures.items()}


def _add_properties(parent: Element, values: Mapping[str, object]) -> None:
    node = SubElement(parent, "properties")
    for name, value in values.items():
        SubElement(node, "property", name=name, value=clean_text(str(value)))


def clean_text(text: str) -> str:
    """Return a text without the characters that XML cannot contain."""
    return NO_XML.sub("\ufffd", text)
