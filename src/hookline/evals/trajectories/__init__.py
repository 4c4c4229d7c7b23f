"""Record what an agent did, and compare it to what it should have done."""

from hookline.evals.trajectories._coverage import CallRow, Coverage
from hookline.evals.trajectories._coverage import CoverageCount as CoverageCount
from hookline.evals.trajectories._coverage import call_rows as call_rows
from hookline.evals.trajectories._event_files import read_events, write_events
from hookline.evals.trajectories._limits import Limits
from hookline.evals.trajectories._recorder import EventRecorder, RecordedOperation, TimedExecution
from hookline.evals.trajectories._trajectory import (
    AlignedCall,
    MatchType,
    Trajectory,
    TrajectoryMatch,
    TrajectoryStep,
    assert_trajectory,
)
from hookline.evals.trajectories._trajectory import ExpectedCall as ExpectedCall

__all__ = [
    "AlignedCall",
    "CallRow",
    "Coverage",
    "EventRecorder",
    "Limits",
    "MatchType",
    "RecordedOperation",
    "TimedExecution",
    "Trajectory",
    "TrajectoryMatch",
    "TrajectoryStep",
    "assert_trajectory",
    "read_events",
    "write_events",
]
