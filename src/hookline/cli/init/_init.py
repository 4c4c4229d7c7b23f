"""`hookline init`: write a small project that runs: an agent, a hook, a test, a suite and how to start them."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from hookline.cli._terminal import make_copyable, report_errors
from hookline.cli.errors import ProjectFileError

__all__ = ["init"]

SCHEMA = "suite.schema.json"
"""The file by which editors complete and check suites."""

PROJECT = ("agent.py", "test_agent.py", "evals.yaml", "Makefile", "README.md", SCHEMA)
"""The files of the project, in the order in which a person reads them."""


def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="The folder to create; the current one by default.", show_default=False),
    ] = Path(),
) -> None:
    """Create a project: an agent, a hook, a test and a suite.

    The agent has a tool and a scripted model, so it runs without an API key. If one of the files exists, nothing is
    written.
    """
    with report_errors():
        write_project(folder)
    shown = make_copyable(str(folder))
    typer.echo(f"Created {', '.join(PROJECT)} in {'this folder' if folder == Path() else shown}.")
    typer.echo("\nRun the agent, then its tests:")
    if folder != Path():
        typer.echo(f"  cd {shown}")
    typer.echo("  python agent.py")
    if find_spec("pytest") is None:
        typer.echo("  python -m pip install pytest")
    typer.echo("  python -m pytest -q")


def _read_template(name: str) -> str:
    if name == SCHEMA:
        from hookline.evals.suites import suite_schema_text  # it takes a while to import

        return suite_schema_text()
    return files(__package__).joinpath("project", f"{name}.txt").read_text(encoding="utf-8")


def write_project(folder: Path) -> None:
    """Write the files of the project into a folder.

    Raises:
        ProjectFileError: If a file is there already, in which case nothing is written, or one cannot be written.
    """
    for name in PROJECT:
        if (folder / name).exists() or (folder / name).is_symlink():
            raise ProjectFileError(str(folder / name), "it already exists and is not overwritten")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in PROJECT:
            text = _read_template(name)
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ProjectFileError(str(error.filename or folder), error.strerror or str(error)) from None
