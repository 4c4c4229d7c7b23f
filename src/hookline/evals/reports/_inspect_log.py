"""Export runs of suites as logs of Inspect AI, for its viewer and analyses."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from hookline.calls import ToolRequest
from hookline.evals.errors import ReportError
from hookline.evals.reports._report import write_whole
from hookline.evals.running import TaskResult
from hookline.evals.trajectories import TrajectoryStep
from hookline.events import ToolOutcome

__all__ = ["HasResults", "inspect_log", "write_inspect_log"]

VERSION = 2
"""The version of the log format that Inspect AI 0.3 writes and reads."""
NO_MODEL = "none/none"
"""Inspect's name for a task that asks no model."""


class HasResults(Protocol):
    """A run of a suite, in memory or read from a file."""

    @property
    def results(self) -> list[TaskResult]:
        """The results of the tasks."""

    @property
    def mode(self) -> str:
        """The mode of the run, which says who answered its tool calls."""

    @property
    def duration_ms(self) -> float:
        """How long the run took, in milliseconds."""


def inspect_log(
    run: HasResults, *, task: str | None = None, model: str = NO_MODEL, created: datetime | None = None
) -> dict[str, Any]:
    """Convert a run to a log of Inspect AI: a sample per task, with its messages, scores and figures.

    Args:
        run: A run of one suite or of several.
        task: Inspect's name for what was run; by default the names of the suites.
        model: The name of the model in Inspect's form: `"openai/gpt-4o"`.
        created: The time at which the run ended. The present time by default.

    Returns:
        The log, as it stands in a file of Inspect's JSON format.
    """
    ended = created or datetime.now(UTC)
    name = task or "+".join(dict.fromkeys(row.suite for row in run.results)) or "hookline"
    started = ended - timedelta(milliseconds=run.duration_ms)
    samples = [_sample(row) for row in run.results]
    # An agent whose run ends with an error is a bad result of the evaluation, not an evaluation that failed.
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "created": _time(started),
            "task": name,
            "task_id": name,
            "task_version": 0,
            "dataset": {"name": name, "samples": len(samples), "sample_ids": [each["id"] for each in samples]},
            "model": model,
            "config": {"epochs": 1},
            "packages": {"hookline": importlib.metadata.version("hookline")},
            "metadata": {"mode": run.mode},
        },
        "plan": {"name": "plan", "steps": []},
        "results": {
            "total_samples": len(samples),
            "completed_samples": sum("error" not in sample for sample in samples),
            "scores": _means(samples),
        },
        "stats": {"started_at": _time(started), "completed_at": _time(ended)},
        "samples": samples,
    }


def write_inspect_log(
    path: str | Path,
    run: HasResults,
    *,
    task: str | None = None,
    model: str = NO_MODEL,
    created: datetime | None = None,
) -> Path:
    """Write a run as a log file that `inspect view` and `inspect_ai.log.read_eval_log` open.

    The file contains prompts, arguments and results.

    Args:
        path: The file, which ends with `.json`; one that exists is replaced, at once and as a whole.
        run: A run of one suite or of several.
        task: Inspect's name for what was run; by default the names of the suites.
        model: The name of the model in Inspect's form.
        created: The time at which the run ended. The present time by default.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If it cannot be written there, or if its name does not end with `.json`.
    """
    target = Path(path).absolute()
    if target.suffix != ".json":
        raise ReportError(str(target), "Inspect knows the format by the ending, and this one is not .json")
    log = inspect_log(run, task=task, model=model, created=created)
    text = json.dumps(log, ensure_ascii=False, indent=1, default=repr)
    # Inspect's reader refuses lone surrogates, which models and tools may return.
    write_whole(target, text.encode(errors="replace"))
    return target


def _sample(row: TaskResult) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for said, steps in row.conversation:
        messages.append({"role": "user", "content": said, "source": "input"})
        messages += [message for step in steps for message in _messages(step)]
    sample: dict[str, Any] = {
        "id": row.name,
        "epoch": 1,
        "input": row.prompt,
        "target": "",
        "messages": messages,
        "output": {
            "model": "",
            "choices": [{"message": {"role": "assistant", "content": row.output}, "stop_reason": "stop"}],
            "completion": row.output,
        },
        "scores": _scores(row),
        "metadata": _figures(row),
        "total_time": row.duration_ms / 1e3,
        "uuid": row.operation_id,
    }
    if row.reason == "error":
        sample["error"] = {"message": row.error or "", "traceback": "", "traceback_ansi": ""}
    return sample


def _messages(step: TrajectoryStep) -> list[dict[str, Any]]:
    said: dict[str, Any] = {"role": "assistant", "content": step.content, "source": "generate"}
    if step.calls:
        said["tool_calls"] = [_call(call) for call in step.calls]
    return [said, *(_tool_message(result) for result in step.results)]


def _call(call: ToolRequest) -> dict[str, Any]:
    written: dict[str, Any] = {"id": call.tool_call_id, "function": call.tool_name, "type": "function"}
    if isinstance(call.args, Mapping):
        return {**written, "arguments": call.args}
    return {**written, "arguments": {}, "parse_error": f"These arguments are not a JSON object: {call.args}"}


def _tool_message(result: ToolOutcome) -> dict[str, Any]:
    told: dict[str, Any] = {
        "role": "tool",
        "content": result.content,
        "tool_call_id": result.tool_call_id,
        "function": result.tool_name,
    }
    return told if result.success else {**told, "error": {"type": "unknown", "message": result.content}}


def _scores(row: TaskResult) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    if row.utility is not None:
        scores["utility"] = {"value": float(row.utility), "answer": row.output, "explanation": row.failure or ""}
    for check in row.checks:
        scores[check.name] = {"value": check.score, "explanation": check.why}
    return scores


def _figures(row: TaskResult) -> dict[str, Any]:
    names = (
        "suite",
        "task_id",
        "operation_id",
        "reason",
        "steps",
        "tool_calls",
        "mocked",
        "failed",
        "tools_run",
        "forbidden",
        "cost_usd",
        "hook_executions",
        "hook_time_ms",
    )
    faults = [call.fault for call in row.calls if call.fault]
    return {name: getattr(row, name) for name in names} | ({"faults": faults} if faults else {})


def _means(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in sample["scores"].items():
            values.setdefault(name, []).append(score["value"])
    return [
        {
            "name": name,
            "scorer": name,
            "scored_samples": len(each),
            "unscored_samples": len(samples) - len(each),
            "metrics": {"mean": {"name": "mean", "value": sum(each) / len(each)}},
        }
        for name, each in values.items()
    ]


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
