"""Suites of tasks: those of AgentDojo, and your own in one YAML or Python file."""

from hookline.evals.errors import CassetteFolderError, RunFileError, SuiteFileError, ToolNameError
from hookline.evals.running import RunsTasks, Suite
from hookline.evals.suites import checks
from hookline.evals.suites._agent_choice import GROUND_TRUTH as GROUND_TRUTH
from hookline.evals.suites._agent_choice import AgentChoice, AgentTask, choose_agents
from hookline.evals.suites._expected import Expected
from hookline.evals.suites._files import find_suites, load_suite_file
from hookline.evals.suites._imports import ImportProblem as ImportProblem
from hookline.evals.suites._imports import import_object as import_object
from hookline.evals.suites._imports import import_target as import_target
from hookline.evals.suites._schema import suite_schema
from hookline.evals.suites._schema import suite_schema_text as suite_schema_text
from hookline.evals.suites._task import Task, asks, says
from hookline.evals.suites._user import UserSuite
from hookline.evals.suites._worker import serve_worker as serve_worker
from hookline.evals.suites.checks import Check, FinishedTask

__all__ = [
    "AgentChoice",
    "AgentTask",
    "CassetteFolderError",
    "Check",
    "Expected",
    "FinishedTask",
    "RunFileError",
    "RunsTasks",
    "Suite",
    "SuiteFileError",
    "Task",
    "ToolNameError",
    "UserSuite",
    "asks",
    "checks",
    "choose_agents",
    "find_suites",
    "load_suite_file",
    "says",
    "suite_schema",
]
