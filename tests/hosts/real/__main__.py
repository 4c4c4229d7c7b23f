"""Run every case in the real coding agents, and show which hold: `make hosts`.

The programs come from npm, into a folder of their own. A program that cannot be run here is shown with the message that
stopped it, and its column says "recorded frames": the tests of `tests/hosts` are all that stands behind it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from tests.hosts.real.cases import CASES, Failed, NotPossible, Scene
from tests.hosts.real.programs import PROGRAMS, ROOT, VERSIONS

FOLDER = ROOT / ".hosts-venv"
UNTRIED = ("cursor",)
"""Programs that cannot be had from a package registry."""


def main() -> int:
    """Run the cases; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", action="append", choices=PROGRAMS)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--programs", type=Path, default=FOLDER, help="Folder with node_modules of the programs.")
    parser.add_argument("--json", type=Path, help="Write the results to this file.")
    given = parser.parse_args()
    install(given.programs)
    results: dict[str, dict[str, str]] = {}
    for host in given.host or list(PROGRAMS):
        stopped = find_obstacle(host, given.programs)
        if stopped:
            print(f"{host} does not run here: {stopped}", flush=True)
        for name in given.case or list(CASES):
            result = "recorded frames" if stopped else run_case(host, name, given.programs)
            results.setdefault(name, {})[host] = result
            print(f"{host:7} {name:34} {result}", flush=True)
    print(f"\n{'':34}" + "".join(f"{host:18}" for host in [*(given.host or PROGRAMS), *UNTRIED]))
    for name, row in results.items():
        cells = [found if len(found) < 17 else "FAILED" for found in row.values()]
        print(f"{name:34}" + "".join(f"{each:18}" for each in [*cells, *["recorded frames"] * len(UNTRIED)]))
    if given.json:
        given.json.write_text(json.dumps({"versions": VERSIONS, "results": results}, indent=2) + "\n")
    return (
        1
        if any(
            found not in ("passed", "recorded frames", "not possible")
            for row in results.values()
            for found in row.values()
        )
        else 0
    )


def install(folder: Path) -> None:
    """Install the programs, unless they are there in these versions."""
    missing = [each for each in VERSIONS.values() if not has_version(folder, each)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel", "error", *missing],
            check=True,
        )


def has_version(folder: Path, package: str) -> bool:
    """Whether a package is installed in a version."""
    name, _, version = package.rpartition("@")
    found = folder / "node_modules" / name / "package.json"
    return found.exists() and json.loads(found.read_text())["version"] == version


def find_obstacle(host: str, programs: Path) -> str:
    """Return the message of a program that does not run against a model on loopback; `""` if it runs."""
    scene = Scene(host, programs)
    scene.plans["main"] = [scene.shell("fine")]
    try:
        ran = scene.run()
    except (Failed, OSError) as error:
        return str(error)
    return "" if scene.has_run() else (ran.err or ran.out).strip()[-500:] or f"it ended with {ran.code}"


def run_case(host: str, name: str, programs: Path) -> str:
    """Return `"passed"`, or what the program did instead."""
    scene = Scene(host, programs)
    try:
        CASES[name](scene)
    except NotPossible:
        return "not possible"
    except Failed as error:
        return f"FAILED: {error}"
    finally:
        scene.end()
    return "passed"


if __name__ == "__main__":
    sys.exit(main())
