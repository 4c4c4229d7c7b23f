"""Files of people's labels: whether a task of a run passes in the eyes of a person."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hookline._checks import quote
from hookline.errors import HookUsageError
from hookline.evals.datasets import RowFile
from hookline.evals.errors import DataFileError
from hookline.evals.running import TaskResult

__all__ = ["Label", "read_labels", "write_label_sheet"]

YES, NO = ("pass", "passed", "yes", "true", "1", "good"), ("fail", "failed", "no", "false", "0", "bad")

COLUMNS = ("task", "attempt", "model", "prompt", "output", "by", "label")

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


class Label(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A person's verdict on a task of a run.

    Attributes:
        task: The task with its suite.
        passed: Whether the task passes in the eyes of the person.
        attempt: The attempt of the task, from 1.
        model: The model of the run, if it had several.
        check: The judge that the label is for; empty for every judge.
        by: The person.
    """

    task: str
    passed: bool
    attempt: int = 1
    model: str = ""
    check: str = ""
    by: str = ""


def read_labels(path: str | Path) -> Iterator[Label]:
    """Read a file of labels, one at a time.

    Every row has `task` (`suite/task`) and `label` (`pass` or `fail`, also `yes`, `no`, `true`, `false`, `1`, `0`), and
    may have `attempt`, `model`, `check` and `by`. Other columns are ignored, and so are rows with an empty label, which
    nobody has filled in.

    Args:
        path: A file in UTF-8: `.jsonl` with a JSON object per line, or `.csv` with a header.

    Raises:
        DataFileError: If the file cannot be read, or a row is not a label. It says in which line.
    """
    file = RowFile(path)
    for row in file:
        problem = next((name for name in ("task", "label") if name not in row.values), None)
        if problem is not None:
            file.refuse(f"a label has a {problem!r}; this row has {', '.join(row.values) or 'nothing'}", row.line)
        said = row.values["label"]
        if said is None or said == "":
            continue
        passed = _passed(said)
        if passed is None:
            file.refuse(f"`label` is pass or fail; got {quote(said)}", row.line)
        texts = {name: row.values.get(name) or "" for name in ("task", "model", "check", "by")}
        wrong = next((name for name, value in texts.items() if not isinstance(value, str)), None)
        if wrong is not None or not texts["task"]:
            file.refuse(f"`{wrong or 'task'}` is a text; got {quote(row.values.get(wrong or 'task'))}", row.line)
        attempt = _attempt(row.values.get("attempt"))
        if attempt is None:
            file.refuse(f"`attempt` is a whole number from 1; got {quote(row.values['attempt'])}", row.line)
        yield Label(passed=passed, attempt=attempt, **texts)


def _passed(said: Any) -> bool | None:
    word = str(said).strip().lower()
    return True if word in YES else False if word in NO else None


def _attempt(given: Any) -> int | None:
    if given is None or given == "":
        return 1
    word = str(given).strip()
    return int(word) if word.isascii() and word.isdigit() and 0 < len(word) < 10 and int(word) > 0 else None


def write_label_sheet(
    path: str | Path, results: Iterable[TaskResult], *, sample: int | None = None, seed: int = 0
) -> int:
    """Write a sheet for people to label: a CSV file with a row for each judged task, and an empty column `label`.

    It does not have the scores of the judge, which would influence people.

    Args:
        path: The file; one that exists is not replaced, as somebody may have filled it in.
        results: The results of a run. They are read once, and of those only the sampled rows are kept.
        sample: How many tasks to draw at random; all by default.
        seed: The seed of the draw.

    Returns:
        The number of rows.

    Raises:
        DataFileError: If the file cannot be written, or exists.
        HookUsageError: If `sample` is not a positive number.
    """
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 1):
        raise HookUsageError(f"`sample` is a whole number from 1; got {quote(sample)}.")
    rows = _sample((row for row in map(_sheet_row, results) if row is not None), sample, random.Random(seed))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    try:
        with open(path, "x", encoding="utf-8", newline="", errors="backslashreplace") as file:
            file.write(text.getvalue())
    except FileExistsError:
        raise DataFileError(
            str(path), "the file exists, and somebody may have filled it in; name another one"
        ) from None
    except OSError as error:
        raise DataFileError(str(path), f"the file cannot be written ({error.strerror or error})") from error
    return len(rows)


def _sample(rows: Iterable[list[str]], count: int | None, draw: random.Random) -> list[list[str]]:
    """Draw rows at random, in their order, each with the same chance."""
    kept: list[tuple[int, list[str]]] = []
    for place, row in enumerate(rows):
        if count is None or len(kept) < count:
            kept.append((place, row))
        elif (chosen := draw.randrange(place + 1)) < count:
            kept[chosen] = (place, row)
    return [row for _, row in sorted(kept)]


def _sheet_row(result: TaskResult) -> list[str] | None:
    if not any(check.judgement is not None and check.judged for check in result.checks):
        return None
    prompt = "\n\n".join(
        [f"user: {turn.user}" + (f"\n\nagent: {turn.output}" if turn.output else "") for turn in result.turns[:-1]]
        + [f"user: {turn.user}" for turn in result.turns[-1:]]
    )
    cells = [result.name, str(result.attempt), result.model, prompt or result.prompt, result.output, "", ""]
    return [f"'{cell}" if cell.startswith(FORMULA) else cell for cell in cells]
