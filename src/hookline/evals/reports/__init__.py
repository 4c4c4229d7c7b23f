"""Report runs: HTML pages, JUnit XML, saved runs and their comparison, and the formats of other tools."""

from hookline.evals.reports._agentevals import agentevals_messages
from hookline.evals.reports._inspect_log import HasResults as HasResults
from hookline.evals.reports._inspect_log import inspect_log, write_inspect_log
from hookline.evals.reports._junit import clean_text as clean_text
from hookline.evals.reports._junit import junit_xml, write_junit
from hookline.evals.reports._junit import render_suites as render_suites
from hookline.evals.reports._report import NAMES as NAMES
from hookline.evals.reports._report import check_writable as check_writable
from hookline.evals.reports._report import duration as duration
from hookline.evals.reports._report import write_report as write_report
from hookline.evals.reports._report import write_text as write_text
from hookline.evals.reports._run_diff import Change as Change
from hookline.evals.reports._run_diff import DiffThresholds, RunDiff, TaskDiff, diff_runs
from hookline.evals.reports._run_diff import parse_increase as parse_increase
from hookline.evals.reports._run_diff import parse_score as parse_score
from hookline.evals.reports._saved_runs import SavedRun, load_run, save_run
from hookline.evals.reports._session_report import prepare_report as prepare_report
from hookline.evals.reports._session_report import write_session_report as write_session_report
from hookline.evals.reports._sessions import REDACTION as REDACTION
from hookline.evals.reports._sessions import CassetteUse as CassetteUse
from hookline.evals.reports._sessions import TestRecord as TestRecord
from hookline.evals.reports._sessions import WatchedCassette as WatchedCassette
from hookline.evals.reports._sessions import decode_record as decode_record
from hookline.evals.reports._sessions import encode_record as encode_record
from hookline.evals.reports._sessions import record_of as record_of
from hookline.evals.reports._sessions import refused_calls as refused_calls
from hookline.evals.reports._sessions import summary_of as summary_of
from hookline.evals.reports._sessions import unused_of as unused_of
from hookline.evals.reports._sessions import use_of as use_of
from hookline.evals.reports._summaries import DiffVerdict as DiffVerdict
from hookline.evals.reports._summaries import diff_summary, run_summary
from hookline.evals.reports._summaries import judge_diff as judge_diff
from hookline.evals.reports._summaries import write_summary as write_summary
from hookline.evals.reports._verdict import judge_runs as judge_runs

__all__ = [
    "DiffThresholds",
    "RunDiff",
    "SavedRun",
    "TaskDiff",
    "agentevals_messages",
    "diff_runs",
    "diff_summary",
    "inspect_log",
    "junit_xml",
    "load_run",
    "run_summary",
    "save_run",
    "write_inspect_log",
    "write_junit",
]
