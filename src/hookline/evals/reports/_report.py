"""The HTML report of runs: one self-contained page with the verdict, figures, and every task with its waterfall."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hookline.errors import MissingExtraError
from hookline.evals._canonical import canonical
from hookline.evals._costs import UNKNOWN
from hookline.evals.errors import ReportError
from hookline.evals.reports._report_rows import ReportRow, TaskIndex, row_chunks
from hookline.evals.reports._verdict import judge_runs
from hookline.evals.running import Comparison, Mode, SuiteRun
from hookline.evals.statistics import CheckStatistics, Estimate, RunStatistics, TagStatistics
from hookline.evals.trajectories import CallRow, Coverage

__all__ = [
    "check_writable",
    "duration",
    "load_template",
    "render_report",
    "report_parts",
    "write_parts",
    "write_report",
    "write_text",
    "write_whole",
]

NAMES: dict[Mode, str] = {
    "real": "(a) real tools",
    "replayed": "(b) replayed",
    "spy": "real tools",
    "record": "real tools, recorded",
    "replay": "replayed from cassettes",
    "strict": "strictly mocked",
}


OPENED = 3
"""Failed tasks that the page shows in full."""

MOST_FIGURES = 200
"""Checks or tags of which the page shows figures. Where there are more, they are texts of single tasks."""

DATA_MARK = "<!-- data -->"
"""Where in the template the data and the script of the page stand."""


@dataclass(frozen=True, kw_only=True)
class SuiteTools:
    """The tools of a suite, with the number of their calls and who answered them.

    Attributes:
        coverage: How often each was called in the first run.
        answered: For each run its mode, and how many calls were mocked, real and refused.
    """

    coverage: Coverage
    answered: list[tuple[Mode, int, int, int]]

    @property
    def tools(self) -> list[tuple[str, int, str]]:
        """Each tool with its calls, and who answered them: `real`, `mocked`, `both`, `refused`, `never`."""
        found = self.coverage
        paths = [*found.discovered, *found.unknown]
        return [(path.removeprefix(f"{found.suite}/"), found.called.get(path, 0), self._kind(path)) for path in paths]

    def _kind(self, path: str) -> str:
        found = self.coverage
        if path not in found.called:
            return "never"
        if path in found.mocked:
            return "both" if path in found.real else "mocked"
        return "real" if path in found.real else "refused"


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """A check or a tag, with its figures for each model.

    Attributes:
        name: Its name.
        tasks: The tasks that have it.
        cells: Its figures; `None` for a model that never met it.
    """

    name: str
    tasks: int
    cells: list[CheckStatistics | TagStatistics | None]


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """The figures of all checks or of all tags, with a column for each model.

    Attributes:
        title: What its rows are.
        models: The models.
        rows: Its rows.
    """

    title: str
    models: list[str]
    rows: list[FigureRow]


def write_report(path: str | Path, runs: Sequence[SuiteRun], comparison: Comparison | None = None) -> Path:
    """Write the report to a file. It needs no network, and memory for the rows of the tasks only.

    Args:
        path: The file; one that exists is replaced, at once and as a whole.
        runs: The runs to show. Runs of the same tasks are shown side by side.
        comparison: The comparison of two runs.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If the file cannot be written.
        MissingExtraError: If the extra `cli` is not installed.
    """
    target = check_writable(path)
    write_whole(target, (text.encode("utf-8", "backslashreplace") for text in report_parts(runs, comparison)))
    return target


def check_writable(path: str | Path) -> Path:
    """Return the absolute path of a report if it can be written there.

    Raises:
        ReportError: If the file cannot be written.
    """
    target = Path(path).absolute()
    try:
        if target.is_dir():
            raise ReportError(str(target), "it is a folder")
        if not target.parent.is_dir():
            raise ReportError(str(target), f"there is no folder {target.parent}")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise ReportError(str(target), "permission denied")
    except OSError as error:  # a name that no file can have
        raise ReportError(str(target), error.strerror or str(error)) from error
    return target


def write_text(path: str | Path, text: str) -> Path:
    """Write the text of a report to a file, and return its absolute path.

    Raises:
        ReportError: If the file cannot be written.
    """
    target = check_writable(path)
    try:
        # Models and tools may return lone surrogates, which UTF-8 does not have.
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ReportError(str(target), error.strerror or str(error)) from error
    return target


def write_whole(target: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace a file at once and as a whole. Pipes and devices are written to directly.

    Args:
        target: The file.
        data: Its content, or the parts of it.

    Raises:
        ReportError: If it cannot be written.
    """
    parts = [data] if isinstance(data, bytes) else data
    write_parts(target, lambda file: file.writelines(parts))


