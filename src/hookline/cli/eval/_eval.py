"""`hookline eval SUITE`, `hookline eval diff A B` and `hookline eval attack SUITE`: run, compare and attack suites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from hookline.cli._commands import Command, CommandApp, CommandGroup, command_line_of
from hookline.cli._exit_codes import exit_code_of
from hookline.cli._options import Concurrency, Endpoint, RecordFile, Tasks
from hookline.cli._outputs import OutputFiles, resolve_output, send_spans, write_recording
from hookline.cli._terminal import report_errors
from hookline.cli.errors import OutputFileError
from hookline.cli.eval._attacks import run_attacks, show_attacks
from hookline.cli.eval._baseline import open_baseline
from hookline.cli.eval._cassettes import cassettes_app
from hookline.cli.eval._diff import (
    AllowMissing,
    MaxCallsIncrease,
    MaxCostIncrease,
    MaxScoreDrop,
    MinScore,
    diff_document,
    diff_json,
    show_diff,
    thresholds_of,
)
from hookline.cli.eval._evaluation import Evaluation, InterruptedEvaluation, evaluate, find_cases
from hookline.cli.eval._gate import (
    Baseline,
    ComparedModels,
    FailOnCannotTell,
    Gate,
    PairedTestChoice,
    SummaryFile,
    compare_models,
    gate_code,
    name_runs,
)
from hookline.cli.eval._judges import judges_app
from hookline.cli.eval._run_options import (
    AgentPath,
    AllowRepeats,
    EvaluationOptions,
    Limit,
    MaxCost,
    Models,
    Repeat,
    Resume,
    Save,
    Shuffle,
    Tags,
    TapeModeChoice,
    Tapes,
    Timeout,
    Workers,
)
from hookline.cli.eval._tables import show_evaluation
from hookline.cli.trace import EventRecording, Tracing
from hookline.evals.faults import load_faults
from hookline.evals.reports import RunDiff, diff_summary, load_run, write_summary
from hookline.evals.running import Mode
from hookline.evals.suites import choose_agents, suite_schema_text

__all__ = ["eval_app"]

SUITE = "suite"
"""The hidden name of the command that runs a suite: `hookline eval` alone means it."""


class SuiteOrCommand(CommandGroup):
    """A group that takes its first word as a suite unless it names a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command that runs a suite in front, unless another one is called."""
        named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if named else [SUITE, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command without its hidden name, so that usage and errors say `hookline eval`."""
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == SUITE else name), command, rest


class SuiteContext(typer.Context):
    """The context of that command, which has no name of its own."""

    @property
    def command_path(self) -> str:
        """Return the command as a person types it."""
        return super().command_path.rstrip()


class SuiteCommand(Command):
    """The command that runs a suite."""

    context_class = SuiteContext


class EvalMode(StrEnum):
    """The values of `--mode`: whether tools really run, and whether answers are recorded or replayed."""

    SPY = "spy"
    RECORD = "record"
    REPLAY = "replay"
    STRICT = "strict"


eval_app = CommandApp(name="eval", cls=SuiteOrCommand, help="Run the tasks of a suite, or compare two runs.")
eval_app.add_typer(judges_app)


@eval_app.command("schema")
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


eval_app.add_typer(cassettes_app)

ModeChoice = Annotated[
    EvalMode | None, typer.Option(metavar="MODE", help="spy and record run real tools; replay and strict run none.")
]
Cassettes = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of cassettes, one file per task. --mode record writes it, replay and strict read it.",
    ),
]
Mocked = Annotated[
    bool, typer.Option("--mocked", help="Run twice, the second time with recorded answers only, and compare.")
]


