"""What was sent against what the viewer says that it got, span by span."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

KIND = "openinference.span.kind"
"""The viewer keeps it as the span's kind, and not among the attributes."""

Shown = dict[str, Any]


def differences(sent: Sequence[ReadableSpan], shown: Sequence[Shown]) -> list[str]:
    """What is not as it was sent; empty if everything is.

    The viewer adds attributes that it computes from those that it got. None of these may be missing or changed.
    """
    found: list[str] = []
    by_id: dict[str, list[Shown]] = {}
    for span in shown:
        by_id.setdefault(span["context"]["span_id"], []).append(span)
    for span in sent:
        got = by_id.pop(f"{span.context.span_id:016x}", [])
        if len(got) != 1:
            found.append(f"{span.name}: shown {len(got)} times")
            continue
        found += (f"{span.name}: {difference}" for difference in differences_of(span, got[0]))
    found += (f"{span['name']}: was never sent" for spans in by_id.values() for span in spans)
    return found


def differences_of(span: ReadableSpan, shown: Shown) -> Iterable[str]:
    attributes = {name: plain(value) for name, value in (span.attributes or {}).items()}
    kind = attributes.pop(KIND, None)
    for what, due, is_ in (
        ("name", span.name, shown["name"]),
        ("kind", kind, shown["span_kind"]),
        ("trace", f"{span.context.trace_id:032x}", shown["context"]["trace_id"]),
        ("parent", f"{span.parent.span_id:016x}" if span.parent else None, shown["parent_id"]),
        ("status", span.status.status_code.name, shown["status_code"]),
        ("status message", span.status.description or "", shown["status_message"]),
        ("events", [event.name for event in span.events], [event["name"] for event in shown["events"]]),
    ):
        if due != is_:
            yield f"{what} is {is_!r}, not {due!r}"
    for what, nanoseconds in (("start_time", span.start_time), ("end_time", span.end_time)):
        if abs(microseconds(shown[what]) - nanoseconds / 1000) > 1:
            yield f"{what} is {shown[what]}, not {nanoseconds} ns"
    got = shown["attributes"]
    for name, value in attributes.items():
        if name not in got:
            yield f"has lost {name}"
        elif plain(got[name]) != value:
            yield f"{name} is {got[name]!r}, not {value!r}"


def plain(value: object) -> object:
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def microseconds(time: str) -> int:
    """The viewer keeps no nanoseconds, and rounds."""
    parsed = datetime.fromisoformat(time)
    return int(parsed.timestamp()) * 1_000_000 + parsed.microsecond


def outline(shown: Sequence[Shown]) -> str:
    """The trees that the viewer shows, a line for each span; children of the same time by name."""
    children: dict[str | None, list[Shown]] = {}
    for span in sorted(shown, key=lambda span: (span["start_time"], span["name"])):
        children.setdefault(span["parent_id"], []).append(span)
    lines: list[str] = []

    def add(span: Shown, depth: int) -> None:
        lines.append("  " * depth + line_of(span))
        for child in children.get(span["context"]["span_id"], ()):
            add(child, depth + 1)

    for root in children.get(None, ()):
        add(root, 0)
    return "\n".join(lines) + "\n"


def line_of(span: Shown) -> str:
    attributes = span["attributes"]
    words = [span["name"], f"[{span['span_kind']}]"]
    if span["status_code"] != "UNSET":
        words += [span["status_code"], attributes["error.type"]]
    if attributes.get("hookline.tool.mocked"):
        words.append(f"mocked by {attributes['hookline.tool.answered_by']}")
    if "hookline.denial.hook_id" in attributes:
        words.append(f"denied by {attributes['hookline.denial.hook_id']}")
    if attributes.get("hookline.outcome") == "waiting_for_human":
        words.append("waiting_for_human")
    if "hookline.human.decision" in attributes:
        words.append(attributes["hookline.human.decision"])
    if attributes.get("hookline.resumed"):
        words.append("resumed")
    return " ".join(words)
