"""Hooks as data: stored, checked, switched and changed while agents run, for many tenants."""

from importlib import import_module

from hookline.errors import MissingExtraError

try:
    for needed in ("aiosqlite", "alembic", "asyncpg", "psutil", "sqlalchemy.ext.asyncio", "yaml"):
        import_module(needed)
except ImportError as error:
    raise MissingExtraError("server", "A registry of stored hooks") from error

from hookline.registry._catalog import HandlerCatalog, HandlerEntry
from hookline.registry._definition import POINTS, HookDefinition
from hookline.registry._dry_run import DryRun
from hookline.registry._errors import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionFileError,
    DefinitionNotFoundError,
    QuotaError,
    ScriptError,
)
from hookline.registry._logs import ExecutionLog
from hookline.registry._logs_rows import ExecutionRow, HookRun, request_id
from hookline.registry._registry import Registry
from hookline.registry._statistics import Statistic

__all__ = [
    "POINTS",
    "DefinitionConflictError",
    "DefinitionError",
    "DefinitionFileError",
    "DefinitionNotFoundError",
    "DryRun",
    "ExecutionLog",
    "ExecutionRow",
    "HandlerCatalog",
    "HandlerEntry",
    "HookDefinition",
    "HookRun",
    "QuotaError",
    "Registry",
    "ScriptError",
    "Statistic",
    "request_id",
]
