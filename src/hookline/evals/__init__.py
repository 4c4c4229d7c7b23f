"""Evaluating agents: recording and replaying their tool calls, running suites of tasks, comparing and reporting."""

from hookline.evals.cassette import Cassette
from hookline.evals.errors import EventFileError, ForbiddenToolError, ReportError, UnknownSuiteError, UnknownTaskError
from hookline.evals.event_files import read_events, write_events
from hookline.evals.recorder import EventRecorder, RecordedOperation, TimedExecution, Trajectory, TrajectoryStep
from hookline.evals.results import Comparison, Difference, SuiteRun, TaskOutcome, TaskResult, compare
from hookline.evals.runner import Suite, cases_of, record, replay

__all__ = [
    "Cassette",
    "Comparison",
    "Difference",
    "EventFileError",
    "EventRecorder",
    "ForbiddenToolError",
    "RecordedOperation",
    "ReportError",
    "Suite",
    "SuiteRun",
    "TaskOutcome",
    "TaskResult",
    "TimedExecution",
    "Trajectory",
    "TrajectoryStep",
    "UnknownSuiteError",
    "UnknownTaskError",
    "cases_of",
    "compare",
    "read_events",
    "record",
    "replay",
    "write_events",
]
