"""Where the tests of the page get a browser from, and what becomes of them where there is none.

Commands are scripts of their own on a PATH of their own, so nothing is installed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.browsers import Found, find_chromium, find_once

STARTS = """echo "DevTools listening on ws://127.0.0.1:1/x" >&2; exec sleep 30"""


class Machine:
    """A machine on which there are only these commands; each notes that it was run."""

    def __init__(self, folder: Path) -> None:
        self.commands, self.cache, self.log = folder / "bin", folder / "cache", folder / "log"
        self.commands.mkdir()
        self.cache.mkdir()
        for name in ("sleep", "sh", "cp", "mkdir", "chmod", "cat"):
            found = shutil.which(name)
            assert found is not None
            (self.commands / name).symlink_to(found)
        self.environ = {"PATH": str(self.commands)}

    def has(self, name: str, does: str) -> str:
        path = self.commands / name
        path.write_text(f'#!/bin/sh\necho "{name} $1" >> "{self.log}"\n{does}\n')
        path.chmod(0o755)
        return str(path)

    def has_apt(self, package: str = "chromium-headless-shell") -> None:
        browser = self.commands / package
        made = f"printf '#!/bin/sh\\n%s\\n' '{STARTS}' > {browser}; chmod 755 {browser}"
        self.has("apt-get", f'case "$*" in *update) ;; *" {package}") {made};; *) exit 100;; esac')

    def has_npm(self) -> None:
        self.has("npm", 'mkdir -p "$3/node_modules/@sparticuz/chromium"')
        self.has(
            "node",
            f"printf '#!/bin/sh\\n%s\\n' '{STARTS}' > $TMPDIR/chromium; chmod 755 $TMPDIR/chromium; echo $TMPDIR/chromium",
        )

    def find(self, *, is_root: bool = True, **environ: str) -> Found:
        return find_chromium(self.environ | environ, is_root=is_root, folder=self.cache)

    def ran(self) -> list[str]:
        """The commands that were run, without the browsers that were started."""
        return (
            [line for line in self.log.read_text().splitlines() if not line.startswith("c")]
            if self.log.exists()
            else []
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_browser_that_is_named_comes_before_the_one_on_the_path(machine: Machine, tmp_path: Path) -> None:
    machine.has("chromium", STARTS)
    mine = machine.has("mine", STARTS)

    assert machine.find(HOOKLINE_CHROMIUM=mine) == Found(mine, "")


def test_where_the_browser_that_is_named_does_not_start_no_other_is_taken(machine: Machine) -> None:
    machine.has("chromium", STARTS)
    broken = machine.has("broken", "echo 'libnss3.so is missing' >&2; exit 127")

    found = machine.find(HOOKLINE_CHROMIUM=broken)

    assert (found.path, "libnss3.so is missing" in found.problem) == ("", True)
    assert machine.find(HOOKLINE_CHROMIUM="/nowhere/chromium").path == ""


@pytest.mark.parametrize("name", ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"])
def test_a_browser_on_the_path_is_taken_and_nothing_installed(machine: Machine, name: str) -> None:
    path = machine.has(name, STARTS)
    machine.has_apt()
    machine.has_npm()

    assert machine.find() == Found(path, "")
    assert [each for each in machine.ran() if not each.startswith("google")] == []


def test_of_two_browsers_on_the_path_the_one_without_windows_is_taken(machine: Machine) -> None:
    machine.has("chromium", STARTS)
    path = machine.has("chromium-headless-shell", STARTS)

    assert machine.find() == Found(path, "")


def test_a_browser_that_a_script_waits_for_is_ended_too(machine: Machine, tmp_path: Path) -> None:
    """As long as one of them runs, somebody may write to the pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    machine.has("chromium", f"exec 9> {pipe}; sleep 30 & {STARTS}")

    found = machine.find()

    readable, _, _ = select.select([reader], [], [], 20)
    os.close(reader)
    assert (found.problem, readable) == ("", [reader])


