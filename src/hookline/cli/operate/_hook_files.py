"""`hookline hooks check`, `diff` and `apply`: test files of hook definitions, compare them with a store, store them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar
from xml.etree.ElementTree import Element, SubElement

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from hookline.cli._exit_codes import DIFFERS, DONE, FAILED, MISUSED, NOT_JUDGED, interrupted_code
from hookline.cli._terminal import format_status, make_copyable, make_one_line, print_json_lines, print_path
from hookline.cli.operate._bus import BusCredentials, BusNkeySeed, BusPrefix, BusUrls, BusWait, make_bus
from hookline.cli.operate._hooks import hooks_app, read_hook_file, state_of, with_registry, without_derived_id
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Fence,
    Modules,
    Scripts,
    StoreUrl,
    actor,
    find_modules,
    operate,
    plan_on,
    report_errors_only,
    run_quietly,
)

if TYPE_CHECKING:
    from hookline.bus import NatsBus
    from hookline.registry import (
        DefinitionFileError,
        DefinitionPlan,
        FieldChange,
        HookDefinition,
        HookFile,
        HookTestResult,
        PlannedChange,
        Registry,
    )

__all__ = ["apply_hooks", "check_hooks", "diff_hooks"]

T = TypeVar("T")

VERBS = {"create": "create", "update": "change", "enable": "enable", "disable": "disable", "delete": "remove"}
"""What a plan does, as people read it."""
STYLES = {"create": "green", "update": "yellow", "enable": "green", "disable": "yellow", "delete": "red"}
DETAIL_INDENT = 10

OneFile = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML, YAML or JSON file; - reads JSON from stdin.")]
Owner = Annotated[str, typer.Option("--tenant", metavar="ID", help="The tenant that owns them; the system by default.")]
AllowNotRun = Annotated[
    bool, typer.Option("--allow-not-run", help="Accept tests that are not run, since they ask over a bus.")
]
Prune = Annotated[bool, typer.Option("--prune", help="Remove the tenant's other stored definitions too.")]


class CheckedFile(NamedTuple):
    """The result of `hookline hooks check` for a file.

    Attributes:
        file: Its name.
        hooks: How many definitions it has.
        results: The results of its tests.
        error: Why the file cannot be used, if so.
    """

    file: str
    hooks: int
    results: Sequence[HookTestResult]
    error: DefinitionFileError | None = None


@hooks_app.command("check")
def check_hooks(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files of hook definitions, or folders of them.")],
    modules: Modules = None,
    scripts: Scripts = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    bus: BusUrls = None,
    bus_credentials: BusCredentials = None,
    bus_nkey_seed: BusNkeySeed = None,
    bus_prefix: BusPrefix = "hookline",
    bus_wait: BusWait = 0.0,
    allow_not_run: AllowNotRun = False,
    as_json: AsJson = False,
) -> None:
    """Check files of hook definitions, and run the tests in them.

    Needs no store. No tool runs, and nothing is sent: webhooks get the answers that a test declares. Remote hooks are
    asked over the bus; without one, tests that would ask are not run.

    Exits with 1 if a test fails, with 2 if a file cannot be used, and with 3 if there is nothing to check or a test was
    not run.
    """
    with report_errors_only():
        from hookline.evals.reports import check_writable

        target = None if junit is None else check_writable(junit)
        find_modules(modules)
        made = None
        if bus:
            made = make_bus(bus, credentials=bus_credentials, nkey_seed=bus_nkey_seed, prefix=bus_prefix, wait=bus_wait)
        checked = run_quietly(_check_files(paths, modules, scripts, made))
    if as_json:
        print_json_lines(result for each in checked for result in each.results)
    else:
        _print_checks([each for each in checked if each.error is None])
    for each in checked:
        if each.error is not None:
            typer.echo(f"hookline: {each.error}", err=True)
    if target is not None:
        with report_errors_only():
            _write_junit(target, checked)
        print_path(Console(highlight=False, stderr=True), "JUnit", target)
    raise typer.Exit(_check_exit_code(checked, allow_not_run=allow_not_run))


def _check_exit_code(checked: Sequence[CheckedFile], *, allow_not_run: bool) -> int:
    results = [result for each in checked for result in each.results]
    if any(each.error for each in checked):
        return MISUSED
    if not all(result.passed or result.not_run for result in results):
        return FAILED
    not_run = sum(bool(result.not_run) for result in results)
    if not_run and not allow_not_run:
        typer.echo(f"hookline: {_tell_not_run(not_run)}; give --bus, or --allow-not-run", err=True)
        return NOT_JUDGED
    if not any(each.hooks for each in checked):
        typer.echo("There are no hook definitions to check.", err=True)
        return NOT_JUDGED
    return DONE


def _tell_not_run(count: int) -> str:
    return f"{_count(count, 'test')} {'was' if count == 1 else 'were'} not run, for lack of a bus"


async def _check_files(
    paths: Sequence[Path], modules: Sequence[str] | None, scripts: Path | None, bus: NatsBus | None
) -> list[CheckedFile]:
    """Check all files, also behind one that cannot be used. Definitions of one path must not contradict each other."""
    from hookline.registry import DefinitionFileError, Registry, check_unique, list_files, load_hook_file

    checked: list[CheckedFile] = []
    async with (
        bus or contextlib.nullcontext(),
        Registry(modules=modules or (), scripts=scripts, bus=bus, needs_bus=False) as registry,
    ):
        for path in paths:
            usable: list[HookFile] = []
            try:
                files = list_files([path])
            except DefinitionFileError as error:
                checked.append(CheckedFile(str(path), 0, (), error))
                continue
            for file in files:
                try:
                    read = load_hook_file(file)
                    check_unique([*usable, read])
                    checked.append(CheckedFile(read.file, len(read.hooks), await registry.test_file(read)))
                    usable.append(read)
                except DefinitionFileError as error:
                    checked.append(CheckedFile(str(file), 0, (), error))
    return checked


def _print_checks(checked: Sequence[CheckedFile]) -> None:
    console = Console(highlight=False)
    for each in checked:
        console.print(
            f"{make_copyable(each.file)}: {_count(each.hooks, 'hook')}, {_count(len(each.results), 'test')}",
            soft_wrap=True,
            markup=False,
        )
        _print_results(console, each.results)
    results = [result for each in checked for result in each.results]
    if results:
        words = [_word_of(result) for result in results]
        told = f"{words.count('passed')} passed, {words.count('failed')} failed"
        not_run = f", {words.count('not run')} not run" if "not run" in words else ""
        console.print(f"{_count(len(results), 'test')}: {told}{not_run}.")


def _word_of(result: HookTestResult) -> str:
    return "not run" if result.not_run else "passed" if result.passed else "failed"


def _print_results(console: Console, results: Sequence[HookTestResult]) -> None:
    for result in results:
        line = "" if result.passed or result.line is None else f" (line {result.line})"
        status = format_status(_word_of(result))
        console.print(Text.assemble("  ", status, "  ", make_one_line(result.name), line), soft_wrap=True)
        for problem in [*result.problems, *filter(None, [result.not_run])]:
            _print_detail(console, problem)


def _print_detail(console: Console, text: str) -> None:
    """Print a text below the line that it belongs to, in as many lines as it needs."""
    for line in Text(make_one_line(text)).wrap(console, max(console.width - DETAIL_INDENT, 20)):
        line.rstrip()
        console.print(Text(" " * DETAIL_INDENT) + line, soft_wrap=True)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _write_junit(path: Path, checked: Sequence[CheckedFile]) -> None:
    """Write a `testsuite` for each file and a `testcase` for each test; a file that cannot be used is an error.

    Raises:
        ReportError: If the file cannot be written.
    """
    from hookline.evals.reports import clean_text, render_suites, write_text

    suites = []
    for each in checked:
        name, failed = clean_text(each.file), sum(_word_of(result) == "failed" for result in each.results)
        not_run = sum(bool(result.not_run) for result in each.results)
        seconds = sum(result.duration_ms for result in each.results) / 1000
        cases = []
        for result in each.results:
            case = Element(
                "testcase", classname=name, name=clean_text(result.name), time=f"{result.duration_ms / 1000:.3f}"
            )
            if result.not_run:
                SubElement(case, "skipped", message=clean_text(result.not_run))
            elif not result.passed:
                failure = SubElement(case, "failure", message=clean_text(result.problems[0]), type="verdict")
                place = each.file if result.line is None else f"{each.file}, line {result.line}"
                failure.text = clean_text("\n".join([place, *result.problems]))
            cases.append(case)
        if each.error is not None:
            case = Element("testcase", classname=name, name="definitions")
            SubElement(case, "error", message=clean_text(str(each.error)), type=each.error.code)
            cases.append(case)
        suite = Element(
            "testsuite",
            name=name,
            tests=str(len(cases)),
            failures=str(failed),
            errors=str(int(each.error is not None)),
            skipped=str(not_run),
            time=f"{seconds:.3f}",
        )
        suite.extend(cases)
        suites.append(suite)
    total = sum(result.duration_ms for each in checked for result in each.results)
    write_text(path, render_suites(suites, duration_ms=total))


@hooks_app.command("diff")
def diff_hooks(
    file: OneFile,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Owner = "",
    prune: Prune = False,
    modules: Modules = None,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Show what `hookline hooks apply` would change, and change nothing.

    Exits with 6 if there is a difference. Tests in the file are not run.
    """
    with report_errors_only():
        read = read_hook_file(file)
    plan = operate(store, with_registry(_in_file(read, _planning(read, tenant, prune)), None, modules, scripts))
    if as_json:
        print_json_lines(plan.changes)
    else:
        _print_plan(Console(highlight=False), plan)
    raise typer.Exit(DIFFERS if plan.changes else DONE)


