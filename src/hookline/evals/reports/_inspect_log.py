"""Export runs of suites as logs of Inspect AI, for its viewer and analyses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, BinaryIO, Protocol
from zipfile import ZIP_DEFLATED, ZipFile

from hookline.calls import ToolRequest
from hookline.evals.errors import ReportError
from hookline.evals.reports._report import write_parts
from hookline.evals.running import CheckResult, Provenance, TaskResult, hookline_version
from hookline.evals.trajectories import TrajectoryStep
from hookline.events import ToolOutcome

__all__ = ["HasResults", "inspect_log", "write_inspect_log"]

VERSION = 2
"""The version of the log format that Inspect AI 0.3 writes and reads."""
NO_MODEL = "none/none"
"""Inspect's name for a task that asks no model."""
SUFFIXES = (".json", ".eval")
"""Inspect's two formats: one JSON document, and a ZIP archive with a file per sample."""
PASSED = "passed"
"""The scorer that says whether a sample passed as a whole."""
SUMMARY_CHARACTERS = 1_000
"""How much of a text Inspect keeps in the summary of a sample."""


class HasResults(Protocol):
    """A run of a suite, in memory or read from a file."""

    @property
    def results(self) -> Sequence[TaskResult]:
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
    """Convert a run to a log of Inspect AI: a sample per task and attempt, with its messages, scores and tokens.

    A sample has one score for whether it passed (`passed`), and one for each kind of check; several checks of a kind
    have their mean, and their names are in its metadata. Attempts of a task are the epochs of a sample.

    Args:
        run: A run of one suite or of several.
        task: Inspect's name for what was run; by default the names of the suites.
        model: The name of the model in Inspect's form, `"openai/gpt-4o"`, for results that do not name theirs.
        created: The time at which the run ended. The present time by default.

    Returns:
        The log, as it stands in a file of Inspect's JSON format.
    """
    log = _Log(run, task, model, created)
    samples = [log.add(row) for row in run.results]
    return {**log.header(), **log.reductions(), "samples": samples}


def write_inspect_log(
    path: str | Path,
    run: HasResults,
    *,
    task: str | None = None,
    model: str = NO_MODEL,
    created: datetime | None = None,
) -> Path:
    """Write a run as a log file that `inspect view` and `inspect_ai.log.read_eval_log` open.

    The file contains prompts, arguments and results. Results are read and written one by one.

    Args:
        path: The file, which ends with `.eval` (compressed, for long logs) or `.json`; one that exists is replaced, at
            once and as a whole.
        run: A run of one suite or of several.
        task: Inspect's name for what was run; by default the names of the suites.
        model: The name of the model in Inspect's form, for results that do not name theirs.
        created: The time at which the run ended. The present time by default.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If it cannot be written there, or if its name has another ending.
    """
    target = Path(path).absolute()
    if target.suffix not in SUFFIXES:
        endings = " and not ".join(SUFFIXES)
        raise ReportError(str(target), f"Inspect knows the format by the ending, and this one is not {endings}")
    log = _Log(run, task, model, created)
    write_parts(target, partial(_write_archive if target.suffix == ".eval" else _write_document, log))
    return target


def _facts(run: HasResults) -> dict[str, str]:
    """Return the origin of a run, if it is known."""
    provenance = getattr(run, "provenance", None)
    return provenance.facts if isinstance(provenance, Provenance) else {}


def _write_document(log: _Log, file: BinaryIO) -> None:
    """Write a log as one JSON document. Its head sums up the samples behind it, so they are made twice."""
    for row in log.run.results:
        log.add(row)
    head = _encode({**log.header(), **log.reductions()}, indent=1)
    file.write(head.removesuffix(b"\n}") + b',\n "samples": [')
    for number, row in enumerate(log.run.results):
        file.write((b",\n" if number else b"\n") + _encode(log.sample(row)))
    file.write(b"\n ]\n}\n")


