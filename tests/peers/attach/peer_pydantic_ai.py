"""Attach hookline to the tests of Pydantic AI: every run of an agent has the capability."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import anyio
import pytest
from peer_hooks import hooks_that_do_nothing
from pydantic_ai import Agent

from hookline.adapters.pydantic_ai import Hookline

begin = Agent.iter


@wraps(begin)
def _iter(self: Any, *given: Any, capabilities: Sequence[Any] | None = None, **options: Any) -> Any:
    ours = Hookline(hooks_that_do_nothing())
    return begin(self, *given, capabilities=[*(capabilities or ()), ours], **options)


Agent.iter = _iter  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Any:
    """End a test that hangs from within: AnyIO's plugin waits for ever for one that pytest-timeout has ended."""
    test = pyfuncitem.obj
    if iscoroutinefunction(test):

        @wraps(test)
        async def limited(*given: Any, **options: Any) -> Any:
            with anyio.fail_after(float(pyfuncitem.config.getoption("timeout")) / 2):
                return await test(*given, **options)

        pyfuncitem.obj = limited
    return (yield)