@hooks_app.command("apply")
def apply_hooks(
    file: OneFile,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Owner = "",
    prune: Prune = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the changes are made.")] = False,
    modules: Modules = None,
    scripts: Scripts = None,
    fence: Fence = False,
    allow_not_run: AllowNotRun = False,
    as_json: AsJson = False,
) -> None:
    """Store the hook definitions of a file, all of them or none.

    Runs the tests of the file, shows what would change, and asks. A definition replaces the stored one with the same
    id, or with the same name and point. Nothing is stored if a test fails or is not run, or if somebody changes one of
    the definitions after the plan was shown. Tests ask remote hooks over the bus of HOOKLINE_BUS.
    """
    with report_errors_only():
        read = read_hook_file(file)
    console = Console(highlight=False, stderr=as_json)

    async def prepare(registry: Registry) -> tuple[DefinitionPlan, list[HookTestResult]]:
        return await _planning(read, tenant, prune)(registry), await registry.test_file(read)

    plan, results = plan_on(store, with_registry(_in_file(read, prepare), None, modules, scripts))
    if not all(result.passed for result in results):
        _print_results(Console(highlight=False, stderr=True), [each for each in results if not each.passed])
        if any(_word_of(each) == "failed" for each in results):
            typer.echo("hookline: nothing was stored, since tests of the file failed", err=True)
            raise typer.Exit(FAILED)
    if not_run := sum(bool(each.not_run) for each in results):
        if not allow_not_run:
            told = f"nothing was stored, since {_tell_not_run(not_run)}; set HOOKLINE_BUS, or give --allow-not-run"
            typer.echo(f"hookline: {told}", err=True)
            raise typer.Exit(NOT_JUDGED)
        console.print(f"{_tell_not_run(not_run)}.")
    if passed := len(results) - not_run:
        console.print(f"{_count(passed, 'test')} passed.")
    if not plan.definitions:
        typer.echo(f"There are no hook definitions in {file}.", err=True)
    if plan.definitions or plan.changes:
        _print_plan(console, plan)
    stored = plan.definitions
    if plan.changes:
        if not yes:
            _confirm(file)

        async def carry_out(registry: Registry) -> list[HookDefinition]:
            return await registry.apply_plan(plan, actor=actor(), file=read.file, fence=fence)

        stored = operate(store, with_registry(carry_out, None, modules, scripts), creates=True)
    if as_json:
        print_json_lines(stored)
    elif plan.changes:
        _print_applied(plan, {each.id: each for each in stored})


