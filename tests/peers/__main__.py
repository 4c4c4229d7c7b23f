"""Run frameworks' own tests of their agent loops, bare and with hookline attached, and compare them test by test.

    python -m tests.peers [framework ...] [-k EXPRESSION]

Their source distributions hold the tests; for those that hold none, a variable names a checkout of the repository. All
that is downloaded and made stays in `.peers`, with the output of each run.

Exit codes: 0, every test that passes bare passes attached, but for listed differences; 1, another differs; 2, wrong
use; 3, none differs, but some frameworks were not run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .frame import (
    HOME,
    MODES,
    Comparison,
    Difference,
    Outcomes,
    Peer,
    compare,
    differences,
    environment,
    installed,
    outcomes,
    source,
)

NAMES = ("openai_agents", "langchain", "strands", "fastmcp", "pydantic_ai", "agent_framework")
AGAIN = 2
"""How often tests that differ are run again: those of timing and of chance agree then."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", nargs="*", metavar="framework", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "-k", metavar="EXPRESSION", help="only tests that match, as in pytest; the lists are not judged"
    )
    parser.add_argument("--timeout", type=int, default=60, help="seconds that one test may take (default: 60)")
    options = parser.parse_args()
    if unknown := [name for name in options.peers if name not in NAMES]:
        parser.error(f"there is no framework {unknown[0]!r}; there are {', '.join(NAMES)}")
    HOME.mkdir(exist_ok=True)
    results = [_run(name, options.k, options.timeout) for name in options.peers or NAMES]
    missing = results.count(None)
    if missing:
        print(f"{missing} of {len(results)} frameworks not run")
    if False in results:
        return 1
    return 3 if missing else 0


def _run(name: str, chosen: str | None, timeout: int) -> bool | None:
    """Compare one framework; `None` if it was not run."""
    try:
        peer: Peer = importlib.import_module(f".{name}", __package__).PEER
    except ModuleNotFoundError as error:
        if error.name != f"{__package__}.{name}":
            raise
        print(f"== {name}: not run; there is no module tests/peers/{name}.py")
        return None
    python = environment(peer)
    folder = source(peer, python)
    if folder is None:
        print(f"== {name}: not run; its source distribution holds no tests, so set {peer.variable} to a checkout")
        return None
    print(f"== {name} {installed(peer, python)}, tests of {folder.name}", flush=True)
    if chosen is not None:
        peer = _narrowed(peer, chosen)
    bare = _timed(peer, python, folder, MODES[0], timeout)
    listed = [] if chosen is not None else differences(name)
    held = [_compare(peer, python, folder, mode, bare, listed, timeout) for mode in MODES[1:]]
    return all(held)


def _narrowed(peer: Peer, chosen: str) -> Peer:
    values = {**vars(peer), "options": (*peer.options, "-k", chosen)}
    return Peer(**values)


def _timed(peer: Peer, python: Path, folder: Path, mode: str, timeout: int) -> Outcomes:
    begun = time.monotonic()
    found = outcomes(peer, python, folder, mode, only=(), timeout=timeout)
    passed = sum(outcome == "passed" for outcome in found.ended.values())
    print(f"   {mode}: {passed} of {len(found.ended)} pass ({time.monotonic() - begun:.0f} s)", flush=True)
    return found


def _compare(
    peer: Peer, python: Path, folder: Path, mode: str, bare: Outcomes, listed: Sequence[Difference], timeout: int
) -> bool:
    attached = _timed(peer, python, folder, mode, timeout)
    found = compare(bare.ended, attached, mode, listed)
    for _ in range(AGAIN):
        if not found.unlisted:
            break
        for where, told in ((MODES[0], bare), (mode, attached)):  # by chance it may have passed bare
            told.update(outcomes(peer, python, folder, where, only=found.unlisted, timeout=timeout))
        found = compare(bare.ended, attached, mode, listed)
    _tell(peer, found)
    return found.holds


def _tell(peer: Peer, found: Comparison) -> None:
    rate = 100 * found.same / found.passed if found.passed else 0
    print(
        f"   {found.mode}: {found.same} of {found.passed} that pass bare and run with hooks pass so too ({rate:.1f} %); "
        f"{found.passed - found.same} of all {found.bare} that pass bare differ"
    )
    for test in found.unlisted:
        print(f"   DIFFERS {test}")
    for test in found.settled:
        print(f"   DIFFERS NO LONGER, so take it from differences/{peer.name}.toml: {test}")
    if not found.passed:
        print("   no test that passes bare ran anything with hooks")
    if found.unlisted:
        print(f"   their output: {HOME / f'{peer.name}-{found.mode}-again.log'}")
    if found.too_many:
        print("   more than 1 test in 100 differs")


if __name__ == "__main__":
    sys.exit(main())