@eval_app.command(SUITE, cls=SuiteCommand, hidden=True)
def evaluate_suite(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="SUITE", help="agentdojo:banking (or workspace, travel, slack, all), or a file of your own."
        ),
    ],
    model: Models = None,
    agent: AgentPath = None,
    task: Tasks = None,
    tag: Tags = None,
    limit: Limit = None,
    shuffle: Shuffle = None,
    repeat: Repeat = 1,
    mode: ModeChoice = None,
    cassettes: Cassettes = None,
    tape: Tapes = None,
    tape_mode: TapeModeChoice = None,
    allow_repeats: AllowRepeats = False,
    mocked: Mocked = False,
    faults: Annotated[Path | None, typer.Option(metavar="FILE", help="Inject the faults in this YAML file.")] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the faults: the same seed breaks the same calls.")
    ] = 0,
    concurrency: Concurrency = 8,
    workers: Workers = None,
    timeout: Timeout = None,
    max_cost: MaxCost = None,
    save: Save = None,
    resume: Resume = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    inspect: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a log for Inspect.")] = None,
    messages: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the messages of each task as JSON, for agentevals.")
    ] = None,
    record: RecordFile = None,
    otlp_endpoint: Endpoint = None,
    baseline: Baseline = None,
    min_score: MinScore = None,
    max_score_drop: MaxScoreDrop = None,
    max_cost_increase: MaxCostIncrease = None,
    max_calls_increase: MaxCallsIncrease = None,
    allow_missing: AllowMissing = False,
    paired_test: PairedTestChoice = False,
    fail_on_cannot_tell: FailOnCannotTell = False,
    summary: SummaryFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Run the tasks of a suite and check the results.

    The tables show who answered the tool calls of each task, and the cost of hooks. SUITE is a suite of AgentDojo, or
    a file of your own: suite.yaml, suite.py. `hookline eval diff A B` compares two saved runs, `hookline eval attack
    SUITE` tries injection attacks, `hookline eval cassettes check SUITE` finds stale recordings.

    Exits with 1 if a task failed or a replay differs from the recording, with 2 for a wrong name or file, with 3 if no
    task has a check, with 4 if spans did not arrive. After Ctrl-C (130) or SIGTERM (143) the files contain the tasks
    that were done; a second Ctrl-C ends at once, and leaves the saved run alone.

    With --baseline it exits like `hookline eval diff`, and takes its limits: with 1 if something is worse than there,
    and by more than they allow. Tasks that failed there may fail again.
    """
    _check_options(mode, mocked=mocked, cassettes=cassettes)
    options = EvaluationOptions(
        repeat=repeat,
        shuffle=shuffle,
        limit=limit,
        timeout=timeout,
        max_cost=max_cost,
        save=save,
        resume=resume,
        workers=workers,
        tapes=tape,
        tape_mode=None if tape_mode is None else tape_mode.value,
        allow_repeats=allow_repeats,
    )
    options.check(
        mode=None if mode is None else mode.value,
        mocked=mocked,
        recording=record is not None,
        tracing=otlp_endpoint is not None,
        models=model or [],
    )
    thresholds = thresholds_of(
        min_score=min_score,
        max_score_drop=max_score_drop,
        max_cost_increase=max_cost_increase,
        max_calls_increase=max_calls_increase,
        allow_missing=allow_missing,
    )
    gate = Gate(
        baseline=baseline,
        thresholds=thresholds,
        paired=paired_test,
        fail_on_cannot_tell=fail_on_cannot_tell,
        summary=summary,
    )
    gate.check(saved=save or resume)
    with report_errors(), gate.open() as earlier:
        files = OutputFiles.resolve(report=report, junit=junit, save=save or resume, inspect=inspect, messages=messages)
        record, gate = resolve_output(record), replace(gate, summary=resolve_output(summary))
        struck = load_faults(faults) if faults is not None else []
        tracing = Tracing(otlp_endpoint) if otlp_endpoint is not None else None
        kept = EventRecording() if record is not None else None
        console = Console(highlight=False, stderr=as_json)
        try:
            evaluation = evaluate(
                Console(stderr=True),
                [target],
                choose_agents(find_cases([target], task or [], tag or []), models=model or [], agent=agent),
                mocked=mocked,
                concurrency=concurrency,
                hooks=[tracing.hooks] if tracing is not None else [],
                recording=[kept.hooks] if kept is not None else [],
                mode=_runner_mode(mode),
                cassettes=cassettes,
                faults=struck,
                seed=seed,
                made_by=command_line_of(context),
                options=options,
            )
        except InterruptedEvaluation as interrupted:
            gate.write_summary(interrupted.evaluation, [])
            _write_interrupted(interrupted.evaluation, files)
            write_recording(Console(stderr=True, highlight=False), kept, record)
            raise
        diffs = gate.compare(evaluation, earlier)
        _write_and_show(console, evaluation, files, diffs, as_json=as_json)
        gate.show(console, evaluation, diffs)
        gate.write_summary(evaluation, diffs)
        write_recording(console, kept, record)
        arrived = send_spans(console, tracing)
        if evaluation.ok and not evaluation.judged:
            typer.echo("hookline: nothing was judged: no task has checks or expected calls", err=True)
    raise typer.Exit(gate.exit_code(evaluation, diffs, arrived=arrived))


def _write_and_show(
    console: Console, evaluation: Evaluation, files: OutputFiles, diffs: Sequence[RunDiff], *, as_json: bool
) -> None:
    """Write the files that were asked for, and print the result."""
    files.write(evaluation)
    if as_json:
        for part in evaluation.json_parts(files.report, list(map(diff_document, diffs))):
            typer.echo(part, nl=False)
        typer.echo()
    else:
        show_evaluation(console, evaluation, files.report)
    files.print_paths(console)


@eval_app.command("diff")
def diff(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[A] B", help="The earlier and the later run, saved with --save; only B with --baseline."
        ),
    ],
    baseline: Baseline = None,
    model: ComparedModels = None,
    min_score: MinScore = None,
    max_score_drop: MaxScoreDrop = None,
    max_cost_increase: MaxCostIncrease = None,
    max_calls_increase: MaxCallsIncrease = None,
    allow_missing: AllowMissing = False,
    paired_test: PairedTestChoice = False,
    fail_on_cannot_tell: FailOnCannotTell = False,
    summary: SummaryFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Compare two runs task by task: results, tool calls and cost.

    A task got worse if B does not have it, was interrupted before it, now fails it, no longer judges it, or gives it a
    lower score. With the options below, higher cost and more calls count too. A limit applies to each task; mean:0.02
    limits the mean of all tasks. An increase is a number, or a percentage: 10%.

    If tasks were repeated, single tasks may score less: a paired test of all tasks says better, worse or cannot tell.

    Exits with 1 if a task or the whole run got worse, with 2 for a file that is not a saved run, with 3 if A and B have
    no task in common. If it cannot be told it exits with 0, or with 5 and --fail-on-cannot-tell.
    """
    earlier, later = name_runs(runs, baseline)
    thresholds = thresholds_of(
        min_score=min_score,
        max_score_drop=max_score_drop,
        max_cost_increase=max_cost_increase,
        max_calls_increase=max_calls_increase,
        allow_missing=allow_missing,
    )
    with report_errors():
        summary = resolve_output(summary)
        with open_baseline(earlier) as a:
            b = None if later is None else load_run(later)
            found = compare_models(a, b, model, thresholds=thresholds, paired=paired_test)
        if as_json:
            typer.echo(diff_json(found))
        else:
            show_diff(Console(highlight=False), found)
        if summary is not None:
            write_summary(summary, diff_summary(found, a=earlier, b=later or earlier))
    raise typer.Exit(gate_code([found], fail_on_cannot_tell=fail_on_cannot_tell))


