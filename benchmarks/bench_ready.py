"""`PromptInjectionScan` and `redact` over hostile texts: the time must be in proportion to the text."""

from __future__ import annotations

import re

from benchmarks.harness import Row, Timer, interleave, statement
from hookline.builtin import PATTERNS
from hookline.builtin._injection import find_injections

UNITS = {
    "letters": "a",
    "spaces": " ",
    "phrases": "ignore previous instructions. ",
    "half phrases": "ignore your x y ",
    "images": "![](http://a?",
    "base64": "QUJD",
}
SHORT, LONG = 20_000, 500_000
TWICE = 2 * LONG / SHORT
"""Twice what is in proportion: memory and caches take their part, a regular expression that runs away takes more."""


SECRETS = {"email": "a@b.", "card": "1 ", "key": "sk-"}
"""A text for each of the named patterns of `redact` that nearly matches again and again."""


async def bench(rounds: int) -> list[Row]:
    cases: dict[str, Timer] = {}
    names = [*UNITS, *(f"redact {name}" for name in SECRETS)]
    for name, unit in SECRETS.items():
        for length in (SHORT, LONG):
            cases[f"redact {name}, {length:,} characters"] = search(PATTERNS[name], unit * (length // len(unit)))
    for name, unit in UNITS.items():
        cases[f"{name}, {SHORT:,} characters"] = scan(unit * (SHORT // len(unit)))
        cases[f"{name}, {LONG:,} characters"] = scan(unit * (LONG // len(unit)))
    samples = await interleave(cases, max(3, rounds // 5))
    rows = []
    for name in names:
        short, long = f"{name}, {SHORT:,} characters", f"{name}, {LONG:,} characters"
        rows += [samples.row(short), samples.row(long, short, at_most=TWICE)]
    return rows


def scan(text: str) -> Timer:
    return statement("find_injections(text)", unroll=1, find_injections=find_injections, text=text)


def search(pattern: re.Pattern[str], text: str) -> Timer:
    return statement("sum(1 for _ in pattern.finditer(text))", unroll=1, pattern=pattern, text=text)
