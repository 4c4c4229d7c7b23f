"""The root of the package imports each name from its module when it is first used, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import hookline

LOADED = "import json, sys; print(json.dumps(sorted(name for name in sys.modules if name.startswith('hookline.'))))"


def modules_after(statement: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", f"{statement}\n{LOADED}"], capture_output=True, check=True, text=True)
    return set(json.loads(done.stdout))


def test_the_root_alone_loads_no_module() -> None:
    assert modules_after("import hookline") == set()


@pytest.mark.parametrize(
    ("name", "home"),
    [("HookExecution", "signals"), ("ToolCall", "calls"), ("BeforeStep", "events"), ("Hooks", "hooks")],
)
def test_a_name_loads_what_its_module_loads_and_no_more(name: str, home: str) -> None:
    extra = modules_after(f"from hookline import {name}") - modules_after(f"import hookline.{home}")

    assert extra <= {"hookline.signals"}


@pytest.mark.parametrize("name", ["Phase", "Chain", "HookDispatcher"])
def test_a_name_below_the_runtime_does_not_load_it(name: str) -> None:
    assert "hookline.runtime" not in modules_after(f"from hookline import {name}")


def test_every_public_name_can_be_had_and_is_listed() -> None:
    for name in hookline.__all__:
        assert getattr(hookline, name) is not None
        assert name in dir(hookline)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'hookline' has no attribute 'Hok'"):
        hookline.Hok  # type: ignore[attr-defined]
