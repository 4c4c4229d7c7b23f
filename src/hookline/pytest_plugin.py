"""Pytest plugin: fixtures, markers and options to mock, record and replay tool calls.

pytest loads this module in every run of everybody who has hookline installed. So it imports nothing but pytest; what a
test needs is imported when the test asks for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from hookline import Hooks
    from hookline.evals import Cassette, EventRecorder, ModelTape, ToolMocks
    from hookline.evals.reports import CassetteUse, TestRecord, WatchedCassette
    from hookline.evals.running import Provenance
    from hookline.redaction import Redacting

T = TypeVar("T")

SUFFIXES = (".yaml", ".yml")
NAME_BYTES = 180
"""Longest file name of a test; file systems allow 255 bytes, and a cassette's neighbours have longer names."""
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]+')
"""What some file system does not allow in a name."""


# No dataclasses in here: pytest loads this module for everybody, and making one takes longer than all the rest of it.


class Tape:
    """The arguments of `@pytest.mark.tool_cassette`."""

    def __init__(
        self,
        name_or_path: str | Path | None = None,
        *,
        mode: str | None = None,
        matching: str | None = None,
        ignore: Sequence[str] | None = None,
        allow_refused: bool = False,
        hookline_unused_ok: bool = False,
    ) -> None:
        self.allow_refused = _check_flag("allow_refused", allow_refused)
        self.unused_ok = _check_flag("hookline_unused_ok", hookline_unused_ok)
        given: object = name_or_path
        if given is not None and (not isinstance(given, str | Path) or Path(given).name in ("", "..")):
            raise TypeError(f"name_or_path is a name or a path; got {given!r}")
        self.name_or_path = name_or_path
        said = {"mode": mode, "matching": matching, "ignore": ignore}
        self.options: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        """Keyword arguments for the cassette."""


class Mocking:
    """The arguments of `@pytest.mark.tool_mocks`."""

    def __init__(
        self,
        *,
        strict: bool | None = None,
        seed: int | None = None,
        allow_refused: bool = False,
        hookline_unused_ok: bool = False,
    ) -> None:
        self.allow_refused = _check_flag("allow_refused", allow_refused)
        self.unused_ok = _check_flag("hookline_unused_ok", hookline_unused_ok)
        if not isinstance(strict, bool | None):
            raise TypeError(f"strict is True or False; got {strict!r}")
        if not isinstance(seed, int | None) or isinstance(seed, bool):
            raise TypeError(f"seed is a whole number; got {seed!r}")
        self.strict = strict
        self.seed = seed


def _check_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False; got {value!r}")
    return value


def marker_arguments(item: pytest.Item, name: str, kind: type[T]) -> T:
    """Return the arguments of a test's nearest marker of that name; a `TypeError` if they are wrong."""
    marker = item.get_closest_marker(name)
    try:
        return kind() if marker is None else kind(*marker.args, **marker.kwargs)
    except TypeError as error:
        said = str(error).replace(f"{kind.__name__}.__init__()", "it")
        raise TypeError(f"@pytest.mark.{name} of {item.nodeid} cannot be understood: {said}.") from error


def cassette_path(item: pytest.Item, tape: Tape) -> Path:
    """Return the path of a test's cassette: `cassettes/<module>/<test>.yaml` beside the test file by default."""
    given, beside = tape.name_or_path, item.path.parent
    if given is not None and (isinstance(given, Path) or "/" in given or given.endswith(SUFFIXES)):
        path = beside / given
        return _absolute(path if path.suffix in SUFFIXES else path.with_name(f"{path.name}.yaml"))
    folder = Path(item.config.getini("hookline_cassette_dir"))
    beside = folder / os.path.relpath(beside, item.config.rootpath) if folder.is_absolute() else beside / folder
    return _absolute(beside / item.path.stem / f"{_file_name(given or _test_name(item))}.yaml")


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _test_name(item: pytest.Item) -> str:
    function, bracket, parameters = item.nodeid.partition("::")[2].partition("[")
    return f"{function.replace('::', '.')}{bracket}{parameters}"


