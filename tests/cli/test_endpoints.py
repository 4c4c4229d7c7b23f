"""`--otlp-endpoint` of `trace`, `demo` and `eval`: what arrives, what is counted, and what is said where nothing does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.receiver import Receiver, closed_port, parsed, spans_of
from cli.scenes import a_recorded_run, run
from hookline.cli import _demo
from hookline.cli.eval._evaluation import find_suite
from tests.forks import fork_python


@pytest.fixture
def demo_of_a_suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo runs one suite, and the process that it starts is forked."""
    monkeypatch.setattr(_demo, "DEMO_SUITES", ("agentdojo:banking",))
    with fork_python("hookline"):
        yield


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return a_recorded_run(tmp_path)


def test_spans_are_sent_and_counted(tmp_path: Path) -> None:
    target = tmp_path / "spans.json"

    with Receiver() as receiver:
        result = run(
            "trace", "agentdojo:banking", "--otlp-endpoint", receiver.url, "--otlp-json", str(target), width=300
        )

    assert result.exit_code == 0
    assert f"Sent 9 spans to {receiver.url}/v1/traces\n" in result.stdout
    assert f"Phoenix shows them at {receiver.url}, in the project hookline.\n" in result.stdout
    assert receiver.spans == spans_of(parsed(target.read_text(encoding="utf-8")))
    assert {resource["openinference.project.name"] for resource in receiver.resources} == {"hookline"}
    kinds = {
        each.value.string_value for span in receiver.spans for each in span.attributes if "openinference" in each.key
    }
    assert kinds == {"AGENT", "CHAIN", "LLM", "TOOL"}


def test_an_endpoint_that_is_down_is_told_in_one_line_and_the_tree_is_shown_all_the_same() -> None:
    endpoint = f"http://127.0.0.1:{closed_port()}"

    result = run("trace", "agentdojo:banking", "--otlp-endpoint", endpoint)

    assert result.exit_code == 4
    assert "✓ invoke_agent agentdojo-banking" in result.stdout
    assert result.stderr == (f"hookline: 9 of 9 spans did not arrive at {endpoint}/v1/traces: Connection refused\n")


def test_a_recorded_run_can_be_sent(recorded: Path) -> None:
    with Receiver() as receiver:
        result = run("trace", str(recorded), "--otlp-endpoint", f"{receiver.url}/custom", width=300)

    assert f"Sent 4 spans to {receiver.url}/custom\n" in result.stdout
    assert receiver.paths == ["/custom"]


@pytest.mark.usefixtures("demo_of_a_suite")
def test_the_demo_sends_every_operation_of_both_runs(tmp_path: Path) -> None:
    with Receiver() as receiver:
        report = str(tmp_path / "report.html")
        result = run("demo", "--report", report, "--otlp-endpoint", receiver.url, width=300)

    roots = [span for span in receiver.spans if not span.parent_span_id]
    assert result.exit_code == 0
    assert len(roots) == 2 * 16
    assert f"Sent {len(receiver.spans):,} spans to {receiver.url}/v1/traces\n" in result.stdout
    assert {span.name for span in roots} == {"invoke_agent agentdojo-banking"}
    mocked = [span for span in receiver.spans if any(each.key == "hookline.tool.mocked" for each in span.attributes)]
    assert len(mocked) == 33
    assert {span.parent_span_id for span in receiver.spans} - {b""} <= {span.span_id for span in receiver.spans}
    assert "pip install arize-phoenix" not in result.stdout


@pytest.mark.usefixtures("demo_of_a_suite")
def test_a_demo_that_reaches_nobody_has_run_all_the_same_and_says_how_to_start_a_viewer(tmp_path: Path) -> None:
    report = tmp_path / "report.html"

    result = run("demo", "--report", str(report), "--otlp-endpoint", f"http://127.0.0.1:{closed_port()}")

    assert result.exit_code == 4
    assert "(a) and (b) produced the same results" in " ".join(result.stdout.split())
    assert "pip install arize-phoenix\n  phoenix serve\n" in result.stdout
    assert "hookline demo --otlp-endpoint http://127.0.0.1:6006\n" in result.stdout
    assert "Elastic License 2.0" in result.stdout
    assert re.fullmatch(r"hookline: ([\d,]+) of \1 spans did not arrive .*: Connection refused\n", result.stderr)
    assert report.exists()


def test_an_evaluation_is_sent_and_its_json_stays_alone_on_stdout() -> None:
    args = ["eval", "agentdojo:banking", "--task", "user_task_0", "--mocked", "--json"]

    with Receiver() as receiver:
        result = run(*args, "--otlp-endpoint", receiver.url)

    assert json.loads(result.stdout)["ok"]
    assert result.stderr.startswith(f"Sent 18 spans to {receiver.url}/v1/traces\n")
    assert len(receiver.spans) == 18


def test_a_failed_evaluation_counts_more_than_lost_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    task = find_suite("agentdojo:banking").task("user_task_0")  # type: ignore[attr-defined]
    monkeypatch.setattr(type(task.source), "GROUND_TRUTH_OUTPUT", "I do not know.")
    monkeypatch.setattr(type(task.source), "utility", lambda *args, **kwargs: False)
    endpoint = f"http://127.0.0.1:{closed_port()}"

    result = run("eval", "agentdojo:banking", "--task", "user_task_0", "--otlp-endpoint", endpoint)

    assert result.exit_code == 1
    assert "did not arrive at" in result.stderr
