"""A Chromium for the tests of the page: found or installed once per run, started once per worker.

It is tried in this order: what `HOOKLINE_CHROMIUM` names, one on the PATH, a package of `apt-get` where the tests run as
root, and the npm package `@sparticuz/chromium`. Where there is none, the tests that need one are skipped, and the line
above pytest's last one says how many. With `HOOKLINE_NEEDS_BROWSER=1` they fail instead.

The headless shell comes first: it is the same engine without the windows around it, which nobody sees here, and takes a
third of the time.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = [
    "Found",
    "browser",
    "chromium",
    "driver",
    "find_chromium",
    "find_once",
    "pytest_collection_finish",
    "pytest_terminal_summary",
]

NAMED, NEEDED = "HOOKLINE_CHROMIUM", "HOOKLINE_NEEDS_BROWSER"
SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NOT_RUN = "no Chromium can be started"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--in-process-gpu",
    "--renderer-process-limit=1",
    # The network is part of the browser's process, as each request takes messages between the two. It replaces what
    # Playwright would turn on: to take pictures in another way.
    "--enable-features=NetworkServiceInProcess2,CDPScreenshotNewSurface",
    # Scripts are compiled in the thread that runs them, and garbage is collected less often: other tests want the cores.
    "--js-flags=--single-threaded,--min-semi-space-size=16",
)
"""To start a process takes longer than most tests do in it, so all pages of a context share one, while one is open."""
SHOWN = ("--hide-scrollbars",)
"""What the driver would hide, though people see it: a scrollbar takes its part of the width."""
INSTALL_SECONDS, TRY_SECONDS = 300, 60
PACKAGE = "@sparticuz/chromium"
UNPACK = f"import('{PACKAGE}').then(async (found) => console.log(await found.default.executablePath()))"
FOUND = pytest.StashKey["Found"]()


class Found(NamedTuple):
    """What came of looking for a Chromium.

    Attributes:
        path: Of the program; `""` if there is none that starts.
        problem: Why there is none.
    """

    path: str
    problem: str


class Driver(NamedTuple):
    """A browser that is driven from this thread.

    Attributes:
        browser: The browser.
        loop: The event loop of the driver. It waits where it was interrupted, so that no other runs while it counts as
            running.
        hooks: What the event loop does with async generators.
    """

    browser: Browser
    loop: asyncio.AbstractEventLoop
    hooks: Any


class WayError(Exception):
    """One way to a Chromium leads nowhere."""


def find_chromium(environ: Mapping[str, str], *, is_root: bool, folder: Path) -> Found:
    """Find a Chromium that starts, or install one.

    Args:
        environ: The environment: what is named there, and the PATH on which commands are looked for.
        is_root: Whether packages of the system may be installed.
        folder: Where the npm package is kept, for later runs too.
    """
    if named := environ.get(NAMED):
        # Whoever names one wants that one.
        return _tried([("", lambda: named)], environ)
    ways: list[tuple[str, Callable[[], str]]] = [("on the PATH", lambda: _on_path(environ))]
    if is_root:
        ways.append(("with apt-get", lambda: _with_apt(environ)))
    ways.append(("with npm", lambda: _with_npm(environ, folder)))
    return _tried(ways, environ)


def find_once(environ: Mapping[str, str], *, is_root: bool, folder: Path) -> Found:
    """Find a Chromium as `find_chromium` does, once for all workers of a run of xdist: the others wait for the first."""
    run = environ.get("PYTEST_XDIST_TESTRUNUID")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = folder / "found.json"
        if run is not None and kept.exists():
            known = json.loads(kept.read_text())
            if known["run"] == run:
                return Found(known["path"], known["problem"])
        found = find_chromium(environ, is_root=is_root, folder=folder)
        kept.write_text(json.dumps({"run": run, **found._asdict()}))
        return found


def _tried(ways: Sequence[tuple[str, Callable[[], str]]], environ: Mapping[str, str]) -> Found:
    problems = []
    for name, way in ways:
        try:
            path = way()
            _check_start(path, environ)
        except WayError as error:
            problems.append(f"{name}: {error}" if name else str(error))
        else:
            return Found(path, "")
    return Found("", "; ".join(problems))


def _on_path(environ: Mapping[str, str]) -> str:
    for name in NAMES:
        if path := _command(name, environ):
            return path
    raise WayError("there is none")


def _with_apt(environ: Mapping[str, str]) -> str:
    apt = _command("apt-get", environ)
    if apt is None:
        raise WayError("there is no apt-get")
    quick = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=120"]
    quiet = {**environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run([apt, *quick, "-q", "update"], quiet)
    install = [apt, *quick, "-q", "-y", "--no-install-recommends", "install"]
    try:
        _run([*install, SHELL], quiet)
    except WayError:  # older systems have no such package
        _run([*install, "chromium"], quiet)
    return _on_path(environ)


def _with_npm(environ: Mapping[str, str], folder: Path) -> str:
    npm, node = _command("npm", environ), _command("node", environ)
    if npm is None or node is None:
        raise WayError("there is no npm")
    place = folder / "npm"
    place.mkdir(exist_ok=True)
    if not (place / "node_modules" / PACKAGE).exists():
        quick = ["--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=60000"]
        _run([npm, "install", "--prefix", str(place), *quick, PACKAGE], environ, place)
    # It unpacks the program into the folder for temporary files, unless it is there already.
    return _run([node, "--eval", UNPACK], {**environ, "TMPDIR": str(place)}, place).strip()


def _check_start(path: str, environ: Mapping[str, str]) -> None:
    """Start a Chromium once: one that is there may lack a library, or be a script that asks for something else."""
    with tempfile.TemporaryDirectory(prefix="chromium", ignore_cleanup_errors=True) as place:
        said = Path(place, "said")
        flags = [*FLAGS, "--remote-debugging-port=0", f"--user-data-dir={place}/profile", "about:blank"]
        with said.open("wb") as stderr:
            try:
                process = subprocess.Popen(
                    [path, *flags],
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as error:
                raise WayError(str(error)) from None
        try:
            _wait_for_start(path, process, said)
        finally:
            # Debian's program is a script that waits for the browser, so its whole group is ended.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_start(path: str, process: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until a Chromium says where it is driven."""
    for _ in range(TRY_SECONDS * 20):
        if re.search(r"DevTools listening on ws://\S+", said.read_text(errors="replace")):
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    last = said.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
    raise WayError(f"{path} does not start, and said: {last[0][:300]}")


