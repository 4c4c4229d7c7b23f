"""`PromptInjectionScan` over hostile texts: the time must be in proportion to the text, whatever it is made of."""

from __future__ import annotations

from benchmarks.harness import Row, Timer, interleave, statement
from hookline.ready._injections import find_injections

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


async def bench(rounds: int) -> list[Row]:
    cases: dict[str, Timer] = {}
    for name, unit in UNITS.items():
        cases[f"{name}, {SHORT:,} characters"] = scan(unit * (SHORT // len(unit)))
        cases[f"{name}, {LONG:,} characters"] = scan(unit * (LONG // len(unit)))
    samples = await interleave(cases, max(3, rounds // 5))
    rows = []
    for name in UNITS:
        short, long = f"{name}, {SHORT:,} characters", f"{name}, {LONG:,} characters"
        rows += [samples.row(short), samples.row(long, short, at_most=TWICE)]
    return rows


def scan(text: str) -> Timer:
    return statement("find_injections(text)", unroll=1, find_injections=find_injections, text=text)
