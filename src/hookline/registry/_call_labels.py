"""Files of people's labels of calls: whether a call may happen in the eyes of a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from hookline._checks import quote
from hookline.evals.datasets import RowFile

__all__ = ["CallLabel", "count_labels", "read_call_labels"]

ALLOW, DENY = ("allow", "allowed", "approve", "approved"), ("deny", "denied", "reject", "rejected")


class CallLabel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A person's verdict on a stored tool call.

    Attributes:
        operation: The id of the operation.
        call: The id of the tool call in it.
        allowed: Whether the call may happen in the eyes of the person.
        by: The person.
    """

    operation: str
    call: str
    allowed: bool
    by: str = ""


def read_call_labels(path: str | Path) -> Iterator[CallLabel]:
    """Read a file of labels of tool calls, one at a time.

    Every row has `operation`, `call` (the id of the tool call) and `label` (`allow` or `deny`, also `approve` and
    `reject`), and may have `by`. Other columns are ignored, and so are rows with an empty label, which nobody has
    filled in.

    Args:
        path: A file in UTF-8: `.jsonl` with a JSON object per line, or `.csv` with a header.

    Raises:
        hookline.evals.errors.DataFileError: If the file cannot be read, or a row is not a label. It says in which line.
    """
    file = RowFile(path)
    for row in file:
        missing = next((name for name in ("operation", "call", "label") if name not in row.values), None)
        if missing is not None:
            file.refuse(f"a label has a {missing!r}; this row has {', '.join(row.values) or 'nothing'}", row.line)
        said = row.values["label"]
        if said is None or said == "":
            continue
        word = str(said).strip().lower()
        if word not in ALLOW + DENY:
            file.refuse(f"`label` is allow or deny; got {quote(said)}", row.line)
        texts = {name: row.values.get(name) or "" for name in ("operation", "call", "by")}
        wrong = next((name for name, value in texts.items() if not isinstance(value, str)), None)
        wrong = wrong or next((name for name in ("operation", "call") if not texts[name]), None)
        if wrong is not None:
            file.refuse(f"`{wrong}` is a text; got {quote(row.values.get(wrong))}", row.line)
        yield CallLabel(allowed=word in ALLOW, **texts)


def count_labels(labels: Iterable[CallLabel]) -> dict[tuple[str, str], bool]:
    """Return by operation and tool call what most people say; calls about which as many say the opposite are left out.

    Args:
        labels: The labels.
    """
    balance: Counter[tuple[str, str]] = Counter()
    for each in labels:
        balance[each.operation, each.call] += 1 if each.allowed else -1
    return {key: count > 0 for key, count in balance.items() if count}
