"""What a soak prints at its end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.soak.counting import Count
    from benchmarks.soak.durable import Soak

MOST_KINDS = 15
LINE = re.compile(r"\S+ \S+ \d+ (WARNING|ERROR|CRITICAL) (\S+): (.*)")
PARTICULAR = re.compile(r"(?<=store )\S+:/\S+|msg_\w+|op_\w+|trip\w+|\b[\w-]+-\d+-[0-9a-f]{12}\b|'[^']*'|\d+(\.\d+)?")


def report(soak: Soak, count: Count, log: Path) -> str:
    """Figures, one a line, and what the workers have logged, by kind."""
    lines = [(name, f"{value:,}") for name, value in soak.tally.items()]
    outages = [f"{len(soak.outages):,}"]
    if soak.outages:
        outages.append(f"of {min(soak.outages):.1f} to {max(soak.outages):.1f} s")
    lines.append(("outages of the database", " ".join(outages)))
    moods = ", ".join(f"{mood} {times}" for mood, times in sorted(soak.journal.moods.items()))
    lines += [("moods of receivers", moods), *((name, f"{value:,}") for name, value in count.figures.items())]
    width = max(len(name) for name, _ in lines)
    told = [f"{name.ljust(width)}  {value}" for name, value in lines]
    logged = Counter(kinds(log))
    told += ["", f"{sum(logged.values()):,} lines logged by workers, by kind:"]
    told += [f"{times:8,}  {kind}" for kind, times in logged.most_common(MOST_KINDS)]
    return "\n".join(told)


def kinds(log: Path) -> Iterator[str]:
    """What each line of a log says, without what is particular to it."""
    with log.open(errors="replace") as lines:
        for line in lines:
            if found := LINE.match(line):
                yield f"{found[1]} {found[2]}: {kind_of(found[3])}"
            elif line.startswith("Traceback"):
                yield "a traceback"


def kind_of(text: str) -> str:
    """A text without what is particular to it."""
    return PARTICULAR.sub("…", text)[:150]
