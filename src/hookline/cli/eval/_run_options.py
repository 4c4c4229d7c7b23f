"""The options of `hookline eval` about which tasks are run, how often, where, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hookline.evals.cassettes import RecordMode
from hookline.evals.running import Mode

__all__ = [
    "AgentPath",
    "AllowRepeats",
    "EvaluationOptions",
    "Limit",
    "MaxCost",
    "Models",
    "Repeat",
    "Resume",
    "Save",
    "Shuffle",
    "Tags",
    "TapeMode",
    "TapeModeChoice",
    "Tapes",
    "Timeout",
    "Workers",
]

Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Only tasks with this tag. Repeatable: any of the tags."),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Run the tasks with this model, such as openai:gpt-5, or ground-truth. Repeatable: models side by side.",
    ),
]
AgentPath = Annotated[
    str | None,
    typer.Option(
        "--agent", metavar="AGENT", help="Run the tasks with this agent: package.module:name or file.py:name."
    ),
]
Tapes = Annotated[
    Path | None,
    typer.Option(
        "--tape",
        metavar="DIR",
        help="Folder of tapes of model calls, one file per task. --mode record writes them, replay and strict ask no "
        "model; without --mode, known questions are replayed and others recorded.",
    ),
]


class TapeMode(StrEnum):
    """The values of `--tape-mode`: those of a `ModelTape`."""

    NONE = "none"
    ONCE = "once"
    NEW_EPISODES = "new_episodes"
    ALL = "all"
    REWRITE = "rewrite"


TapeModeChoice = Annotated[
    TapeMode | None,
    typer.Option("--tape-mode", metavar="MODE", help="What tapes record: none, once, new_episodes, all, rewrite."),
]
AllowRepeats = Annotated[
    bool,
    typer.Option("--allow-repeats", help="Give the last recorded answer again to a call that is made more often."),
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Run only N tasks.")]
Shuffle = Annotated[
    int | None, typer.Option(metavar="SEED", help="Shuffle the tasks: the same seed gives the same order.")
]
Repeat = Annotated[int, typer.Option(min=1, metavar="N", help="Run each task N times.")]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Stop a task that takes longer. It fails; the others go on."),
]
MaxCost = Annotated[
    float | None,
    typer.Option(metavar="USD", help="Start no further task once the tasks have cost this much."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Run the tasks in N processes, in place of this one.")
]
Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save the run, a line as each task ends: for --resume and `hookline eval diff`."),
]
Resume = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Continue a saved run that was interrupted, in the same file.")
]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How an evaluation runs its tasks. The fields are those of `SuiteRunner`."""

    repeat: int = 1
    shuffle: int | None = None
    limit: int | None = None
    timeout: float | None = None
    max_cost: float | None = None
    save: Path | None = None
    resume: Path | None = None
    workers: int | None = None
    tapes: Path | None = None
    tape_mode: RecordMode | None = None
    allow_repeats: bool = False

    def check(
        self, *, mode: Mode | None, mocked: bool, recording: bool, tracing: bool, models: Sequence[str] = ()
    ) -> None:
        """Check that the options go together.

        Args:
            mode: The mode that was asked for.
            mocked: Whether the tasks run twice.
            recording: Whether events are recorded to a file.
            tracing: Whether spans are sent.
            models: The models that were asked for.

        Raises:
            typer.BadParameter: If they do not.
        """
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise typer.BadParameter("give a number of seconds above 0, such as 60", param_hint="'--timeout'")
        if self.max_cost is not None and not 0 <= self.max_cost < float("inf"):
            raise typer.BadParameter("give a number of US dollars from 0, such as 2.50", param_hint="'--max-cost'")
        if self.tape_mode is not None and self.tapes is None:
            raise typer.BadParameter("--tape-mode is for --tape.")
        if mocked:
            for option, given in (
                ("--repeat", self.repeat > 1),
                ("--resume", self.resume),
                ("--workers", self.workers),
                ("the second --model", len(models) > 1),
            ):
                if given:
                    raise typer.BadParameter(
                        f"--mocked runs the tasks once and replays them in memory; leave {option} out."
                    )
        for option, given in (("--record", recording), ("--otlp-endpoint", tracing)):
            if given and self.workers is not None:
                raise typer.BadParameter(f"{option} needs the events of this process; leave --workers out.")

    def choose_workers(self, *, hooked: bool, mocked: bool) -> int | None:
        """Return the number of worker processes; `None` for none.

        A task that does not stop when its time is over can only be ended with its process, so that a time limit means a
        worker, unless something needs the tasks to run here.

        Args:
            hooked: Whether hooks of this process watch the tasks.
            mocked: Whether they are recorded in memory.
        """
        if self.workers is None and self.timeout is not None and not hooked and not mocked:
            return 1
        return self.workers
