"""Runs the tests of each adapter in environments of its own: its framework at its newest and its lowest supported version.

    python tests/adapters/environments.py [framework ...] [--only newest|lowest]

The environments stay in `.adapters-venv`, so that a second run is quick.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".adapters-venv"
TESTS = ["dirty-equals", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "trio"]
"""What the tests of an adapter need beside its framework."""

EXTRAS = {
    "pydantic_ai": "pydantic-ai",
    "openai_agents": "openai-agents",
    "langchain": "langchain",
    "strands": "strands",
    "agent_framework": "agent-framework",
    "google_adk": "google-adk",
    "fastmcp": "fastmcp",
    "claude_agent_sdk": "claude-agent-sdk",
}
"""Adapters, and the extra of each, which is the name of its page too."""

PAGES = "tests/docs/test_code_of_the_pages.py"


def requirements(extra: str, *, lowest: bool) -> list[str]:
    """What an extra asks for; at its lower bounds with `lowest`."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    return [each.replace(">=", "==").partition(",")[0] if lowest else each for each in declared]


def environment(name: str, wanted: list[str]) -> Path:
    """The interpreter of an environment that has these packages and hookline; made if there is none."""
    home, note = HOME / name, HOME / f"{name}.txt"
    python = home / "bin" / "python"
    packages = [*wanted, *TESTS, "--editable", f"{ROOT}[cli,evals,otel,server]"]
    if not note.exists() or note.read_text() != "\n".join(packages):
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "--upgrade", *packages], check=True)
        note.write_text("\n".join(packages))
    return python


def tested(adapter: str, *, lowest: bool) -> bool:
    """Whether the tests of an adapter pass in its environment."""
    which = "lowest" if lowest else "newest"
    python = environment(f"{adapter}-{which}", requirements(EXTRAS[adapter], lowest=lowest))
    page = EXTRAS[adapter]
    print(f"== {adapter}, {which}: ", end="", flush=True)
    ran = subprocess.run(
        [
            str(python),
            "-m",
            "pytest",
            "-q",
            "--no-header",
            f"tests/adapters/{adapter}",
            PAGES,
            "-k",
            f"{adapter} or {page} or ten-lines",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    lines = ran.stdout.strip().splitlines()
    print(lines[-1] if lines else ran.stderr.strip()[-300:])
    if ran.returncode:
        print(*[line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))], sep="\n")
    return ran.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adapters", nargs="*", metavar="adapter", help=f"of {', '.join(EXTRAS)} (default: all)")
    parser.add_argument("--only", choices=["newest", "lowest"])
    options = parser.parse_args()
    unknown = [name for name in options.adapters if name not in EXTRAS]
    if unknown:
        parser.error(f"there is no adapter {unknown[0]!r}; there are {', '.join(EXTRAS)}")
    HOME.mkdir(exist_ok=True)
    sides = [False, True] if options.only is None else [options.only == "lowest"]
    results = [tested(name, lowest=side) for name in options.adapters or EXTRAS for side in sides]
    print(f"{sum(results)} of {len(results)} environments passed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
