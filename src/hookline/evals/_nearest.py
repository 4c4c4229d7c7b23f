"""What is said of a call that has no recording: which one comes nearest, and in what the two differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from hookline.evals._canonical import canonical
from hookline.evals._recordings import Recording

__all__ = ["difference", "nearest", "why_missing"]

COMPARED = 200
"""Recordings of the tool that are looked at."""
COMPARED_CHARACTERS = 2_000
"""Characters of each one's arguments that are looked at."""
LISTED = 3
LISTED_CHARACTERS = 300
"""Bounds of what is listed in a sentence."""
SHOWN_LINES = 40
SHOWN_WIDTH = 110
READ_LINES = 1_000
"""Bounds of a difference: it goes to a model, and a test prints it."""


def why_missing(recordings: Iterable[Recording], tool: str, args: dict[str, Any], agent: str, known: int) -> str:
    """Why no recording answers a call.

    Args:
        recordings: All recordings of the cassette.
        tool: The tool.
        args: The arguments.
        agent: The sub-agent that calls; empty for the agent that was run.
        known: How many recordings of this very call there were.

    Returns:
        A sentence, and a difference in lines of their own where another recording comes near.
    """
    call = f"{tool} with {_short(args)}"
    if known:
        return f"{call}: it was recorded {known} times, and this is call {known + 1}. The real tool was not run."
    held = list(recordings)
    near = nearest(held, tool, args, agent)
    if near is None:
        others = _listed(sorted({recording.tool for recording in held}))
        reason = f"no call of {tool} was recorded{f', only of {others}' if others else ''}"
        return f"{call}: {reason}. The real tool was not run."
    reason = (
        f"{tool} was recorded with {_listed(dict.fromkeys(_short(each.args) for each in held if each.tool == tool))}"
    )
    if near.agent != agent:
        reason += f", by {f'the sub-agent {near.agent!r}' if near.agent else 'the agent that was run'}"
    shown = difference(near.args, args)
    return (
        f"{call}: {reason}. The real tool was not run."
        f"{f'{chr(10)}The nearest recording has other arguments:{chr(10)}{shown}' if shown else ''}"
    )


def _short(args: dict[str, Any]) -> str:
    text = canonical(args)
    return text if len(text) <= LISTED_CHARACTERS else f"{text[:LISTED_CHARACTERS]}..."


def _listed(texts: Iterable[str]) -> str:
    shown = list(texts)
    return f"{', '.join(shown[:LISTED])}{' and others' if len(shown) > LISTED else ''}"


def nearest(recordings: Iterable[Recording], tool: str, args: dict[str, Any], agent: str) -> Recording | None:
    """The recording of the same tool whose arguments are most like these, those of the same sub-agent first."""
    same = [recording for recording in recordings if recording.tool == tool]
    near = [recording for recording in same if recording.agent == agent] or same
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(canonical(args)[:COMPARED_CHARACTERS])
    best: Recording | None = None
    best_score = -1.0
    for recording in near[:COMPARED]:
        matcher.set_seq1(canonical(recording.args)[:COMPARED_CHARACTERS])
        score = sum(key in args and args[key] == value for key, value in recording.args.items()) + matcher.quick_ratio()
        if score > best_score:
            best, best_score = recording, score
    return best


def difference(recorded: dict[str, Any], asked: dict[str, Any]) -> str:
    """A unified diff of two sets of arguments, of a size that a person reads; empty if they are equal."""
    lines = list(
        difflib.unified_diff(list(_lines(recorded)), list(_lines(asked)), "recorded", "asked", n=2, lineterm="")
    )
    if len(lines) > SHOWN_LINES:
        lines[SHOWN_LINES:] = [f"... and {len(lines) - SHOWN_LINES} more lines"]
    return "\n".join(lines)


def _lines(args: dict[str, Any]) -> Iterator[str]:
    """Arguments as lines; a long one is cut into several, so that what differs in it is seen."""
    for number, line in enumerate(canonical(args, indent=2).split("\n")):
        if number >= READ_LINES:
            return
        for start in range(0, min(len(line), READ_LINES * SHOWN_WIDTH), SHOWN_WIDTH):
            yield line[start : start + SHOWN_WIDTH]