def _run(
    command: Sequence[str], environ: Mapping[str, str], place: Path | None = None, seconds: float = INSTALL_SECONDS
) -> str:
    """Run a command, and give what it prints."""
    try:
        done = subprocess.run(
            command, env=dict(environ), cwd=place, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WayError(str(error)) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise WayError(f"{' '.join(command[:1])} ended with {done.returncode} and said: {said[-1][:200]}")
    return done.stdout.decode(errors="replace")


def _command(name: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=environ.get("PATH", ""))


def _kept_in() -> Path:
    """Name the folder that outlives a run, of this user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    try:
        (home / "hookline-tests").mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"hookline-tests-{os.getuid()}"
    return home / "hookline-tests"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find a browser before the first test: installing one takes longer than a test may."""
    items = getattr(session, "items", [])  # the controller of xdist has none
    wanted = any("browser" in getattr(item, "fixturenames", ()) for item in items)
    if wanted and not session.config.option.collectonly:
        session.config.stash[FOUND] = find_once(os.environ, is_root=os.getuid() == 0, folder=_kept_in())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None]:
    """Say last how many tests wanted a browser and had none."""
    yield
    ends = [each for kind in ("skipped", "error", "failed") for each in terminalreporter.stats.get(kind, ())]
    missing = {each.nodeid for each in ends if NOT_RUN in str(each.longrepr)}
    if missing:
        terminalreporter.write_line(f"{len(missing)} browser tests not run", red=True)


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest) -> str:
    """Return the path of a Chromium; skips the test if there is none."""
    found = request.config.stash[FOUND]
    if not found.path:
        told = f"{NOT_RUN} ({found.problem}); name one in {NAMED}"
        if os.environ.get(NEEDED) == "1" or os.environ.get(NAMED):
            pytest.fail(told, pytrace=False)
        pytest.skip(told)
    return found.path


@pytest.fixture(scope="session")
def driver(chromium: str) -> Iterator[Driver]:
    """Start the driver of this worker, which takes a second, and have it start a Chromium.

    The driver talks with a Chromium that it has started through a pipe; with others through a WebSocket, for which both
    compress whatever they say.
    """
    # Imported here: the environments of the adapters' tests load this module, and have no Playwright.
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # the browser shares a busy machine with other tests
    before = sys.get_asyncgen_hooks()
    playwright = sync_playwright().start()
    loop = asyncio.get_running_loop()
    driven = playwright.chromium.launch(executable_path=chromium, args=FLAGS, ignore_default_args=SHOWN)
    asyncio._set_running_loop(None)
    own = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(*before)
    yield Driver(driven, loop, own)
    asyncio._set_running_loop(loop)
    sys.set_asyncgen_hooks(*own)
    driven.close()
    playwright.stop()
    asyncio._set_running_loop(None)
    sys.set_asyncgen_hooks(*before)


@pytest.fixture(scope="module")
def browser(driver: Driver) -> Iterator[Browser]:
    """Drive the Chromium of this worker. The event loop of the driver counts as running, so no longer than a module."""
    before = sys.get_asyncgen_hooks()
    asyncio._set_running_loop(driver.loop)
    sys.set_asyncgen_hooks(*driver.hooks)
    yield driver.browser
    asyncio._set_running_loop(None)
    sys.set_asyncgen_hooks(*before)