def write_parts(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file at once and as a whole, with what a function writes piece by piece.

    Args:
        target: The file. Pipes and devices are written to directly.
        write: Writes into a binary file. If it raises, the file stays as it was.

    Raises:
        ReportError: If it cannot be written.
    """
    half = None
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                write(file)
            return
        whole = Path(os.path.realpath(target))  # replace the target of a link, not the link
        name = hashlib.blake2b(os.fsencode(whole.name), digest_size=8).hexdigest()
        half = whole.with_name(f".hookline-{name}-{os.getpid()}.half")  # a hash, since the name itself may be too long
        with half.open("wb") as file:
            write(file)
        if whole.exists():
            shutil.copymode(whole, half)
        half.replace(whole)
    except BaseException as error:
        if half is not None:
            half.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ReportError(str(target), error.strerror or str(error)) from error
        raise


def render_report(runs: Sequence[SuiteRun], comparison: Comparison | None = None) -> str:
    """Render the report as HTML: no network, no external fonts or scripts, nothing that is shown is obeyed.

    Args:
        runs: The runs to show.
        comparison: The comparison of two runs.

    Raises:
        MissingExtraError: If the extra `cli` is not installed.
    """
    return "".join(report_parts(runs, comparison))


def report_parts(runs: Sequence[SuiteRun], comparison: Comparison | None = None) -> Iterator[str]:
    """Yield the report in parts: what is above the tasks, the packed details, the rows, and the script that shows them.

    Raises:
        MissingExtraError: If the extra `cli` is not installed.
    """
    index = TaskIndex(runs, comparison)
    statistics = [RunStatistics.of(run) for run in runs]
    template = load_template("report.html.j2", duration=duration, money=money, percent=percent, count=count)
    script = _read("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page: str = template.render(
        script_digest=digest,
        runs=[
            {
                "mode": run.mode,
                "name": NAMES[run.mode],
                "totals": run.totals,
                "statistics": figures,
                "seed": run.seed,
            }
            for run, figures in zip(runs, statistics, strict=True)
        ],
        tables=_figure_tables(statistics[0]) if statistics else [],
        verdict=judge_runs(runs, comparison),
        provenance=[run.provenance for run in runs[:1]],
        index=index,
        coverage=_coverage(runs),
        faults=_faults(runs),
        names=NAMES,
        comparison=comparison,
    )
    head, mark, tail = page.partition(DATA_MARK)
    assert mark, "the template of the report has lost its mark"
    yield head
    rows: list[ReportRow] = []
    for chunk in row_chunks(index):
        rows += chunk.rows
        yield f'<script type="text/plain" id="chunk-{chunk.number}">{chunk.packed}</script>\n'
    # The rows come last, when the place of every detail is known.
    shown = {
        "names": NAMES,
        "runs": [run.mode for run in runs],
        "suites": index.suites,
        "models": index.models,
        "opened": min(index.failed, OPENED) if index.failed or len(index) != 1 else 1,
        "rows": rows,
    }
    # Inside of a script element only `</` and `<!--` would be read as markup.
    data = canonical(shown, sort_keys=False).replace("<", "\\u003c")
    yield f'<script type="application/json" id="rows">{data}</script>\n<script>{script}</script>'
    yield tail


def _figure_tables(statistics: RunStatistics) -> list[FigureTable]:
    """Return the figures by check and by tag; nothing about a single check, whose figures are those of the run."""
    models = [each.model for each in statistics.models]
    checks = [{row.check: row for row in each.checks} for each in statistics.models]
    tags = [{row.tag: row for row in each.tags} for each in statistics.models]
    tables = [_figure_table("Check", models, checks), _figure_table("Tag", models, tags)]
    return [table for table, least in zip(tables, (2, 1), strict=True) if least <= len(table.rows) <= MOST_FIGURES]


def _figure_table(
    title: str, models: list[str], found: Sequence[Mapping[str, CheckStatistics | TagStatistics]]
) -> FigureTable:
    names = dict.fromkeys(name for rows in found for name in rows)
    return FigureTable(
        title=title,
        models=models,
        rows=[
            FigureRow(
                name=name,
                tasks=max(rows[name].tasks for rows in found if name in rows),
                cells=[rows.get(name) for rows in found],
            )
            for name in names
        ],
    )


def _read(name: str) -> str:
    return importlib.resources.files("hookline.evals.reports").joinpath(name).read_text(encoding="utf-8")


def _coverage(runs: Sequence[SuiteRun]) -> list[SuiteTools]:
    """Return the tools of each suite as the first run called them, and who answered in each run."""
    if not runs:
        return []
    return [
        SuiteTools(
            coverage=first,
            answered=[
                (run.mode, sum(same.mocked.values()), sum(same.real.values()), sum(same.refused.values()))
                for run in runs
                for same in run.coverage
                if same.suite == first.suite
            ],
        )
        for first in runs[0].coverage
    ]


def _faults(runs: Sequence[SuiteRun]) -> list[tuple[str, str, list[CallRow]]]:
    """Return which faults struck which tools, in the first run in which any did; a replay meets the same ones."""
    struck = next((run.faults_by_tool for run in runs if run.faults), {})
    return [(fault, tool, calls) for (fault, tool), calls in sorted(struck.items())]


def duration(milliseconds: float) -> str:
    """Format a time for people: `12.3 µs`, `4.56 ms`, `457 ms`, `1.23 s`."""
    if milliseconds < 1:
        return f"{milliseconds * 1000:.1f} µs"
    if milliseconds < 100:
        return f"{milliseconds:.2f} ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.2f} s"


def money(usd: float | None) -> str:
    """Format an amount of US dollars for people: `$0.0012`, `$12.30`; `unknown` for `None`."""
    if usd is None:
        return UNKNOWN
    return f"${usd:.4f}" if 0 < usd < 0.01 else f"${usd:,.2f}"


def percent(found: Estimate | None) -> str:
    """Format a share with its 95 % interval: `75 % (47 to 91)`."""
    if found is None:
        return "-"
    return f"{100 * found.mean:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"


def count(number: float) -> str:
    """Format a number with separators for thousands, without digits after the point if it is large."""
    return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:,.1f}"


@functools.cache
def load_template(name: str, **filters: Callable[..., str]) -> Any:
    """Load a Jinja template of this package.

    Args:
        name: The name of its file.
        filters: Filters that the template uses, by name.

    Raises:
        MissingExtraError: If the extra `cli` is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise MissingExtraError("cli", "Writing an HTML report") from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(filters)
    return environment.from_string(_read(name))
