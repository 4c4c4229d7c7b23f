"""`hookline eval schema`: write the JSON schema of suite files, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hookline.cli._terminal import report_errors
from hookline.cli.errors import OutputFileError
from hookline.evals.suites import suite_schema_text

__all__ = ["write_schema"]


def write_schema(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The file to write; stdout by default.", show_default=False)
    ] = None,
) -> None:
    """Write the JSON schema of suite files, for editors.

    The first line of a suite names it: # yaml-language-server: $schema=suite.schema.json

    Exits with 2 if the file cannot be written.
    """
    if file is None:
        typer.echo(suite_schema_text(), nl=False)
        return
    with report_errors():
        try:
            file.write_text(suite_schema_text(), encoding="utf-8")
        except OSError as error:
            raise OutputFileError(str(file), error.strerror or str(error)) from None
    typer.echo(f"Wrote {file}.")
