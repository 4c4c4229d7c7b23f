"""Run a framework's own tests bare and attached, and compare them test by test."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
HOME = ROOT / ".peers"
"""Environments, sources and logs; ignored by git, so that nothing of a framework is committed."""

MODES = ("bare", "observers", "interceptors")
"""Without hookline; with sixteen observers that do nothing; with these and interceptors that change nothing."""

TOOLS = ["pytest-timeout"]
LIMIT = 100
"""At most one test in so many may differ."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Where a framework's tests are, what they need, and how they are attached.

    Attributes:
        name: Name of the adapter; also that of its list of differences and, after `peer_`, of its plugin.
        extra: The extra of hookline that installs the framework.
        distribution: The framework on PyPI.
        needs: Requirements of its tests, beside the framework.
        tests: Files and folders of tests, relative to its source.
        left_out: Files and folders in these that are no tests of agent loops.
        options: Further options of pytest.
        environ: Further variables of the environment.
        root: Folder of the source in which the tests run, where it is not the top.
        sources: Folders of its source that are imported in place of the installed framework.
        checkout: Whether the source distribution holds no tests, so that a checkout of the repository is needed.
    """

    name: str
    extra: str
    distribution: str
    needs: Sequence[str] = ()
    tests: Sequence[str] = ("tests",)
    left_out: Sequence[str] = ()
    options: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    root: str = "."
    sources: Sequence[str] = ()
    checkout: bool = False

    @property
    def variable(self) -> str:
        """The variable that names a checkout of the framework's repository."""
        return f"HOOKLINE_PEERS_{self.name.upper()}"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A test that passes bare and not attached, and the framework's own rule that forces it."""

    test: str
    mode: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """How each test ended, and the tests that ran something with hooks."""

    ended: dict[str, str] = field(default_factory=dict)
    attached: set[str] = field(default_factory=set)

    def update(self, later: Outcomes) -> None:
        """Take over how tests ended that were run again."""
        self.ended.update(later.ended)
        self.attached.update(later.attached)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How one mode compares with bare.

    Attributes:
        mode: The mode.
        bare: How many tests pass bare.
        passed: How many tests pass bare that run something with hooks in this mode, or end otherwise in it.
        same: How many of them pass attached too.
        unlisted: Tests that differ, and are not in the list of differences.
        settled: Tests of the list that differ no longer.
    """

    mode: str
    bare: int
    passed: int
    same: int
    unlisted: Sequence[str]
    settled: Sequence[str]

    @property
    def too_many(self) -> bool:
        """Whether more tests differ than may, of all that pass bare."""
        return (self.passed - self.same) * LIMIT > self.bare

    @property
    def holds(self) -> bool:
        """Whether every test that passes bare passes attached, but for those that are listed."""
        return bool(self.passed) and not self.unlisted and not self.settled and not self.too_many


def compare(bare: Mapping[str, str], attached: Outcomes, mode: str, listed: Sequence[Difference]) -> Comparison:
    """Compare the outcomes of a mode with those of the bare run."""
    passed = {test for test, outcome in bare.items() if outcome == "passed"}
    differs = {test for test in passed if attached.ended.get(test) != "passed"}
    known = {each.test for each in listed if each.mode == mode}
    ran = passed & attached.attached | differs
    return Comparison(
        mode=mode,
        bare=len(passed),
        passed=len(ran),
        same=len(ran) - len(differs),
        unlisted=sorted(differs - known),
        settled=sorted(known - differs),
    )


def differences(name: str, folder: Path = HERE / "differences") -> list[Difference]:
    """Read the list of differences by nature of a framework.

    Raises:
        ValueError: If an entry lacks its rule or its tests, names an unknown mode, or lists a test twice.
    """
    path = folder / f"{name}.toml"
    found: list[Difference] = []
    for entry in tomllib.loads(path.read_text()).get("difference", []) if path.exists() else []:
        modes, tests, rule = entry.get("modes", MODES[1:]), entry.get("tests"), entry.get("rule", "").strip()
        if not tests or not rule or set(modes) - set(MODES[1:]):
            raise ValueError(f"{path.name}: each [[difference]] has `tests`, a `rule`, and `modes` of {MODES[1:]}.")
        found.extend(Difference(test=test, mode=mode, rule=rule) for test in tests for mode in modes)
    keys = [(each.test, each.mode) for each in found]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{path.name}: listed twice: {twice}.")
    return found


def environment(peer: Peer) -> Path:
    """Return the interpreter of an environment with the framework, its tests' needs and hookline; make it if needed."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][peer.extra]
    wanted = [*declared, "pytest", *TOOLS, *peer.needs]
    home, note = HOME / f"{peer.name}-venv", HOME / f"{peer.name}-venv.txt"
    python = home / "bin" / "python"
    if not note.exists() or note.read_text() != "\n".join(wanted):
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
        subprocess.run([*pip, "--upgrade", *wanted, "--editable", f"{ROOT}[evals,otel]"], check=True)
        note.write_text("\n".join(wanted))
    return python


