"""Run the tasks of suites and collect their results."""

from hookline.evals.running._checks import Check as Check
from hookline.evals.running._checks import name_of as name_of
from hookline.evals.running._checks import run_check as run_check
from hookline.evals.running._finished_task import AuxiliaryRuns, FinishedTask
from hookline.evals.running._protocol import RunsTasks, Suite
from hookline.evals.running._protocol import select_tasks as select_tasks
from hookline.evals.running._provenance import Provenance
from hookline.evals.running._results import REPLAYS as REPLAYS
from hookline.evals.running._results import (
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
)
from hookline.evals.running._results import ConversationEnd as ConversationEnd
from hookline.evals.running._results import Mode as Mode
from hookline.evals.running._results import Totals as Totals
from hookline.evals.running._runner import Case as Case
from hookline.evals.running._runner import SuiteRunner, cases_of, record, replay

__all__ = [
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
]
