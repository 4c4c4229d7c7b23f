"""The wheel installs, and runs the README outside the tree."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import venv

import msgspec
import pytest

from .markdown import ROOT, blocks

README = (ROOT / "README.md").read_text()
PROGRAMS = [block.code for block in blocks(README) if block.language == "python"]
SHIPPED = (".py", ".html", ".css", ".js", ".svg", ".typed")
OUTPUTS = [block.code for block in blocks(README) if block.marker == "output"]


def run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may name the source tree
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The Python of an environment that has the wheel, and the dependencies of this one, but not the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    has_backend = importlib.util.find_spec("hatchling") is not None
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--wheel-dir",
        folder,
        *(["--no-build-isolation"] if has_backend else []),
        ROOT,
    ]
    try:
        run(*build)
    except AssertionError as error:
        if has_backend or "hatchling" not in str(error):
            raise
        pytest.skip("neither hatchling nor a package index is there to build the wheel with")
    (wheel,) = folder.glob("hookline-*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    own = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    # Only what is run is compiled, not all modules.
    run(*pip[:3], "--python", own, "--quiet", "install", "--no-compile", "--no-deps", "--no-index", wheel)
    (site_packages,) = environment.rglob("site-packages")
    (site_packages / "dependencies.pth").write_text(str(pathlib.Path(msgspec.__file__).parents[1]))
    return own


def test_the_wheel_runs_the_readme(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "readme.py").write_text("\n".join(PROGRAMS))

    printed = run(python, "readme.py", cwd=tmp_path)

    assert PROGRAMS
    assert [line.rstrip() for line in printed.splitlines()] == "".join(OUTPUTS).splitlines()


def test_the_wheel_has_its_types_its_templates_and_its_command(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    package = pathlib.Path(run(python, "-c", "import hookline; print(hookline.__file__)", cwd=tmp_path)).parent
    source = ROOT / "src" / "hookline"
    wanted = {each.relative_to(source) for kind in SHIPPED for each in source.rglob(f"*{kind}")}
    wanted = {each for each in wanted if each.parent.name != "scripts"}  # the wheel has what is built of them

    assert python.parents[1] in package.parents
    assert [each for each in sorted(wanted) if not (package / each).exists()] == []
    assert "hookline" in run(python.with_name("hookline"), "--version", cwd=tmp_path)
