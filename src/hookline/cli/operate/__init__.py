"""The commands that work on a store: its hooks, operations, approvals, deliveries and keys, and its processes."""

from hookline.cli.operate._approvals import approvals_app as approvals_app
from hookline.cli.operate._audit import audit_app as audit_app
from hookline.cli.operate._budgets import budgets_app as budgets_app
from hookline.cli.operate._deliveries import deliveries_app as deliveries_app
from hookline.cli.operate._doctor import doctor as doctor
from hookline.cli.operate._endpoints import endpoints_app as endpoints_app
from hookline.cli.operate._executions import executions_app as executions_app
from hookline.cli.operate._hook_files import check_hooks as check_hooks
from hookline.cli.operate._hooks import hooks_app as hooks_app
from hookline.cli.operate._hosts import host_app as host_app
from hookline.cli.operate._keys import keys_app as keys_app
from hookline.cli.operate._operations import operations_app as operations_app
from hookline.cli.operate._relay import relay_app as relay_app
from hookline.cli.operate._remote_hooks import serve_hooks as serve_hooks
from hookline.cli.operate._serve import serve as serve
from hookline.cli.operate._worker import run_worker as run_worker
