"""`hookline hooks`: the group of commands, with those that each module adds to it."""

from hookline.cli.operate import _hook_files as _hook_files
from hookline.cli.operate import _remote_hooks as _remote_hooks
from hookline.cli.operate._hooks import hooks_app as hooks_app
