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
    from hookline.cli.operate._hooks import hooks_app as hooks_app
    from hookline.cli.operate._hosts import host_app as host_app
    from hookline.cli.operate._keys import keys_app as keys_app
    from hookline.cli.operate._operations import operations_app as operations_app
    from hookline.cli.operate._relay import relay_app as relay_app
    from hookline.cli.operate._serve import serve as serve
    from hookline.cli.operate._worker import run_worker as run_worker

_MODULES = {
    "approvals_app": ["_approvals"],
    "audit_app": ["_audit"],
    "budgets_app": ["_budgets"],
    "deliveries_app": ["_deliveries"],
    "doctor": ["_doctor"],
    "endpoints_app": ["_endpoints"],
    "executions_app": ["_executions"],
    "hooks_app": ["_hooks", "_hook_files", "_remote_hooks"],
    "host_app": ["_hosts"],
    "keys_app": ["_keys"],
    "operations_app": ["_operations"],
    "relay_app": ["_relay"],
    "serve": ["_serve"],
    "run_worker": ["_worker"],
}
"""The modules of each command: the first one has it, and others add commands to it."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        first, *_ = [importlib.import_module(f"{__name__}.{module}") for module in _MODULES[name]]
        return getattr(first, name)
