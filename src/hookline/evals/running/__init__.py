"""Run the tasks of suites and collect their results."""

from hookline.evals.running._protocol import RunsTasks, Suite
from hookline.evals.running._protocol import select_tasks as select_tasks
from hookline.evals.running._provenance import Provenance
from hookline.evals.running._results import REPLAYS as REPLAYS
from hookline.evals.running._results import (
    CheckResult,
    Comparison,
    Difference,
    SuiteRun,
    TaskOutcome,
    TaskResult,
    compare,
)
from hookline.evals.running._results import Mode as Mode
from hookline.evals.running._results import Totals as Totals
from hookline.evals.running._runner import Case as Case
from hookline.evals.running._runner import SuiteRunner, cases_of, record, replay
from hookline.evals.running._runner import cassette_file as cassette_file

__all__ = [
    "CheckResult",
    "Comparison",
    "Difference",
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
