"""Hooks as data: store, check, switch and change them while agents run, for many tenants."""

from importlib.util import find_spec

from hookline.errors import MissingExtraError

if not all(find_spec(each) for each in ("aiosqlite", "alembic", "asyncpg", "greenlet", "psutil", "sqlalchemy", "yaml")):
    raise MissingExtraError("server", "A registry of stored hooks")

from hookline.registry._backtest import Backtest, BacktestAgreement, BacktestExample, BacktestGap, BacktestGroup
from hookline.registry._call_labels import CallLabel, read_call_labels
from hookline.registry._catalog import HandlerCatalog, HandlerEntry
from hookline.registry._definition import POINTS, HookDefinition, RemoteTarget, ShadowLimits
from hookline.registry._definition import READ_ONLY as READ_ONLY
from hookline.registry._definition import AgentGlob as AgentGlob
from hookline.registry._definition import Environment as Environment
from hookline.registry._definition import Id as Id
from hookline.registry._definition import Mode as Mode
from hookline.registry._definition import Name as Name
from hookline.registry._definition import OneTenant as OneTenant
from hookline.registry._definition import OperationTag as OperationTag
from hookline.registry._definition import Percent as Percent
from hookline.registry._definition import Point as Point
from hookline.registry._definition import Seconds as Seconds
from hookline.registry._definition import Tag as Tag
from hookline.registry._definition import Tenant as Tenant
from hookline.registry._definition import Text as Text
from hookline.registry._definition import read_definition as read_definition
from hookline.registry._dry_run import DryRun
from hookline.registry._dry_run import build_sample as build_sample
from hookline.registry._errors import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionFileError,
    DefinitionNotFoundError,
    FenceError,
    QuotaError,
    ScriptError,
)
from hookline.registry._files import FileEntry as FileEntry
from hookline.registry._files import HookFile, load_hook_file
from hookline.registry._files import check_buildable as check_buildable
from hookline.registry._files import check_unique as check_unique
from hookline.registry._files import derive_id as derive_id
from hookline.registry._files import list_files as list_files
from hookline.registry._files import load_file as load_file
from hookline.registry._files import parse_hook_file as parse_hook_file
from hookline.registry._hook_test_runs import HookTestResult, JudgedCall
from hookline.registry._host_settings import HostSettings as HostSettings
from hookline.registry._host_settings import ImportedHook as ImportedHook
from hookline.registry._host_settings import SkippedSetting as SkippedSetting
from hookline.registry._host_settings import read_host_settings as read_host_settings
from hookline.registry._log import ExecutionLog
from hookline.registry._log_rows import ExecutionRow, HookRun, request_id
from hookline.registry._matched_calls import CallMatches, MatchedCall, MatchedTool, UnmatchedCalls
from hookline.registry._matched_calls import find_tool_globs as find_tool_globs
from hookline.registry._order import is_movable as is_movable
from hookline.registry._plans import DefinitionPlan, PlannedChange
from hookline.registry._policy_alerts import ALERT_KINDS as ALERT_KINDS
from hookline.registry._policy_alerts import PolicyAlert
from hookline.registry._policy_watch import FALLBACK_ACTOR as FALLBACK_ACTOR
from hookline.registry._policy_watch import AlertSettings
from hookline.registry._registry import Registry
from hookline.registry._revisions import DefinitionRevision, FieldChange
from hookline.registry._revisions import RevisionAction as RevisionAction
from hookline.registry._revisions import list_field_changes as list_field_changes
from hookline.registry._snapshot import running_order as running_order
from hookline.registry._statistics import Grouping as Grouping
from hookline.registry._statistics import Statistic

__all__ = [
    "POINTS",
    "AlertSettings",
    "Backtest",
    "BacktestAgreement",
    "BacktestExample",
    "BacktestGap",
    "BacktestGroup",
    "CallLabel",
    "CallMatches",
    "DefinitionConflictError",
    "DefinitionError",
    "DefinitionFileError",
    "DefinitionNotFoundError",
    "DefinitionPlan",
    "DefinitionRevision",
    "DryRun",
    "ExecutionLog",
    "ExecutionRow",
    "FenceError",
    "FieldChange",
    "HandlerCatalog",
    "HandlerEntry",
    "HookDefinition",
    "HookFile",
    "HookRun",
    "HookTestResult",
    "JudgedCall",
    "MatchedCall",
    "MatchedTool",
    "PlannedChange",
    "PolicyAlert",
    "QuotaError",
    "Registry",
    "RemoteTarget",
    "ScriptError",
    "ShadowLimits",
    "Statistic",
    "UnmatchedCalls",
    "load_hook_file",
    "read_call_labels",
    "request_id",
]
