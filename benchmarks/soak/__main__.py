"""Long runs on real things: operations under faults, killed processes, traces in a viewer; exits 0 if all is well."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.soak.report import kind_of, report

PARTS = ("durable", "engines", "viewer")
DATABASES = ("postgresql", "sqlite")
MOST_KINDS = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=30.0, help="durable: in all, with faults (default: 30)")
    parser.add_argument("--database", choices=DATABASES, help="durable: on this one alone")
    parser.add_argument("--kills", type=int, default=20, help="engines: at each place on each engine (default: 20)")
    parser.add_argument("--phoenix", type=Path, metavar="COMMAND", help="viewer: the `phoenix` to start")
    parser.add_argument("--keep", action="store_true", help="viewer: leave it up for a look, until Ctrl-C")
    options = parser.parse_args()
    parts = options.parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # What was started is to be stopped however this ends; a shell ignores SIGINT for what it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = options.phoenix.absolute() if options.phoenix else None
    if "viewer" in parts and (command is None or not os.access(command, os.X_OK)):
        parser.error(f"--phoenix names {command}, which is no command; `make soak` installs one")
    fine = True
    if "durable" in parts:
        databases = [options.database] if options.database else DATABASES
        for database in databases:
            fine = durable(database, options.minutes / len(databases)) and fine
    if "engines" in parts:
        fine = engines(options.kills) and fine
    if "viewer" in parts and command is not None:
        from benchmarks.soak import viewer

        fine = verdict(viewer.soak(command, keep=options.keep), "what is shown is what was sent") and fine
    return 0 if fine else 1


def durable(database: str, minutes: float) -> bool:
    """Soak one database, and print what was counted."""
    from benchmarks.soak.durable import soak_on

    # The soak's own connection sees the outages too; what workers say of them is in the report.
    logging.getLogger("hookline").addHandler(logging.NullHandler())
    folder = Path(tempfile.mkdtemp(prefix="hookline-soak-"))
    print(f"## {database}, {minutes:g} minutes", flush=True)
    soak, count = asyncio.run(soak_on(database, folder, minutes))
    print(report(soak, count, folder / "log"))
    fine = verdict(count.problems, "nothing is lost, unsigned, or done twice")
    if fine:
        shutil.rmtree(folder)
    else:
        print(f"what it leaves is in {folder}")
    return fine


def engines(kills: int) -> bool:
    """Kill processes of operations on each engine, and print what was counted."""
    from benchmarks.soak.engines import ENGINES, EngineSoak

    soak = EngineSoak()
    for engine in ENGINES:
        with tempfile.TemporaryDirectory(prefix="hookline-soak-") as folder:
            print(f"## {engine}, {kills} kills at each place", flush=True)
            asyncio.run(soak.kill_on(engine, kills, Path(folder)))
    print(soak.report())
    return verdict(soak.problems, "nothing is lost, done twice, or told in two ways, and all was taken over in time")


def verdict(problems: list[str], fine: str) -> bool:
    """Print one problem of each kind and how many are like it, or that there is none."""
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        kinds.setdefault(kind_of(problem), []).append(problem)
    for alike in list(kinds.values())[:MOST_KINDS]:
        print(f"  {alike[0]}" + (f", and {len(alike) - 1} more like that" if len(alike) > 1 else ""))
    if len(kinds) > MOST_KINDS:
        print(f"  and {len(kinds) - MOST_KINDS} other kinds")
    print(f"FAIL: {len(problems)} problems" if problems else f"OK: {fine}", flush=True)
    return not problems


if __name__ == "__main__":
    sys.exit(main())
