"""Run a check of a finished task, and turn what it returns into a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import anyio
import msgspec

from hookline.errors import message_of
from hookline.evals.running._finished_task import FinishedTask
from hookline.evals.running._results import CheckResult

__all__ = ["Check", "name_of", "run_check"]

Check = Callable[[FinishedTask], object]
"""A function of the finished task, sync or async. `None` or True passes. False, a text that says what is missing, a
number from 0 to 1 (the share that is there), or an `AssertionError` fails. It may also return a `CheckResult`.

A check that is made in many variants may have an attribute `kind`, one name for all of them: exports have a column for
each kind. It may have a `target`: a text or a list of texts that says what it expects."""


async def run_check(check: Check, task: FinishedTask) -> CheckResult:
    """Run a check and return its result, with the tokens and cost of the models that it asked.

    A check that raises has failed, whatever it raised.
    """
    seen = task.for_check()
    result = await _run(check, seen)
    kind = getattr(check, "kind", "")
    if not result.kind and isinstance(kind, str):
        result = msgspec.structs.replace(result, kind=kind)
    return msgspec.structs.replace(result, usage=seen.auxiliary.usage) if seen.auxiliary.count else result


async def _run(check: Check, task: FinishedTask) -> CheckResult:
    name = name_of(check)
    try:
        said = check(task)
        if inspect.isawaitable(said):
            said = await said
    except AssertionError as error:
        return CheckResult(name=name, passed=False, score=0.0, why=message_of(error) or "the assertion failed")
    except (KeyboardInterrupt, GeneratorExit, anyio.get_cancelled_exc_class()):
        raise
    except BaseException as error:  # `pytest.fail` and `sys.exit` raise BaseExceptions
        why = f"the check itself failed with {type(error).__name__}: {message_of(error)}"
        return CheckResult(name=name, passed=False, score=0.0, why=why)
    if isinstance(said, CheckResult):
        if 0 <= said.score <= 1:
            return said if said.judged else msgspec.structs.replace(said, passed=False, score=0.0)
        why = f"a score is a number from 0 to 1; this one is {said.score!r:.100}"
        return CheckResult(name=said.name, passed=False, score=0.0, why=why)
    if said is None or said is True:
        return CheckResult(name=name, passed=True, score=1.0)
    if said is False or isinstance(said, str):
        return CheckResult(name=name, passed=False, score=0.0, why=said or "")
    if isinstance(said, int | float) and 0 <= said <= 1:
        why = "" if said == 1 else f"only {said:.2f} of 1"
        return CheckResult(name=name, passed=said == 1, score=float(said), why=why)
    why = f"a check gives None, True, False, a text or a number from 0 to 1; this one gave {said!r:.100}"
    return CheckResult(name=name, passed=False, score=0.0, why=why)


def name_of(check: Check) -> str:
    """Return the name of a check in results."""
    return str(getattr(check, "__name__", None) or type(check).__name__)
