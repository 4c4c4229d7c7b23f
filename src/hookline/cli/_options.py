"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Concurrency", "Endpoint", "RecordFile", "Tasks"]

Concurrency = Annotated[int, typer.Option(min=1, metavar="N", help="Number of tasks that run at the same time.")]
Endpoint = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send spans by OTLP/HTTP, to /v1/traces unless the URL has a path."),
]
RecordFile = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="Write the events, for `hookline trace FILE`.")
]
Tasks = Annotated[list[str] | None, typer.Option(metavar="TASK", help="Only this task (user_task_0). Repeatable.")]
