"""The HTML report of a test session: who answered each tool call of each test, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.evals.reports._report import check_writable, load_template, write_text
from hookline.evals.reports._sessions import TestRecord, count_of, unused_of
from hookline.evals.running import Provenance

__all__ = ["prepare_report", "render_session_report", "write_session_report"]


@dataclass(frozen=True, kw_only=True)
class SessionTotals:
    """Sums over all tests of a session.

    Attributes:
        tests: Tests that used hookline.
        others: Tests that did not.
        failed: Tests that used it and failed.
        calls: Tool calls.
        mocked: Calls that a mock answered instead of the tool.
        real: Calls in which the tool ran.
        refused: Calls that were refused for want of a rule.
        elsewhere: Calls that hooks other than the mocks answered or denied.
        faults: Faults that struck.
        cassettes: Cassettes that were used.
        written: Cassettes that were written.
        misses: Calls that a cassette could not answer.
        unused: Recordings that no test asked for.
    """

    tests: int
    others: int
    failed: int
    calls: int
    mocked: int
    real: int
    refused: int
    elsewhere: int
    faults: int
    cassettes: int
    written: int
    misses: int
    unused: int


def prepare_report(path: str | Path) -> Path:
    """Return the absolute path of a report if it can be written there. Nothing is written yet.

    Args:
        path: The file.

    Raises:
        ReportError: If the file cannot be written.
        MissingExtraError: If the extra `cli` is not installed.
    """
    _template()
    return check_writable(path)


def write_session_report(
    path: str | Path, records: Sequence[TestRecord], *, tests: int = 0, provenance: Provenance | None = None
) -> Path:
    """Write the report to a file.

    Args:
        path: The file; one that exists is replaced.
        records: The records of the tests that used hookline.
        tests: The number of all tests, with those that did not use it.
        provenance: When, with which versions and by which command the tests were run.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If the file cannot be written.
        MissingExtraError: If the extra `cli` is not installed.
    """
    return write_text(path, render_session_report(records, tests=tests, provenance=provenance))


def render_session_report(
    records: Sequence[TestRecord], *, tests: int = 0, provenance: Provenance | None = None
) -> str:
    """Render the report as HTML: no network, no external fonts or scripts, everything shown is escaped.

    Args:
        records: The records of the tests that used hookline, in any order.
        tests: The number of all tests, with those that did not use it.
        provenance: When, with which versions and by which command the tests were run.

    Raises:
        MissingExtraError: If the extra `cli` is not installed.
    """
    # Workers report in any order; the page has the order of the files.
    ordered = sorted(records, key=lambda each: (each.nodeid.partition("::")[0], each.line, each.nodeid))
    files: dict[str, list[TestRecord]] = {}
    for record in ordered:
        files.setdefault(record.nodeid.partition("::")[0], []).append(record)
    page: str = _template().render(
        files=files, totals=_totals(ordered, tests), unused=unused_of(ordered), made=provenance
    )
    return page


def _totals(records: Sequence[TestRecord], tests: int) -> SessionTotals:
    used = [each.cassette for each in records if each.cassette is not None]
    return SessionTotals(
        tests=len(records),
        others=max(tests - len(records), 0),
        failed=sum(not each.ok for each in records),
        calls=sum(each.mocked + each.real + each.refused + each.elsewhere for each in records),
        mocked=sum(each.mocked for each in records),
        real=sum(each.real for each in records),
        refused=sum(each.refused for each in records),
        elsewhere=sum(each.elsewhere for each in records),
        faults=sum(len(each.faults) for each in records),
        cassettes=len({each.path for each in used}),
        written=len({each.path for each in used if each.written}),
        misses=sum(len(each.misses) for each in used),
        unused=len(unused_of(records)),
    )


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _template() -> Any:
    return load_template("session_report.html.j2", seconds=_seconds, plural=count_of)