@eval_app.command("attack")
def attack(
    targets: Annotated[
        list[str], typer.Argument(metavar="SUITE", help="agentdojo:banking (or workspace, travel, slack, all).")
    ],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Attack this model, such as openai:gpt-5, in place of a script.")
    ] = None,
    agent: AgentPath = None,
    policy: Annotated[
        list[str] | None, typer.Option(metavar="POLICY", help="Only this guard policy. Repeatable.")
    ] = None,
    task: Tasks = None,
    wording: Annotated[
        str, typer.Option(metavar="NAME", help="Wording of the injected instructions: ignore, plain, polite.")
    ] = "ignore",
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of processes. The number of processors by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Try injection attacks on a suite, and count which ones each guard policy stops.

    The model is scripted, unless --model or --agent names another one: it follows every instruction that is injected
    into tool results.

    Exits with 1 if an attempt did not finish, with 2 for a wrong name.
    """
    with report_errors():
        run = run_attacks(
            targets,
            policies=policy or [],
            tasks=task or [],
            wording=wording,
            processes=processes,
            model=model,
            agent=agent,
        )
        if as_json:
            typer.echo(run.as_json())
        else:
            show_attacks(Console(highlight=False), run)
    raise typer.Exit(exit_code_of(ok=all(attempt.reason == "done" for attempt in run.attempts)))


def _check_options(mode: EvalMode | None, *, mocked: bool, cassettes: Path | None) -> None:
    if mocked and mode is not None:
        raise typer.BadParameter("--mocked records and replays in memory; leave --mode out.")
    if cassettes is not None and mode in (None, EvalMode.SPY):
        raise typer.BadParameter("--cassettes is for --mode record, replay and strict.")


def _runner_mode(mode: EvalMode | None) -> Mode:
    """Return the runner's name of a mode; without `--mode` tools really run, and are recorded in memory."""
    return "real" if mode is None else mode.value


def _write_interrupted(evaluation: Evaluation, files: OutputFiles) -> None:
    """Write the files of an evaluation that was interrupted, with the tasks that were done."""
    if files.any:
        console = Console(stderr=True, highlight=False)
        files.write(evaluation)
        done = sum(len(run.results) for run in evaluation.runs)
        console.print(escape(f"{done} tasks were done; the files contain them."), soft_wrap=True)
        files.print_paths(console, report=True)