def _write_archive(log: _Log, file: BinaryIO) -> None:
    """Write a log as an archive: a file per sample, then what sums them up."""
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        summaries: list[dict[str, Any]] = []
        for row in log.run.results:
            sample = log.add(row)
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", _encode(sample))
            summaries.append(_summary(sample))
        archive.writestr("summaries.json", _encode(summaries))
        reductions = log.reductions()
        if reductions:
            archive.writestr("reductions.json", _encode(reductions["reductions"]))
        header = log.header()
        archive.writestr("_journal/start.json", _encode({key: header[key] for key in ("version", "eval", "plan")}))
        archive.writestr("header.json", _encode(header))


def _encode(value: object, indent: int | None = None) -> bytes:
    # Inspect's reader refuses lone surrogates, which models and tools may return.
    return json.dumps(value, ensure_ascii=False, indent=indent, default=repr).encode(errors="replace")


class _Log:
    """A log while its samples are made, one after the other.

    Args:
        run: The run.
        task: Inspect's name for what was run.
        model: The model of results that do not name theirs.
        created: When the run ended.
    """

    def __init__(self, run: HasResults, task: str | None, model: str, created: datetime | None) -> None:
        self.run = run
        self._task = task
        self._model = model
        self._ended = created or datetime.now(UTC)
        self._ids: dict[str, None] = {}
        self._suites: dict[str, None] = {}
        self._models: dict[str, None] = {}
        for row in run.results:
            self._suites[row.suite] = self._models[row.model] = None
        self._samples = self._completed = 0
        self._epochs = 1
        self._usage: dict[str, dict[str, Any]] = {}
        self._values: dict[str, dict[str, list[float]]] = {}
        """The values of each scorer, by sample."""

    def add(self, row: TaskResult) -> dict[str, Any]:
        """Make the sample of a result, and count it."""
        sample = self.sample(row)
        self._ids[sample["id"]] = None
        self._samples += 1
        self._completed += "error" not in sample
        self._epochs = max(self._epochs, row.attempt)
        for model, usage in sample["model_usage"].items():
            sums = self._usage.setdefault(model, dict.fromkeys(usage, 0))
            for name, value in usage.items():
                sums[name] += value
        for scorer, score in sample["scores"].items():
            self._values.setdefault(scorer, {}).setdefault(sample["id"], []).append(score["value"])
        return sample

    def sample(self, row: TaskResult) -> dict[str, Any]:
        """Make the sample of a result."""
        model = self._name_model(row.model)
        messages: list[dict[str, Any]] = []
        for said, steps in row.conversation:
            messages.append({"role": "user", "content": said, "source": "input"})
            messages += [message for step in steps for message in _messages(step)]
        sample: dict[str, Any] = {
            # Several models in one log answer the same tasks, and a sample is known by its id and epoch alone.
            "id": f"{row.name} [{model}]" if len(self._models) > 1 else row.name,
            "epoch": row.attempt,
            "input": row.prompt,
            "target": row.target if len(row.target) > 1 else "".join(row.target),
            "messages": messages,
            "output": {
                "model": model,
                "choices": [{"message": {"role": "assistant", "content": row.output}, "stop_reason": "stop"}],
                "completion": row.output,
            },
            "scores": _scores(row),
            "metadata": _figures(row),
            "model_usage": {model: _usage(row)} if row.input_tokens or row.output_tokens else {},
            "total_time": row.duration_ms / 1e3,
            "uuid": row.operation_id or None,
        }
        if row.reason == "error":
            sample["error"] = {"message": row.error or "", "traceback": "", "traceback_ansi": ""}
        return sample

    def header(self) -> dict[str, Any]:
        """Return the log without its samples."""
        name = self._task or "+".join(self._suites) or "hookline"
        started = self._ended - timedelta(milliseconds=self.run.duration_ms)
        models = [self._name_model(model) for model in self._models]
        # An agent whose run ends with an error is a bad result of the evaluation, not an evaluation that failed.
        return {
            "version": VERSION,
            "status": "success",
            "eval": {
                "created": _time(started),
                "task": name,
                "task_id": name,
                "task_version": 0,
                "dataset": {"name": name, "samples": len(self._ids), "sample_ids": list(self._ids)},
                "model": models[0] if len(models) == 1 else self._model,
                "config": {"epochs": self._epochs},
                "packages": {"hookline": hookline_version()},
                "metadata": {
                    "mode": self.run.mode,
                    **_facts(self.run),
                    **({"models": models} if len(models) > 1 else {}),
                },
            },
            "plan": {"name": "plan", "steps": []},
            "results": {
                "total_samples": self._samples,
                "completed_samples": self._completed,
                "scores": [self._score(scorer, values) for scorer, values in self._values.items()],
            },
            "stats": {
                "started_at": _time(started),
                "completed_at": _time(self._ended),
                "model_usage": self._usage,
            },
        }

    def reductions(self) -> dict[str, Any]:
        """Return the mean of each sample over its epochs, if there are several."""
        if self._epochs == 1:
            return {}
        return {
            "reductions": [
                {
                    "scorer": scorer,
                    "reducer": "mean",
                    "samples": [{"sample_id": name, "value": fmean(each)} for name, each in values.items()],
                }
                for scorer, values in self._values.items()
            ]
        }

    def _name_model(self, model: str) -> str:
        """Return a model's name in Inspect's form: `openai/gpt-5`, where hookline writes `openai:gpt-5`."""
        return model.replace(":", "/", 1) if model else self._model

    def _score(self, scorer: str, values: dict[str, list[float]]) -> dict[str, Any]:
        means = [fmean(each) for each in values.values()]
        error = stdev(means) / sqrt(len(means)) if len(means) > 1 else 0.0
        return {
            "name": scorer,
            "scorer": scorer,
            **({"reducer": "mean"} if self._epochs > 1 else {}),
            "scored_samples": len(means),
            "unscored_samples": len(self._ids) - len(means),
            "metrics": {
                "mean": {"name": "mean", "value": fmean(means)},
                "stderr": {"name": "stderr", "value": error},
            },
        }


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what the viewer lists of a sample before it is opened."""
    names = ("id", "epoch", "input", "target", "metadata", "model_usage", "total_time", "uuid")
    scores = {
        name: {**score, "explanation": score["explanation"][:SUMMARY_CHARACTERS], "metadata": {}}
        for name, score in sample["scores"].items()
    }
    error = {"error": sample["error"]["message"][:SUMMARY_CHARACTERS]} if "error" in sample else {}
    return {**{name: sample[name] for name in names}, "scores": scores, **error, "completed": True}


def _usage(row: TaskResult) -> dict[str, Any]:
    return {
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "total_tokens": row.input_tokens + row.output_tokens,
        "total_cost": row.cost_usd,
    }


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
    """Return whether a task passed, and one score for each kind of its checks."""
    scores: dict[str, Any] = {}
    if row.utility is not None or not row.sound:
        scores[PASSED] = {"value": float(row.ok), "answer": row.output, "explanation": row.failure or ""}
    kinds: dict[str, list[CheckResult]] = {}
    for check in row.checks:
        kinds.setdefault(check.metric, []).append(check)
    for kind, checks in kinds.items():
        scores[f"{kind} check" if kind == PASSED else kind] = {
            "value": fmean(check.score for check in checks),
            "explanation": "\n".join(_explain(check) for check in checks),
            "metadata": {"checks": [check.name for check in checks]},
        }
    return scores


def _explain(check: CheckResult) -> str:
    sign = "passed" if check.passed else "failed"
    return f"{sign}: {check.name}{f': {check.why}' if check.why else ''}"


def _figures(row: TaskResult) -> dict[str, Any]:
    names = (
        "suite",
        "task_id",
        "tags",
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


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
