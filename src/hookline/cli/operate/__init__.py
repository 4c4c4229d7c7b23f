"""The commands that work on a store: its hooks, operations, approvals, deliveries and keys, and its processes.

A command is imported when it is first used, with what it needs.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline.cli.operate._approvals import approvals_app as approvals_app
    from hookline.cli.operate._audit import audit_app as audit_app
    from hookline.cli.operate._budgets import budgets_app as budgets_app
    from hookline.cli.operate._deliveries import deliveries_app as deliveries_app
    from hookline.cli.operate._doctor import doctor as doctor
    from hookline.cli.operate._endpoints import endpoints_app as endpoints_app
    from hookline.cli.operate._executions import executions_app as executions_app
    from hookline.cli.operate._hook_group import hooks_app as hooks_app
    from hookline.cli.operate._hosts import host_app as host_app
    from hookline.cli.operate._keys import keys_app as keys_app
    from hookline.cli.operate._operations import operations_app as operations_app
    from hookline.cli.operate._relay import relay_app as relay_app
    from hookline.cli.operate._serve import serve as serve
    from hookline.cli.operate._worker import run_worker as run_worker

_HOMES = {
    "approvals_app": "_approvals",
    "audit_app": "_audit",
    "budgets_app": "_budgets",
    "deliveries_app": "_deliveries",
    "doctor": "_doctor",
    "endpoints_app": "_endpoints",
    "executions_app": "_executions",
    "hooks_app": "_hook_group",
    "host_app": "_hosts",
    "keys_app": "_keys",
    "operations_app": "_operations",
    "relay_app": "_relay",
    "serve": "_serve",
    "run_worker": "_worker",
}
"""The module of each command."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