def _confirm(file: Path) -> None:
    """Ask whether to make the changes.

    Raises:
        typer.BadParameter: If there is no terminal on which to ask.
        typer.Exit: If the person refuses, or interrupts.
    """
    if str(file) == "-" or not sys.stdin.isatty():
        raise typer.BadParameter(
            "There is no terminal on which to ask whether to make these changes, so nothing was stored. Add --yes.",
            param_hint="'--yes'",
        )
    try:
        if typer.confirm("Make these changes?", default=False, err=True):
            return
        code = FAILED
    except typer.Abort as abort:
        code = interrupted_code() if isinstance(abort.__context__, KeyboardInterrupt) else FAILED
    typer.echo("Nothing was stored.", err=True)
    raise typer.Exit(code)


def _print_applied(plan: DefinitionPlan, stored: dict[str, HookDefinition]) -> None:
    for change in plan.changes:
        found = stored.get(change.definition.id)
        if found is None:
            typer.echo(f"Removed {make_copyable(change.definition.id)}: {make_one_line(change.definition.name)}")
        else:
            told = f"{make_one_line(found.name)} at {found.point}, {state_of(found)}"
            typer.echo(f"Stored {make_copyable(found.id)}: {told}.")


def _planning(read: HookFile, tenant: str, prune: bool) -> Callable[[Registry], Awaitable[DefinitionPlan]]:
    """Return work that plans to store the definitions of a file."""
    wanted = [without_derived_id(each) for each in read.definitions]

    async def plan(registry: Registry) -> DefinitionPlan:
        return await registry.plan(wanted, tenant_id=tenant, prune=prune)

    return plan


