"""Evaluating agents: mocking, recording, replaying and breaking tool calls; running suites; judging what agents did.

Each name is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

from hookline.evals._canonical import canonical as canonical
from hookline.evals._costs import UNKNOWN as UNKNOWN
from hookline.evals._costs import format_cost as format_cost
from hookline.redaction import Redaction

if TYPE_CHECKING:
    from hookline.evals import faults
    from hookline.evals._waterfall import Bar as Bar
    from hookline.evals._waterfall import BarKind as BarKind
    from hookline.evals._waterfall import BarStatus as BarStatus
    from hookline.evals._waterfall import Waterfall as Waterfall
    from hookline.evals._waterfall import draw_run as draw_run
    from hookline.evals.cassette_checks import (
        CassettesReport,
        CheckedCassette,
        CheckedTool,
        LiveCheck,
        RepeatedCall,
        ResultDifference,
        check_cassettes,
        compare_results,
    )
    from hookline.evals.cassettes import Cassette, RecordedTool
    from hookline.evals.conversations import SimulatedUser, StopConditions
    from hookline.evals.datasets import Dataset
    from hookline.evals.errors import (
        AnswerError,
        CassetteConflictError,
        CassetteError,
        CassetteFileError,
        CassetteFolderError,
        CassetteVersionError,
        CassetteWriteError,
        DataFileError,
        EventFileError,
        EventWaitError,
        FaultDefinitionError,
        FaultFileError,
        ForbiddenToolError,
        NeverMatchingRuleWarning,
        NotOneOperationError,
        ReportError,
        RunFileError,
        RunResumeError,
        RunWriteError,
        SimulatedUserError,
        StaleRecordingWarning,
        SuiteFileError,
        ToolExitError,
        UnknownSuiteError,
        UnknownTagError,
        UnknownTaskError,
        UnrecordedOperationError,
        UnseenEventError,
        WorkerError,
    )
    from hookline.evals.faults import FaultSpec, RealClock, VirtualClock, load_faults
    from hookline.evals.judges import (
        Calibration,
        ConfusionMatrix,
        Judge,
        JudgeAgreement,
        Label,
        ThresholdFit,
        calibrate,
        judge,
        judge_agreement,
        krippendorff_alpha,
        read_labels,
        write_label_sheet,
    )
    from hookline.evals.matching import ArgumentRule, Matcher, match
    from hookline.evals.mocking import Answer, Fake, FaultRule, FaultStrike, MockedCall, Rule, ToolMocks
    from hookline.evals.reports import (
        DiffThresholds,
        RunDiff,
        SavedRun,
        TaskDiff,
        agentevals_messages,
        diff_runs,
        diff_summary,
        inspect_log,
        junit_xml,
        load_run,
        run_summary,
        save_run,
        write_inspect_log,
        write_junit,
    )
    from hookline.evals.running import (
        VARYING_FIELDS,
        AuxiliaryRuns,
        CheckResult,
        Comparison,
        ConversationTurn,
        Difference,
        FinishedTask,
        Judgement,
        JudgeVerdict,
        Provenance,
        Suite,
        SuiteRun,
        SuiteRunner,
        TaskOutcome,
        TaskResult,
        cases_of,
        compare,
        record,
        replay,
        stable_fields,
    )
    from hookline.evals.statistics import (
        CheckStatistics,
        Estimate,
        ModelStatistics,
        PairedTest,
        Percentiles,
        RunStatistics,
        TagStatistics,
        TaskStatistics,
        estimate_mean,
        paired_test,
        pass_at_k,
        pass_hat_k,
    )
    from hookline.evals.tapes import ModelTape, TapedCall
    from hookline.evals.trajectories import (
        AlignedCall,
        CallRow,
        Coverage,
        EventRecorder,
        Limits,
        MatchType,
        RecordedOperation,
        TimedExecution,
        Trajectory,
        TrajectoryMatch,
        TrajectoryStep,
        assert_trajectory,
        read_events,
        write_events,
    )

__all__ = [
    "VARYING_FIELDS",
    "AlignedCall",
    "Answer",
    "AnswerError",
    "ArgumentRule",
    "AuxiliaryRuns",
    "Calibration",
    "CallRow",
    "Cassette",
    "CassetteConflictError",
    "CassetteError",
    "CassetteFileError",
    "CassetteFolderError",
    "CassetteVersionError",
    "CassetteWriteError",
    "CassettesReport",
    "CheckResult",
    "CheckStatistics",
    "CheckedCassette",
    "CheckedTool",
    "Comparison",
    "ConfusionMatrix",
    "ConversationTurn",
    "Coverage",
    "DataFileError",
    "Dataset",
    "DiffThresholds",
    "Difference",
    "Estimate",
    "EventFileError",
    "EventRecorder",
    "EventWaitError",
    "Fake",
    "FaultDefinitionError",
    "FaultFileError",
    "FaultRule",
    "FaultSpec",
    "FaultStrike",
    "FinishedTask",
    "ForbiddenToolError",
    "Judge",
    "JudgeAgreement",
    "JudgeVerdict",
    "Judgement",
    "Label",
    "Limits",
    "LiveCheck",
    "MatchType",
    "Matcher",
    "MockedCall",
    "ModelStatistics",
    "ModelTape",
    "NeverMatchingRuleWarning",
    "NotOneOperationError",
    "PairedTest",
    "Percentiles",
    "Provenance",
    "RealClock",
    "RecordedOperation",
    "RecordedTool",
    "Redaction",
    "RepeatedCall",
    "ReportError",
    "ResultDifference",
    "Rule",
    "RunDiff",
    "RunFileError",
    "RunResumeError",
    "RunStatistics",
    "RunWriteError",
    "SavedRun",
    "SimulatedUser",
    "SimulatedUserError",
    "StaleRecordingWarning",
    "StopConditions",
    "Suite",
    "SuiteFileError",
    "SuiteRun",
    "SuiteRunner",
    "TagStatistics",
    "TapedCall",
    "TaskDiff",
    "TaskOutcome",
    "TaskResult",
    "TaskStatistics",
    "ThresholdFit",
    "TimedExecution",
    "ToolExitError",
    "ToolMocks",
    "Trajectory",
    "TrajectoryMatch",
    "TrajectoryStep",
    "UnknownSuiteError",
    "UnknownTagError",
    "UnknownTaskError",
    "UnrecordedOperationError",
    "UnseenEventError",
    "VirtualClock",
    "WorkerError",
    "agentevals_messages",
    "assert_trajectory",
    "calibrate",
    "cases_of",
    "check_cassettes",
    "compare",
    "compare_results",
    "diff_runs",
    "diff_summary",
    "estimate_mean",
    "faults",
    "inspect_log",
    "judge",
    "judge_agreement",
    "junit_xml",
    "krippendorff_alpha",
    "load_faults",
    "load_run",
    "match",
    "paired_test",
    "pass_at_k",
    "pass_hat_k",
    "read_events",
    "read_labels",
    "record",
    "replay",
    "run_summary",
    "save_run",
    "stable_fields",
    "write_events",
    "write_inspect_log",
    "write_junit",
    "write_label_sheet",
]

_HOMES = (
    *("errors", "matching", "faults", "cassettes", "_waterfall", "mocking", "tapes", "trajectories", "running"),
    *("statistics", "cassette_checks", "reports", "datasets", "conversations", "judges"),
)
"""Modules of the names above, in the order of their layers: to look a name up loads those below its module at most."""
_SHARED = frozenset({"Bar", "BarKind", "BarStatus", "Waterfall", "draw_run"})
"""Names for other packages of hookline."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "faults":
            return importlib.import_module(f"{__name__}.faults")
        if name in __all__ or name in _SHARED:
            for home in _HOMES:
                module = importlib.import_module(f"{__name__}.{home}")
                if hasattr(module, name):
                    value = globals()[name] = getattr(module, name)
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
