"""What a process of pytest imports before it runs tests."""

from __future__ import annotations

from importlib import import_module

__all__ = ["import_pytest"]


def import_pytest() -> None:
    """Import pytest with the plugins that processes of tests use."""
    for module in ("anyio.pytest_plugin", "hookline.evals.faults", "hookline.pytest_plugin", "xdist.plugin"):
        import_module(module)
