"""What hookline does not need is not loaded."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("", ".bus", ".engines", ".runtime", ".evals", ".evals.bus_contract", ".builtin", ".delivery", ".wakeups")
EXTRAS = ("nats", "dbos", "asyncpg", "psycopg", "sqlalchemy")


def test_no_driver_is_loaded_before_it_is_used() -> None:
    program = f"""
import importlib, sys
for name in {MODULES!r}:
    importlib.import_module("hookline" + name)
print([name for name in {EXTRAS!r} if name in sys.modules])
import hookline.store
print("nats" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["[]", "False"]