def installed(peer: Peer, python: Path) -> str:
    """Return the version of the framework in an environment."""
    asked = f"import importlib.metadata as m; print(m.version({peer.distribution!r}))"
    return subprocess.run([str(python), "-c", asked], check=True, capture_output=True, text=True).stdout.strip()


def source(peer: Peer, python: Path) -> Path | None:
    """Return the folder of the framework's source: the checkout that the variable names, else its source distribution.

    Returns:
        The folder; `None` where a checkout is needed and no variable names one.
    """
    if given := os.environ.get(peer.variable):
        folder = Path(given).expanduser().resolve()
        if not folder.is_dir():
            raise FileNotFoundError(f"{peer.variable} names {folder}, which is no folder.")
        return folder
    if peer.checkout:
        return None
    version = installed(peer, python)
    folder = HOME / f"{peer.name}-{version}"
    if not folder.exists():
        downloads = HOME / "downloads"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "download"]
        only = ["--no-deps", "--no-binary", peer.distribution, "--dest", str(downloads)]
        subprocess.run([*pip, *only, f"{peer.distribution}=={version}"], check=True)
        stem = peer.distribution.replace("-", "_")
        archive = next(path for path in downloads.glob("*.tar.gz") if path.name == f"{stem}-{version}.tar.gz")
        unpacked = HOME / f"{peer.name}-unpacking"
        with tarfile.open(archive) as opened:
            opened.extractall(unpacked, filter="data")
        (unpacked / archive.name.removesuffix(".tar.gz")).rename(folder)
    return folder


def outcomes(peer: Peer, python: Path, folder: Path, mode: str, *, only: Sequence[str], timeout: int) -> Outcomes:
    """Run the framework's tests in one mode.

    Args:
        peer: The framework.
        python: The interpreter.
        folder: Its source.
        mode: One of `MODES`.
        only: Ids of tests; all of the framework's selection unless given.
        timeout: Seconds that one test may take.

    Returns:
        How each test ended, by its id.
    """
    name = f"{peer.name}-{mode}{'-again' if only else ''}"
    report = HOME / f"{name}.json"
    report.unlink(missing_ok=True)
    ids = HOME / f"{name}.args"
    ids.write_text("\n".join(only or peer.tests))
    plugins = ["-p", "peer_recording"] + (["-p", f"peer_{peer.name}"] if mode != "bare" else [])
    command = [str(python), "-m", "pytest", "-q", "--no-header", "--tb=short", "--continue-on-collection-errors"]
    command += ["-p", "no:cacheprovider", "-p", "no:hookline", *plugins, f"--timeout={timeout}", *peer.options]
    command += [f"--ignore={each}" for each in peer.left_out]
    environ = {
        **os.environ,
        **peer.environ,
        "PYTHONPATH": os.pathsep.join(
            str(each) for each in (HERE / "attach", *(folder / name for name in peer.sources))
        ),
        "HOOKLINE_PEERS_MODE": mode,
        "HOOKLINE_PEERS_REPORT": str(report),
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with (HOME / f"{name}.log").open("wb") as log:
        subprocess.run(
            [*command, f"@{ids}"], cwd=folder / peer.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
        )
    if not report.exists():
        raise RuntimeError(f"pytest did not run; its output is in {HOME / name}.log.")
    found = json.loads(report.read_text())
    return Outcomes(ended=found["ended"], attached=set(found["attached"]))
