"""Show how far a run is: a bar on a terminal, a line every some seconds elsewhere."""

from __future__ import annotations

import os
import threading
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hookline.evals.running import TaskResult

__all__ = ["RunProgress", "describe_progress"]

SECONDS = 10.0
"""Seconds between two lines."""


def describe_progress(*, done: int, total: int, failed: int, cost_usd: float, seconds_left: float | None) -> str:
    """Say how far a run is, in a line.

    Args:
        done: Tasks that have ended.
        total: All tasks.
        failed: Tasks that failed.
        cost_usd: What they have cost.
        seconds_left: The time that the rest will take; `None` if nothing has ended yet.
    """
    parts = [f"{done:,} of {total:,} tasks done", f"{failed:,} failed"]
    parts += [f"{cost_usd:.4g} USD"] if cost_usd else []
    parts += [f"about {_format_time(seconds_left)} left"] if seconds_left is not None and done < total else []
    return ", ".join(parts)


class RunProgress:
    """Counts results, and shows the counts while a run lasts.

    Args:
        console: Where it is shown: as a bar, or, if that is no terminal or the log of a CI server, as lines.
        every: Seconds between two lines.
    """

    def __init__(self, console: Console, *, every: float = SECONDS) -> None:
        self._console = console
        # CI servers that show colours count as terminals, but their logs keep every state of a bar.
        self._lines = not console.is_terminal or bool(os.environ.get("CI"))
        self._every = every
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[figures]}"),
            console=console,
            disable=self._lines,
        )
        self._task: TaskID | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._total = self._done = self._done_before = self._failed = 0
        self._cost_usd = 0.0
        self._began = monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        if self._lines:
            self._thread = threading.Thread(target=self._print_lines, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._bar.stop()

    def begin(self, name: str, *, total: int, done: int = 0, cost_usd: float = 0.0) -> None:
        """Begin to count the tasks of a run.

        Args:
            name: What is run.
            total: The number of its tasks.
            done: How many have ended before.
            cost_usd: What they have cost.
        """
        self._total, self._done, self._failed, self._cost_usd = total, done, 0, cost_usd
        self._began, self._done_before = monotonic(), done
        self._task = self._bar.add_task(name, total=total, completed=done, figures="")

    def advance(self, result: TaskResult) -> None:
        """Count a result."""
        self._done += 1
        self._failed += not result.ok
        self._cost_usd += result.spent_usd or 0.0
        if self._task is not None:
            figures = [f"{self._failed:,} failed"] if self._failed else []
            figures += [f"{self._cost_usd:.4g} USD"] if self._cost_usd else []
            left = self._seconds_left()
            figures += [f"{_format_time(left)} left"] if left is not None and left > 1 else []
            self._bar.update(self._task, advance=1, figures=", ".join(figures))

    def _seconds_left(self) -> float | None:
        ran = self._done - self._done_before
        return (monotonic() - self._began) / ran * (self._total - self._done) if ran else None

    def _print_lines(self) -> None:
        while not self._over.wait(self._every):
            if self._total:
                self._console.print(f"hookline: {self.line()}", style="dim", soft_wrap=True, highlight=False)

    def line(self) -> str:
        """Return how far the run is, in a line."""
        return describe_progress(
            done=self._done,
            total=self._total,
            failed=self._failed,
            cost_usd=self._cost_usd,
            seconds_left=self._seconds_left(),
        )


def _format_time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