def _file_name(name: str) -> str:
    """Return a file name that every file system takes, different for every test."""
    clean = FORBIDDEN.sub("-", name).encode()[:NAME_BYTES].decode(errors="ignore").rstrip(". ")
    if clean == name:
        return name
    return f"{clean}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def shown_path(path: Path, root: Path) -> str:
    """Return a path as it is shown: relative to the root of the tests, if it is below it."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


SHOWN = 5
"""How many refused calls a failure shows."""

MODES = ("none", "once", "new_episodes", "all", "rewrite")

MARKERS = (
    "tool_cassette(name_or_path=None, *, mode=None, matching=None, ignore=None, allow_refused=False, "
    "hookline_unused_ok=False): replay tool calls from a cassette, or record them, as its mode says (hookline)",
    "tool_mocks(*, strict=None, seed=None, allow_refused=False, hookline_unused_ok=False): "
    "options of the fixture `tool_mocks` for this test (hookline)",
)


class Use:
    """The mocks, cassette and recorder that a running test uses, and its outcome."""

    def __init__(self) -> None:
        self.mocks: ToolMocks | None = None
        self.recorder: EventRecorder | None = None
        self.cassette: CassetteUse | None = None
        self.model_tape: ModelTape | None = None
        self.tape: WatchedCassette | None = None
        self.allow_refused = self.unused_ok = self.called = False
        self.redaction: Redacting | None = None
        self.seed: int | None = None
        self.strict = False
        self.outcome = "passed"
        self.message = ""
        self.duration_s = 0.0


USE = pytest.StashKey[Use]()
REWRITES = pytest.StashKey[dict[Path, str]]()
"""Which test, of those that were collected, may rewrite a cassette: the first that uses it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("hookline", "tool calls of agents (hookline)")
    group.addoption(
        "--hookline-record",
        choices=MODES,
        help="what cassettes record: none, once (only new files; the default), new_episodes (missing calls), "
        "all (all calls again), rewrite (all calls again, and drop unused recordings)",
    )
    group.addoption(
        "--hookline-strict",
        action="store_true",
        help="refuse tool calls that no rule answers and no cassette answers or records, and fail the test",
    )
    group.addoption("--hookline-seed", type=int, metavar="N", help="seed of the faults (default: 0)")
    group.addoption(
        "--hookline-report", metavar="FILE.html", help="write an HTML report of the tool calls that the fixtures saw"
    )
    parser.addini(
        "hookline_cassette_dir",
        "folder of the cassettes: a relative path is beside each test file, an absolute path is one folder for all",
        default="cassettes",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and collect the records of tests unless this process is a worker."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Gatherer(_report_path(config)), "hookline-gatherer")


def _report_path(config: pytest.Config) -> Path | None:
    given = config.getoption("hookline_report")
    if given is None:
        return None
    from hookline.errors import HooklineError
    from hookline.evals.reports import prepare_report

    try:
        return prepare_report(config.invocation_params.dir / given)
    except HooklineError as error:
        raise pytest.UsageError(f"--hookline-report: {error}") from error


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which of the options were given."""
    shown = [
        f"{name} {value}" if value is not True else name
        for name in ("record", "strict", "seed", "report")
        if (value := config.getoption(f"hookline_{name}")) not in (None, False)
    ]
    return f"hookline: {', '.join(shown)}" if shown else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let a marked test use its cassette, whether or not it names the fixture."""
    names = getattr(item, "fixturenames", None)
    if names is not None and "cassette" not in names and item.get_closest_marker("tool_cassette"):
        # A list of its own: the parameters of one function share theirs.
        item.fixturenames = [*names, "cassette"]  # type: ignore[attr-defined]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which test may rewrite a cassette that several use."""
    owners = session.config.stash[REWRITES] = {}
    for item in session.items:
        if "cassette" in getattr(item, "fixturenames", ()):
            with contextlib.suppress(TypeError):  # the test will say so itself
                owners.setdefault(cassette_path(item, marker_arguments(item, "tool_cassette", Tape)), item.nodeid)


@pytest.fixture
def hooks() -> Hooks:
    """An empty `Hooks` bundle. Add hooks with its decorators, and pass it to a run."""
    from hookline import Hooks

    return Hooks("test")


@pytest.fixture
def event_recorder(request: pytest.FixtureRequest) -> Iterator[EventRecorder]:
    """An `EventRecorder` that records all events and, during the test, every handler run."""
    from hookline.evals import EventRecorder

    with EventRecorder() as recorder:
        _use_of(request).recorder = recorder
        yield recorder


@pytest.fixture
def tool_mocks(request: pytest.FixtureRequest) -> ToolMocks:
    """An empty `ToolMocks`. Calls without a rule go to the test's cassette, if it has one."""
    from hookline.evals import ToolMocks

    config, said = request.config, _marker_arguments(request.node, "tool_mocks", Mocking)
    given = config.getoption("hookline_seed")
    seed = said.seed if said.seed is not None else given if given is not None else 0
    strict = said.strict if said.strict is not None else config.getoption("hookline_strict")
    taped = request.node.get_closest_marker("tool_cassette") is not None
    mocks = ToolMocks(
        "tool_mocks",
        strict=strict,
        seed=seed,
        case=request.node.nodeid,
        cassette=request.getfixturevalue("cassette") if taped else None,
    )
    use = _use_of(request)
    use.mocks, use.seed, use.strict = mocks, seed, strict
    _note_leave(use, said)
    return mocks


@pytest.fixture(scope="session")
def cassette_options() -> dict[str, Any]:
    """Keyword arguments for all cassettes. Override this fixture to set yours."""
    return {}


@pytest.fixture
def cassette(request: pytest.FixtureRequest, cassette_options: dict[str, Any]) -> Iterator[Cassette]:
    """The test's `Cassette`. Its file is read now, and written at the end of the test if something was recorded."""
    from hookline.errors import HooklineError
    from hookline.evals.errors import StaleRecordingWarning
    from hookline.evals.reports import CassetteUse, WatchedCassette, use_of

    node, tape = request.node, _marker_arguments(request.node, "tool_cassette", Tape)
    path = cassette_path(node, tape)
    shown = shown_path(path, request.config.rootpath)
    strict = request.config.getoption("hookline_strict") or _marker_arguments(node, "tool_mocks", Mocking).strict
    options = {"mode": "once", "changed_tools": "refuse" if strict else "warn", **cassette_options}
    if (ordered := request.config.getoption("hookline_record")) is not None:
        options["mode"] = ordered
    options.update(tape.options)
    use, mode = _use_of(request), str(options["mode"])
    _note_leave(use, tape)
    use.cassette = CassetteUse(path=shown, mode=mode)
    owner = request.config.stash.get(REWRITES, {}).get(path, node.nodeid)
    if mode == "rewrite" and owner != node.nodeid:
        raise _failure(
            f"{shown} is rewritten by {owner}; {node.nodeid} would drop what that test records. "
            "Give each of them its own cassette, or record missing calls with new_episodes."
        )
    try:
        tool_cassette = WatchedCassette(f"{path.parent.name}/{path.stem}", path=path, **options)
    except HooklineError as error:
        raise _failure(str(error)) from None
    use.tape = tool_cassette
    yield tool_cassette
    written = False
    try:
        written = tool_cassette.save() is not None
    except HooklineError as error:
        raise _failure(str(error)) from None
    finally:
        use.cassette = use_of(tool_cassette, path=shown, mode=mode, written=written)
    for change in tool_cassette.stale.values() if options["changed_tools"] == "warn" else ():
        node.warn(StaleRecordingWarning(f"{shown}: {change}. Record it again: --hookline-record=rewrite."))


@pytest.fixture
def model_tape(request: pytest.FixtureRequest, cassette_options: dict[str, Any]) -> Iterator[ModelTape]:
    """The test's `ModelTape`: pass `model_tape.hooks` to a run. It has the mode of cassettes, and their `redact`.

    Its file is `cassettes/<module>/<test>.tape.yaml`. A test that passed fails if a question had no recording.
    """
    from hookline.errors import HooklineError
    from hookline.evals import ModelTape

    node = request.node
    path = cassette_path(node, Tape()).with_suffix(".tape.yaml")
    options: dict[str, Any] = {name: cassette_options[name] for name in ("mode", "redact") if name in cassette_options}
    if (ordered := request.config.getoption("hookline_record")) is not None:
        options["mode"] = ordered
    try:
        found = ModelTape(f"{path.parent.name}/{path.name.removesuffix('.tape.yaml')}", path=path, **options)
    except HooklineError as error:
        raise _failure(str(error)) from None
    _use_of(request).model_tape = found
    yield found
    try:
        found.save()
    except HooklineError as error:
        raise _failure(str(error)) from None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed though tool calls were refused, or though its mocks or its cassette were in no run.

    A test that failed, was skipped, or is expected to fail keeps its own reason.
    """
    torn_down = yield
    use = item.stash.get(USE, None)
    if use is not None and use.called and use.outcome in ("passed", "xpassed"):
        problem = _refused_of(use) if not use.allow_refused else ""
        problem = problem or _unasked_of(use)
        problem = problem or (_unused_of(use) if not use.unused_ok else "")
        if problem:
            raise _failure(problem)
    return torn_down


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what a test did into its last report: properties for JUnit, and a record for the session."""
    use = item.stash.get(USE, None)
    if use is None:
        return (yield)
    record = None
    if call.when == "teardown":
        # Not kept any longer: pytest holds on to its items until the session ends.
        del item.stash[USE]
        record = _record_of(item, use)
        item.user_properties.extend(_properties(record))
    report = yield
    _note(use, report)
    if report.when == "call" and report.failed and (refused := _refused_of(use)):
        report.sections.append(("hookline: tool calls that were refused", refused))
    if record is not None:
        from hookline.evals.reports import REDACTION, encode_record

        ended = record.with_outcome(use.outcome, use.message, use.duration_s, redaction=use.redaction or REDACTION)
        # What is added to a report goes along with it, also to another process.
        vars(report)["hookline_record"] = encode_record(ended)
    return report


def _provenance_of(config: pytest.Config, started: float) -> Provenance:
    """Return when, with which versions and by which command a session was run."""
    import shlex
    from datetime import UTC, datetime

    import msgspec

    from hookline.evals.running import Provenance
    from hookline.redaction import Redaction

    command = Redaction().text(shlex.join(["pytest", *map(str, config.invocation_params.args)]))
    made = Provenance.of((), command)
    return msgspec.structs.replace(
        made,
        started_at=datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        versions=made.versions | {"pytest": pytest.__version__},
    )


class Gatherer:
    """Collects the records of tests, from this process and its workers, for the summary and the report.

    Args:
        report: Where to write the report; `None` for nowhere.
    """

    def __init__(self, report: Path | None) -> None:
        self.report = report
        self.started = time.time()
        self.records: list[TestRecord] = []
        self.tests = 0
        self.trouble = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's record from its last report."""
        self.tests += report.when == "teardown"
        text = getattr(report, "hookline_record", None)
        if text is not None:
            from hookline.evals.reports import decode_record

            self.records.append(decode_record(text))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report."""
        if self.report is None or session.config.getoption("collectonly"):
            return
        from hookline.evals.errors import ReportError
        from hookline.evals.reports import write_session_report

        try:
            write_session_report(
                self.report,
                self.records,
                tests=self.tests,
                provenance=_provenance_of(session.config, self.started),
            )
        except ReportError as error:
            self.trouble = str(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say in one line what the tests did, if any of them used hookline."""
        records, verbosity = self.records, terminalreporter.config.get_verbosity()
        if records and verbosity > -2:
            from hookline.evals.reports import summary_of, unused_of

            terminalreporter.write_line(f"hookline: {summary_of(records)}")
            for line in unused_of(records) if verbosity > 0 else ():
                terminalreporter.write_line(f"  {line}")
        if self.trouble:
            terminalreporter.write_line(f"hookline: {self.trouble}", red=True)
        elif self.report is not None and not terminalreporter.config.getoption("collectonly"):
            terminalreporter.write_line(f"hookline: the report is {self.report}")


def _marker_arguments(item: pytest.Item, name: str, kind: type[T]) -> T:
    try:
        return marker_arguments(item, name, kind)
    except TypeError as error:
        raise _failure(str(error)) from None


def _failure(message: str) -> BaseException:
    """Return an exception that fails a test with a message alone, without a traceback of this plugin."""
    return pytest.fail.Exception(message, pytrace=False)


def _use_of(request: pytest.FixtureRequest) -> Use:
    use: Use = request.node.stash.setdefault(USE, Use())
    if use.redaction is None:
        use.redaction = _redaction_of(request)
    return use


def _redaction_of(request: pytest.FixtureRequest) -> Redacting:
    """Return the redaction of a test's cassette, for the report page too."""
    from hookline.evals.reports import REDACTION
    from hookline.redaction import as_redaction

    if request.config.getoption("hookline_report") is None:
        return REDACTION
    given = request.getfixturevalue("cassette_options").get("redact")
    return REDACTION if given is None else as_redaction(given)


def _record_of(item: pytest.Item, use: Use) -> TestRecord:
    from hookline.evals.reports import REDACTION, record_of

    return record_of(
        item.nodeid,
        line=(item.location[1] or 0) + 1,
        mocks=use.mocks,
        recorder=use.recorder,
        cassette=use.cassette,
        asked=() if use.tape is None else use.tape.asked,
        seed=use.seed,
        strict=use.strict,
        with_calls=item.config.getoption("hookline_report") is not None,
        redaction=use.redaction or REDACTION,
    )


def _note_leave(use: Use, said: Mocking | Tape) -> None:
    """Note what a marker allows; where a test has both markers, either may."""
    use.allow_refused |= said.allow_refused
    use.unused_ok |= said.unused_ok


def _refused_of(use: Use) -> str:
    """Describe tool calls that were refused, and what to do; empty if none was."""
    from hookline.evals.reports import refused_calls

    refused = refused_calls(use.mocks, use.tape, redaction=use.redaction)
    if not refused:
        return ""
    shown = [f"  {line}" for call in refused[:SHOWN] for line in call.splitlines()]
    more = [f"  and {len(refused) - SHOWN} more"] if len(refused) > SHOWN else []
    marker = "tool_mocks" if use.mocks is not None else "tool_cassette"
    return "\n".join(
        [
            f"{len(refused)} tool call{'' if len(refused) == 1 else 's'} of this test had no answer, and the model was "
            "told that the call failed:",
            *shown,
            *more,
            f"Answer it with a rule or a recording, or expect it: @pytest.mark.{marker}(allow_refused=True).",
        ]
    )


def _unasked_of(use: Use) -> str:
    """Describe questions that the model tape did not answer, and what to do; empty if there are none."""
    tape = use.model_tape
    if tape is None or not tape.misses:
        return ""
    number = len(tape.misses)
    return "\n".join(
        [
            f"{number} question{'' if number == 1 else 's'} of this test had no recording, and no model was asked:",
            *(f"  {line}" for miss in tape.misses[:SHOWN] for line in miss.splitlines()),
            *([f"  and {number - SHOWN} more"] if number > SHOWN else []),
            "Record them: --hookline-record=new_episodes.",
        ]
    )


def _unused_of(use: Use) -> str:
    """Describe fixtures that a test asked for and gave to no run; empty if there are none."""
    mocks, tape = use.mocks, use.tape
    if mocks is not None and not mocks.attached and (mocks.rules or mocks.faults):
        number = len(mocks.rules) + len(mocks.faults)
        what, how = f"`tool_mocks` has {number} rule{'' if number == 1 else 's'}", "hooks=[tool_mocks]"
        marker = "tool_mocks"
    elif tape is not None and not tape.attached and not (mocks is not None and mocks.attached):
        what, how = "The test has a cassette", "hooks=[cassette.hooks()], or hooks=[tool_mocks]"
        marker = "tool_cassette"
    else:
        return ""
    return (
        f"{what}, and no operation had it, so nothing was mocked or replayed. Give it to the run with {how}, or say "
        f"that this is meant: @pytest.mark.{marker}(hookline_unused_ok=True)."
    )


def _properties(record: TestRecord) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    found.extend((f"hookline_{name}", getattr(record, name)) for name in ("mocked", "real", "refused"))
    if record.elsewhere:
        found.append(("hookline_elsewhere", record.elsewhere))
    found.append(("hookline_faults", len(record.faults)))
    if record.cassette is not None:
        found.append(("hookline_cassette", record.cassette.path))
    return found


def _note(use: Use, report: pytest.TestReport) -> None:
    """Remember what a report says about the test's outcome; the three reports of a test come one after the other."""
    use.duration_s += report.duration
    use.called |= report.when == "call"
    expected_to_fail = hasattr(report, "wasxfail")
    if report.failed:
        use.outcome = "failed" if report.when == "call" else "error"
        crash = getattr(report.longrepr, "reprcrash", None)
        use.message = crash.message if crash is not None else report.longreprtext
    elif report.skipped:
        use.outcome = "xfailed" if expected_to_fail else "skipped"
    elif report.when == "call" and expected_to_fail:
        use.outcome = "xpassed"
