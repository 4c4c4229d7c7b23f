"""Run the tasks of suites and collect their results."""

from hookline.evals.running._checks import Check as Check
from hookline.evals.running._checks import name_of as name_of
from hookline.evals.running._checks import run_check as run_check
from hookline.evals.running._finished_task import AuxiliaryRuns, FinishedTask
from hookline.evals.running._protocol import RunsTasks, Suite
from hookline.evals.running._protocol import select_tasks as select_tasks
from hookline.evals.running._provenance import Provenance
from hookline.evals.running._provenance import hookline_version as hookline_version
from hookline.evals.running._results import REPLAYS as REPLAYS
from hookline.evals.running._results import (
    VARYING_FIELDS,
    CheckResult,
    Comparison,
    ConversationTurn,
    Difference,
    Judgement,
    JudgeVerdict,
    SuiteRun,
    TaskOutcome,
    TaskResult,
    compare,
    stable_fields,
)
from hookline.evals.running._results import ConversationEnd as ConversationEnd
from hookline.evals.running._results import Mode as Mode
from hookline.evals.running._results import TaskKey as TaskKey
from hookline.evals.running._results import Totals as Totals
from hookline.evals.running._results import attempt_score as attempt_score
from hookline.evals.running._results import clamp_score as clamp_score
from hookline.evals.running._run_files import RunEnd as RunEnd
from hookline.evals.running._run_files import RunHeader as RunHeader
from hookline.evals.running._run_files import StoredResults as StoredResults
from hookline.evals.running._run_files import describe_key as describe_key
from hookline.evals.running._run_files import format_line as format_line
from hookline.evals.running._run_files import impossible_in as impossible_in
from hookline.evals.running._run_files import is_run_file as is_run_file
from hookline.evals.running._run_files import parse_line as parse_line
from hookline.evals.running._run_files import read_run_file as read_run_file
from hookline.evals.running._run_files import run_lines as run_lines
from hookline.evals.running._run_files import utc_now as utc_now
from hookline.evals.running._runner import SuiteRunner, cases_of, record, replay
from hookline.evals.running._tasks import Case as Case
from hookline.evals.running._tasks import TaskRunner as TaskRunner
from hookline.evals.running._tasks import case_name as case_name
from hookline.evals.running._tasks import cassette_file as cassette_file
from hookline.evals.running._tasks import model_of as model_of
from hookline.evals.running._timeline import Timeline as Timeline
from hookline.evals.running._timeline import TimelineBar as TimelineBar
from hookline.evals.running._workers import Reply as Reply
from hookline.evals.running._workers import Request as Request
from hookline.evals.running._workers import WorkerSetup as WorkerSetup
from hookline.evals.running._workers import pack as pack
from hookline.evals.running._workers import unpack as unpack

__all__ = [
    "VARYING_FIELDS",
    "AuxiliaryRuns",
    "CheckResult",
    "Comparison",
    "ConversationTurn",
    "Difference",
    "FinishedTask",
    "JudgeVerdict",
    "Judgement",
    "Provenance",
    "RunsTasks",
    "Suite",
    "SuiteRun",
    "SuiteRunner",
    "TaskOutcome",
    "TaskResult",
    "cases_of",
    "compare",
    "record",
    "replay",
    "stable_fields",
]
