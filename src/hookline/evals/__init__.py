"""Evaluating agents: mocking, recording, replaying and breaking tool calls; running suites; judging what agents did.

Each name is imported from its home when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline.evals import faults
    from hookline.evals._argument_rules import ArgumentRule
    from hookline.evals._cassette_errors import (
        CassetteConflictError,
        CassetteError,
        CassetteFileError,
        CassetteVersionError,
        CassetteWriteError,
    )
    from hookline.evals._fault_errors import FaultDefinitionError, FaultFileError
    from hookline.evals._mock_errors import AnswerError, NeverMatchingRuleWarning
    from hookline.evals._recorder_errors import (
        EventWaitError,
        NotOneOperationError,
        UnrecordedOperationError,
        UnseenEventError,
    )
    from hookline.evals.answers import Answer
    from hookline.evals.cassette import Cassette
    from hookline.evals.clocks import RealClock, VirtualClock
    from hookline.evals.coverage import CallRow, Coverage
    from hookline.evals.errors import (
        CassetteFolderError,
        EventFileError,
        ForbiddenToolError,
        ReportError,
        RunFileError,
        SuiteFileError,
        UnknownSuiteError,
        UnknownTaskError,
    )
    from hookline.evals.event_files import read_events, write_events
    from hookline.evals.exporters import agentevals_messages, inspect_log, write_inspect_log
    from hookline.evals.fakes import Fake
    from hookline.evals.fault_files import FaultSpec, load_faults
    from hookline.evals.junit import junit_xml, write_junit
    from hookline.evals.limits import Limits
    from hookline.evals.matching import Matcher, match
    from hookline.evals.mocked_calls import FaultRule, FaultStrike, MockedCall
    from hookline.evals.mocks import ToolMocks
    from hookline.evals.recorder import EventRecorder, RecordedOperation, TimedExecution
    from hookline.evals.results import CheckResult, Comparison, Difference, SuiteRun, TaskOutcome, TaskResult, compare
    from hookline.evals.rules import Rule
    from hookline.evals.run_diff import DiffThresholds, RunDiff, TaskDiff, diff_runs
    from hookline.evals.run_files import SavedRun, load_run, save_run
    from hookline.evals.runner import Suite, SuiteRunner, cases_of, record, replay
    from hookline.evals.trajectory import (
        AlignedCall,
        MatchType,
        Trajectory,
        TrajectoryMatch,
        TrajectoryStep,
        assert_trajectory,
    )
    from hookline.redaction import Redaction

__all__ = [
    "AlignedCall",
    "Answer",
    "AnswerError",
    "ArgumentRule",
    "CallRow",
    "Cassette",
    "CassetteConflictError",
    "CassetteError",
    "CassetteFileError",
    "CassetteFolderError",
    "CassetteVersionError",
    "CassetteWriteError",
    "CheckResult",
    "Comparison",
    "Coverage",
    "DiffThresholds",
    "Difference",
    "EventFileError",
    "EventRecorder",
    "EventWaitError",
    "Fake",
    "FaultDefinitionError",
    "FaultFileError",
    "FaultRule",
    "FaultSpec",
    "FaultStrike",
    "ForbiddenToolError",
    "Limits",
    "MatchType",
    "Matcher",
    "MockedCall",
    "NeverMatchingRuleWarning",
    "NotOneOperationError",
    "RealClock",
    "RecordedOperation",
    "Redaction",
    "ReportError",
    "Rule",
    "RunDiff",
    "RunFileError",
    "SavedRun",
    "Suite",
    "SuiteFileError",
    "SuiteRun",
    "SuiteRunner",
    "TaskDiff",
    "TaskOutcome",
    "TaskResult",
    "TimedExecution",
    "ToolMocks",
    "Trajectory",
    "TrajectoryMatch",
    "TrajectoryStep",
    "UnknownSuiteError",
    "UnknownTaskError",
    "UnrecordedOperationError",
    "UnseenEventError",
    "VirtualClock",
    "agentevals_messages",
    "assert_trajectory",
    "cases_of",
    "compare",
    "diff_runs",
    "faults",
    "inspect_log",
    "junit_xml",
    "load_faults",
    "load_run",
    "match",
    "read_events",
    "record",
    "replay",
    "save_run",
    "write_events",
    "write_inspect_log",
    "write_junit",
]

_HOMES = {
    "_argument_rules": ("ArgumentRule",),
    "_cassette_errors": (
        "CassetteConflictError",
        "CassetteError",
        "CassetteFileError",
        "CassetteVersionError",
        "CassetteWriteError",
    ),
    "_fault_errors": (
        "FaultDefinitionError",
        "FaultFileError",
    ),
    "_mock_errors": (
        "AnswerError",
        "NeverMatchingRuleWarning",
    ),
    "_recorder_errors": (
        "EventWaitError",
        "NotOneOperationError",
        "UnrecordedOperationError",
        "UnseenEventError",
    ),
    "hookline.redaction": ("Redaction",),
    "answers": ("Answer",),
    "cassette": ("Cassette",),
    "clocks": (
        "RealClock",
        "VirtualClock",
    ),
    "coverage": (
        "CallRow",
        "Coverage",
    ),
    "errors": (
        "CassetteFolderError",
        "EventFileError",
        "ForbiddenToolError",
        "ReportError",
        "RunFileError",
        "SuiteFileError",
        "UnknownSuiteError",
        "UnknownTaskError",
    ),
    "event_files": (
        "read_events",
        "write_events",
    ),
    "exporters": (
        "agentevals_messages",
        "inspect_log",
        "write_inspect_log",
    ),
    "fakes": ("Fake",),
    "fault_files": (
        "FaultSpec",
        "load_faults",
    ),
    "faults": ("faults",),
    "junit": (
        "junit_xml",
        "write_junit",
    ),
    "limits": ("Limits",),
    "matching": (
        "Matcher",
        "match",
    ),
    "mocked_calls": (
        "FaultRule",
        "FaultStrike",
        "MockedCall",
    ),
    "mocks": ("ToolMocks",),
    "recorder": (
        "EventRecorder",
        "RecordedOperation",
        "TimedExecution",
    ),
    "results": (
        "CheckResult",
        "Comparison",
        "Difference",
        "SuiteRun",
        "TaskOutcome",
        "TaskResult",
        "compare",
    ),
    "rules": ("Rule",),
    "run_diff": (
        "DiffThresholds",
        "RunDiff",
        "TaskDiff",
        "diff_runs",
    ),
    "run_files": (
        "SavedRun",
        "load_run",
        "save_run",
    ),
    "runner": (
        "Suite",
        "SuiteRunner",
        "cases_of",
        "record",
        "replay",
    ),
    "trajectory": (
        "AlignedCall",
        "MatchType",
        "Trajectory",
        "TrajectoryMatch",
        "TrajectoryStep",
        "assert_trajectory",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(home if home.startswith("hookline.") else f"{__name__}.{home}")
    found = module if home == name else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