def _in_file(read: HookFile, work: Callable[[Registry], Awaitable[T]]) -> Callable[[Registry], Awaitable[T]]:
    """Return work whose errors about one of the definitions name its line in the file."""

    async def work_in_file(registry: Registry) -> T:
        from hookline.registry import DefinitionError, DefinitionFileError

        try:
            return await work(registry)
        except DefinitionError as error:
            nth, _, path = error.path.removeprefix("$[").partition("]")
            if not nth.isdigit():
                raise
            line = read.hooks[int(nth)][1].find_line(path)
            where = f"$.hooks[{nth}]{path}"
            raise DefinitionFileError(error.code, where, error.problem, read.file, line) from None

    return work_in_file


def _print_plan(console: Console, plan: DefinitionPlan) -> None:
    """Print what a plan changes: a line for each definition, and one for each of its fields."""
    for change in plan.changes:
        definition = change.definition
        named = make_one_line(definition.name)
        if change.action != "create":
            named = f"{make_copyable(definition.id)}: {named}"
        told = f"{VERBS[change.action]:9}{named} at {definition.point}"
        console.print(Text(told, style=STYLES[change.action]), soft_wrap=True)
        for field in _list_shown_changes(change):
            _print_detail(console, _describe_change(field))
    if plan.changes:
        console.print(_summarize(plan.changes))
    else:
        console.print(f"No changes: {_count(len(plan.definitions), 'definition')} stored as in the file.")


def _list_shown_changes(change: PlannedChange) -> list[FieldChange]:
    return [] if change.action in ("enable", "disable") else change.changes


def _describe_change(change: FieldChange) -> str:
    old, new = (msgspec.json.encode(value).decode(errors="replace") for value in (change.old, change.new))
    return f"{change.field}: {make_one_line(old)[:150]} → {make_one_line(new)[:200]}"


def _summarize(changes: Sequence[PlannedChange]) -> str:
    counts = {verb: sum(VERBS[each.action] == verb for each in changes) for verb in VERBS.values()}
    told = ", ".join(f"{number} to {verb}" for verb, number in counts.items() if number)
    return f"{_count(len(changes), 'change')}: {told}."