@pytest.mark.parametrize("package", ["chromium-headless-shell", "chromium"])
def test_root_installs_the_package_that_the_system_has(machine: Machine, package: str) -> None:
    machine.has_apt(package)
    machine.has_npm()

    assert machine.find() == Found(str(machine.commands / package), "")
    assert {each.split()[0] for each in machine.ran()} == {"apt-get"}


def test_who_is_not_root_takes_the_package_of_npm_and_keeps_it(machine: Machine) -> None:
    machine.has_apt()
    machine.has_npm()

    found = [machine.find(is_root=False) for _ in range(2)]

    assert found == [Found(str(machine.cache / "npm" / "chromium"), "")] * 2
    assert machine.ran() == ["npm install", "node --eval", "node --eval"]


def test_a_way_that_fails_leads_to_the_next_one(machine: Machine) -> None:
    machine.has("chromium", "exit 1")
    machine.has("apt-get", "echo 'Temporary failure resolving' >&2; exit 100")
    machine.has_npm()

    assert machine.find().path == str(machine.cache / "npm" / "chromium")


def test_where_no_way_leads_to_a_browser_each_says_why(machine: Machine) -> None:
    machine.has("apt-get", "echo 'Temporary failure resolving' >&2; exit 100")

    found = machine.find()

    assert found.path == ""
    assert found.problem.startswith("on the PATH: there is none; with apt-get: ")
    assert "said: Temporary failure resolving" in found.problem
    assert found.problem.endswith("; with npm: there is no npm")


@pytest.mark.parametrize("fails", [False, True], ids=["found", "nothing"])
def test_all_workers_of_a_run_look_once_and_the_next_run_looks_again(machine: Machine, fails: bool) -> None:
    machine.has_npm()
    if fails:
        machine.has("npm", "exit 1")

    def find(run: str) -> Found:
        return find_once(machine.environ | {"PYTEST_XDIST_TESTRUNUID": run}, is_root=False, folder=machine.cache)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(find, ["first"] * 4))

    assert len(set(found)) == 1
    assert (found[0].path == "") == fails
    assert len(machine.ran()) == (1 if fails else 2)
    find("second")
    assert len(machine.ran()) == (2 if fails else 3)
    assert json.loads((machine.cache / "found.json").read_text())["run"] == "second"


INNER = """
import pytest
from tests.browsers import *

def test_with_a_browser(browser): ...
def test_with_another(browser): ...
def test_without(): ...
"""


def give_own_environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a run of pytest inside of pytest a cache of its own, and no plugins of others: they take seconds to load."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize(
    ("environ", "outcome", "status", "workers"),
    [
        ({}, {"passed": 1, "skipped": 2}, 0, []),
        ({"HOOKLINE_NEEDS_BROWSER": "1"}, {"passed": 1, "errors": 2}, 1, []),
        ({"HOOKLINE_CHROMIUM": "/nowhere/chromium"}, {"passed": 1, "errors": 2}, 1, []),
        ({"HOOKLINE_NEEDS_BROWSER": "1"}, {"passed": 1, "errors": 2}, 1, ["-p", "xdist", "-n", "2"]),
    ],
    ids=["skipped", "needed", "named", "needed by workers"],
)
def test_the_line_above_the_last_one_says_how_many_tests_had_no_browser(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    outcome: dict[str, int],
    status: int,
    workers: list[str],
) -> None:
    for name in ("HOOKLINE_NEEDS_BROWSER", "HOOKLINE_CHROMIUM", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    give_own_environment(pytester, monkeypatch)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile(conftest="from tests.browsers import *", test_inner=INNER)

    result = pytester.runpytest("-p", "no:cacheprovider", *workers)

    result.assert_outcomes(**outcome)
    assert result.ret == status
    assert result.outlines[-2] == "2 browser tests not run"


def test_tests_that_want_no_browser_look_for_none(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    give_own_environment(pytester, monkeypatch)
    pytester.makepyfile(conftest="from tests.browsers import *", test_inner="def test_without(): ...")

    result = pytester.runpytest("-p", "no:cacheprovider")

    result.assert_outcomes(passed=1)
    assert not (pytester.path / "cache").exists()
    assert "browser" not in result.outlines[-2]
