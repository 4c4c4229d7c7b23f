"""How commands and groups of commands explain themselves: their help, and what they say about a wrong name.

The help is plain text that fits the terminal, without the types and ranges that Typer adds: a metavar such as `URL` or
`SECONDS` says what a value is.
"""

from __future__ import annotations

import functools
import gc
import importlib
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from hookline.cli.errors import without_password

__all__ = ["Command", "CommandApp", "CommandGroup", "DeferredCommand", "ListGroup", "command_line_of"]

ARGUMENTS = "hookline.cli.arguments"
"""The key under which a context keeps the words behind the command's name, as they were typed."""

F = TypeVar("F", bound=Callable[..., Any])

RENAMED = {
    "approve": "approvals approve",
    "executions tail": "executions follow",
    "hooks add": "hooks apply",
    "hooks create": "hooks apply",
    "hooks delete": "hooks remove",
    "hooks toggle": "hooks enable' or 'hookline hooks disable",
    "logs": "executions",
    "logs list": "executions list",
    "logs stats": "executions stats",
    "logs tail": "executions follow",
    "reject": "approvals reject",
}
"""Commands that people may remember or guess, and the command that does it."""

NUMBER_RANGE = re.compile(r"(?:[-\d.]+<=?)?x(?:[<>]=?[-\d.]+)?")


class Command(TyperCommand):
    """A command whose help names its values in words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as they were typed, for `command_line_of`."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line: `ID`, where Typer writes `{ID}`."""
        return [re.sub(r"\{(.*?)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, without types and ranges."""
        write_parameters(self, ctx, formatter)


class DeferredCommand(TyperCommand):
    """A command or a group of commands that is imported when it is called; until then it can be listed.

    Args:
        name: Its name.
        source: Where its function or its `CommandApp` is: `"package.module:name"`.
        topic: The topic under which the help lists it.
        summary: The first sentence of its help.
    """

    def __init__(self, name: str, source: str, *, topic: str, summary: str) -> None:
        super().__init__(name, help=summary, rich_help_panel=topic)
        self.source = source

    @functools.cached_property
    def loaded(self) -> TyperCommand | TyperGroup:
        """The command itself."""
        module, _, name = self.source.partition(":")
        found = getattr(importlib.import_module(module), name)
        gc.freeze()  # nothing that was imported is garbage, and to look through it takes longer than many commands
        if isinstance(found, typer.Typer):
            return typer.main.get_group(found)
        alone = CommandApp(add_completion=False)
        alone.command(self.name)(found)
        return cast(TyperCommand, typer.main.get_command(alone))


class CommandGroup(TyperGroup):
    """A group of commands that answers an old or a guessed name with the right one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of the group, imported if it was not yet; `None` if there is none of this name."""
        command = super().get_command(ctx, cmd_name)
        return command.loaded if isinstance(command, DeferredCommand) else command

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and the commands by their topics."""
        write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first sentence of its help."""
        topics: dict[str, list[tuple[str, str]]] = {}
        width = formatter.width - 6 - max(len(name) for name in self.commands)
        for name, command in self.commands.items():
            if not command.hidden:
                topic = getattr(command, "rich_help_panel", None)
                heading = topic if isinstance(topic, str) else "Commands"
                topics.setdefault(heading, []).append((name, command.get_short_help_str(width)))
        for heading, rows in topics.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the epilog as it stands: a heading and lines that are aligned below it."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; for an old name, the error says the new one."""
        if not args or args[0] in self.commands:
            return super().resolve_command(ctx, args)
        group = ctx.command_path.split()[1:]
        for count in (2, 1):
            old = " ".join([*group, *args[:count]])
            if old in RENAMED:
                ctx.fail(f"No such command {old!r}. Did you mean 'hookline {RENAMED[old]}'?")
        return super().resolve_command(ctx, args)


class ListGroup(CommandGroup):
    """A group of commands that runs `list` where none of them is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` in front of options that are its own."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class CommandApp(typer.Typer):
    """A Typer app whose groups and commands have the help above."""

    def __init__(self, *, cls: type[TyperGroup] = CommandGroup, **settings: Any) -> None:
        super().__init__(cls=cls, rich_markup_mode=None, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[F], F]:
        """Register a function as a command."""
        return super().command(name, cls=cls or Command, **settings)


def command_line_of(context: typer.Context) -> str:
    """Return the command line of a command, quoted for a shell and without secrets."""
    from hookline.redaction import Redaction  # its patterns take a while to compile, and most commands need none

    words = [without_password(word) for word in context.meta.get(ARGUMENTS, [])]
    return Redaction().text(f"{context.command_path} {shlex.join(words)}".strip())


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the arguments and the options of a command into its help."""
    rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            rows[parameter.param_type_name].append((strip_type(record[0]), strip_notes(record[1])))
    for heading, found in zip(("Arguments", "Options"), rows.values(), strict=True):
        if found:
            with formatter.section(heading):
                formatter.write_dl(found)


def strip_type(text: str) -> str:
    """Return the name of a parameter without its type, but with the words that it may have: `--format csv|jsonl`."""
    name, _, kind = text.partition(" <")
    return f"{name} {kind.removesuffix('>')}" if "|" in kind else name


def strip_notes(text: str) -> str:
    """Return the help of a parameter without the range of its numbers and without `required`."""
    said, bracket, notes = text.rpartition("  [")
    if not bracket or not notes.endswith("]"):
        return text
    kept = "; ".join(select_notes(notes.removesuffix("]").split("; ")))
    return f"{said}  [{kept}]" if kept else said


def select_notes(notes: list[str]) -> Iterator[str]:
    """Select the notes about a parameter that a person needs: its default and its environment variable."""
    return (note for note in notes if note != "required" and not NUMBER_RANGE.fullmatch(note))
