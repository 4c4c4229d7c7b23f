"""Read the hooks in the settings of a coding agent as definitions, and say what cannot be taken over, and why.

Claude Code, Codex and Gemini CLI keep hooks in JSON files of the same shape: events with groups, groups with a matcher
and handlers. Codex also has them in its TOML file. A command becomes a script of its own, which goes to the project's
folder and runs the command there.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from json.decoder import JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, NamedTuple

from hookline.dialects import (
    DIALECTS,
    HOST_EVENTS,
    Dialect,
    DialectName,
    HostEvent,
    find_event,
    matcher_problem,
    matches,
)
from hookline.errors import message_of
from hookline.registry._definition import HookDefinition, read_definition
from hookline.registry._errors import DefinitionError, DefinitionFileError
from hookline.registry._files import blank_strings, derive_id, find_key_line, load_toml

__all__ = ["HostSettings", "ImportedHook", "SkippedSetting", "read_host_settings"]

LARGEST_SETTINGS = 1024 * 1024
COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
TRAILING_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*"|[\[{,]\s*,|,(?=\s*[}\]])', re.DOTALL)
"""A comma before a closing bracket; texts, and commas that nothing stands before, are found to be left alone."""
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
TOML_TABLE = re.compile(r"[^\S\n]*\[\[?\s*[\"']?hooks[\"']?\s*\.\s*[\"']?(\w+)[\"']?\s*(\.\s*[\"']?hooks[\"']?\s*)?\]")
"""The line that begins a group of an event, or a handler in one: `[[hooks.PreToolUse.hooks]]`."""
WHOLE_TOOL = re.compile(r"((?!mcp__)[A-Za-z]\w*|mcp__\w+?__\w+)(?:\(\*?\))?")
"""A condition that means every call of one tool."""
WIDE_RULES = frozenset({"Edit", "Read"})
"""Tools whose permission rules are documented to mean other tools as well."""
CONDITION = (
    "`if` follows the permission rules of its host, which look into compound commands, and no filter here does; "
    "without it, the hook would judge other calls; test for it in the script"
)
DEFAULT_SECONDS: Mapping[str, float] = {"claude": 600, "codex": 600, "gemini": 60, "copilot": 30}
"""Time limits of the hosts."""
LONGEST, LONGEST_WEBHOOK = 3600.0, 300.0
CONSTANT = {"source": "startup", "trigger": "auto", "reason": "other"}
"""What the question of an event always says in hookline, for matchers of events that are not about a tool."""
PROMPT_EVENTS = ("UserPromptSubmit", "SessionStart", "Stop")
"""Events that a host has for its main agent only."""
HANDLER_KEYS = frozenset(
    {
        *("type", "command", "args", "timeout", "timeoutSec", "async", "asyncRewake", "if", "shell", "statusMessage"),
        *("name", "description", "url", "headers", "allowedEnvVars", "bash", "powershell", "cwd", "env", "matcher"),
    }
)
HANDLERS = {
    "prompt": "its host asks a model; ask one in a script, or in a hook in Python",
    "agent": "its host runs an agent; run one in a hook in Python",
    "mcp_tool": "its host calls a tool of an MCP server; call it in a script",
}
"""Why some types of handlers cannot be taken over."""
REASONS = {
    "BeforeModel": "calls of a model have another form in this host; use a hook of ModelCall",
    "AfterModel": "calls of a model have another form in this host; use a hook of ModelCall",
    "PreModelRequest": "calls of a model have another form in this host; use a hook of ModelCall",
    "PostModelRequest": "calls of a model have another form in this host; use a hook of ModelCall",
    "BeforeToolSelection": "hookline has no such event; use ModelCall.before, which can change the list of tools",
    "StopFailure": "hookline tells of errors with onError; use a webhook or a handler there",
    "errorOccurred": "hookline tells of errors with onError; use a webhook or a handler there",
}
"""Why some events of hosts cannot be taken over."""


class ImportedHook(NamedTuple):
    """A hook that was taken over.

    Attributes:
        definition: Its definition.
        script: The text of the script that the definition names; `""` for a webhook.
        line: The line of the settings in which it begins.
    """

    definition: HookDefinition
    script: str
    line: int


class SkippedSetting(NamedTuple):
    """A setting that was not taken over, or not in every respect.

    Attributes:
        file: The file.
        line: The line.
        what: The setting.
        why: Why it was not taken over.
    """

    file: str
    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.what}: {self.why}"


class HostSettings(NamedTuple):
    """The hooks of a settings file.

    Attributes:
        dialect: The dialect of the host whose file it is.
        hooks: The hooks that were taken over.
        skipped: What was not.
        tag: The tag of all definitions of this file.
        mode: The permissions of scripts made of it: whoever may read the file may run them.
    """

    dialect: DialectName
    hooks: list[ImportedHook]
    skipped: list[SkippedSetting]
    tag: str
    mode: int

    def write_scripts(self, folder: Path) -> None:
        """Write the scripts of the hooks into the folder of scripts; those of an earlier import are replaced.

        Args:
            folder: The folder of scripts, which exists.

        Raises:
            OSError: If one cannot be written.
        """
        for hook in self.hooks:
            if not hook.script:
                continue
            path = folder / (hook.definition.script or "")
            path.parent.mkdir(exist_ok=True)
            written = path.with_name(f".{path.name}.new")
            written.write_text(hook.script, encoding="utf-8")
            written.chmod(self.mode)
            written.replace(path)  # a script that runs now goes on with the file that it has open


def read_host_settings(
    path: Path, *, host: str | None = None, project: Path | None = None, tenant_id: str = ""
) -> HostSettings:
    """Read the hooks of a settings file.

    Args:
        path: The file, such as `.claude/settings.json`: JSON, in which comments and trailing commas are allowed, or
            TOML, if its name ends in `.toml`.
        host: The dialect of the host; found by the file's folder and events by default.
        project: The folder in which commands run; that of the file's project by default, or the working directory for
            settings of a user or of the machine.
        tenant_id: The tenant that will own the definitions.

    Raises:
        DefinitionFileError: If the file cannot be read, or is no such settings.
    """
    file = str(path)
    document = _load_toml(file, _read(path)) if path.suffix == ".toml" else _load_json(file, _decode(file, _read(path)))
    hooks = document.get("hooks", LinedObject(document.line))
    if not isinstance(hooks, LinedObject):
        raise DefinitionFileError("invalid", "$.hooks", "`hooks` must be an object", file, document.line)
    dialect = DIALECTS[host or _find_host(path, hooks)]
    folder = _find_project(path) if project is None else project.absolute()
    return _SettingsReader(path, dialect, folder, tenant_id, document, hooks).read()


def tag_of(path: Path) -> str:
    """Return the tag of definitions that were imported from a file, by which a later import finds them."""
    return derive_id(str(path.absolute())).replace("hook_", "settings-")


class LinedObject(dict[str, Any]):
    """A JSON object with the line in which it begins."""

    def __init__(self, line: int, *given: Any) -> None:
        super().__init__(*given)
        self.line = line


def _read(path: Path) -> bytes:
    file = str(path)
    try:
        if not path.is_file():
            raise DefinitionFileError("unreadable", "$", "there is no such file", file)
        data = path.read_bytes()
    except OSError as error:
        raise DefinitionFileError("unreadable", "$", f"it cannot be read ({error.strerror or error})", file) from None
    if len(data) > LARGEST_SETTINGS:
        problem = f"it has more than {LARGEST_SETTINGS} bytes, which is the limit"
        raise DefinitionFileError("invalid", "$", problem, file)
    return data


def _decode(file: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DefinitionFileError("invalid", "$", "not text in UTF-8", file, line) from None


def _load_json(file: str, text: str) -> LinedObject:
    """Load JSON with comments and trailing commas; each object knows its line.

    Raises:
        DefinitionFileError: If it is no JSON object.
    """

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    uncommented = COMMENT.sub(blank, text)
    plain = TRAILING_COMMA.sub(lambda match: " " if match[0] == "," else match[0], uncommented)
    breaks = [found.start() for found in re.finditer("\n", plain)]
    decoder: Any = json.JSONDecoder()

    def parse_object(given: tuple[str, int], *rest: Any) -> tuple[LinedObject, int]:
        found, end = JSONObject(given, *rest)
        return LinedObject(bisect_right(breaks, given[1]) + 1, found), end

    decoder.parse_object = parse_object
    decoder.scan_once = py_make_scanner(decoder)
    try:
        document = decoder.decode(plain)
    except json.JSONDecodeError as error:
        raise DefinitionFileError("invalid", "$", f"not JSON: {error.msg}", file, error.lineno) from None
    except (RecursionError, ValueError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {message_of(error)}"
        raise DefinitionFileError("invalid", "$", problem, file) from None
    if not isinstance(document, LinedObject):
        raise DefinitionFileError("invalid", "$", "settings must be a JSON object", file, 1)
    return document


def _load_toml(file: str, data: bytes) -> LinedObject:
    """Load the TOML settings of Codex; each group and each handler knows its line."""
    text, document = load_toml(file, data)
    first = find_key_line(text, "hooks") or 1
    tables: dict[str, list[tuple[int, list[int]]]] = {}
    for line, content in enumerate(blank_strings(text).split("\n"), 1):
        table = TOML_TABLE.match(content)
        if table is not None and table[2] is None:
            tables.setdefault(table[1], []).append((line, []))
        elif table is not None and table[1] in tables:
            tables[table[1]][-1][1].append(line)
    hooks = document.get("hooks", {})
    if not isinstance(hooks, dict):
        raise DefinitionFileError("invalid", "$.hooks", "`hooks` must be a table of events", file, first)
    for event, groups in hooks.items():
        if not isinstance(groups, list):
            continue
        places = tables.get(event, [])
        if len(groups) != len(places):  # they are written in one place
            places = [(first, [])] * len(groups)
        hooks[event] = [_with_lines(group, line, lines) for group, (line, lines) in zip(groups, places, strict=True)]
    document["hooks"] = LinedObject(first, hooks)
    return LinedObject(1, document)


def _with_lines(group: Any, line: int, lines: list[int]) -> Any:
    """Return a group of handlers that know their lines: that of the group if theirs are not known."""
    if not isinstance(group, dict):
        return group
    handlers = group.get("hooks")
    if isinstance(handlers, list):
        known = lines if len(lines) == len(handlers) else [line] * len(handlers)
        handlers = [
            LinedObject(its, each) if isinstance(each, dict) else each
            for each, its in zip(handlers, known, strict=True)
        ]
        group = {**group, "hooks": handlers}
    return LinedObject(line, group)


def _find_host(path: Path, hooks: LinedObject) -> DialectName:
    """Return the host whose file it is: by its folder, else by the names of its events."""
    if path.suffix == ".toml":
        return "codex"
    folders = set(path.absolute().parts[:-1])
    for folder, name in ((".gemini", "gemini"), (".codex", "codex"), (".claude", "claude")):
        if folder in folders:
            return DIALECTS[name].name
    for name in ("gemini", "copilot"):
        own = set(DIALECTS[name].events.values()) - set(HOST_EVENTS)
        if own & set(hooks):
            return DIALECTS[name].name
    return "claude"


def _find_project(path: Path) -> Path:
    """Return the folder in which a host would run the hooks of a file."""
    folder = path.absolute().parent
    if folder.name == "hooks":
        folder = folder.parent
    if folder.name.startswith(".") and folder.parent != Path.home():
        return folder.parent
    return Path.cwd()


class _SettingsReader:
    """Reads the groups and handlers of one file."""

    def __init__(
        self, path: Path, dialect: Dialect, project: Path, tenant_id: str, document: LinedObject, hooks: LinedObject
    ) -> None:
        self._file = str(path)
        self._path = path.absolute()
        self._dialect = dialect
        self._project = project
        self._tenant_id = tenant_id
        self._document = document
        self._hooks = hooks
        self._found: list[ImportedHook] = []
        self._skipped: list[SkippedSetting] = []
        self._names: set[tuple[str, str]] = set()
        self._met: Counter[tuple[str, ...]] = Counter()
        self._tag = tag_of(path)

    def read(self) -> HostSettings:
        """Read all events."""
        self._note_settings()
        for spelled, groups in self._hooks.items():
            if not isinstance(groups, list):
                if spelled not in ("enabled", "disabled", "notifications", "state"):
                    self._skip(self._hooks.line, f"hooks.{spelled}", "it must be a list of groups")
                continue
            if spelled == "disabled":
                continue
            event = find_event(self._dialect, spelled)
            for nth, group in enumerate(groups):
                self._read_group(spelled, event, nth, group)
        readers = self._path.stat().st_mode & 0o044
        return HostSettings(self._dialect.name, self._found, self._skipped, self._tag, 0o700 | readers | readers >> 2)

    def _note_settings(self) -> None:
        document, line = self._document, self._document.line
        if self._is_off():
            self._skip(line, "the switch that turns hooks off", "the hooks are imported, but disabled")
        if document.get("allowManagedHooksOnly"):
            self._skip(line, "allowManagedHooksOnly", "hookline runs every enabled definition; disable the others")
        if document.get("notify") and self._dialect.name == "codex":
            self._skip(line, "notify", "Codex gives the program another input than a hook; use a hook of Stop")
        if document.get("env") and self._dialect.name == "claude":
            self._skip(line, "env", "pass variables to scripts with `script_env` (`hookline serve --script-env`)")

    def _is_off(self) -> bool:
        config, features = self._document.get("hooksConfig"), self._document.get("features")
        switches = [self._hooks.get("enabled"), config.get("enabled") if isinstance(config, dict) else None]
        if isinstance(features, dict) and self._dialect.name == "codex":
            switches += [features.get("hooks", features.get("codex_hooks"))]
        return self._document.get("disableAllHooks") is True or any(each is False for each in switches)

    def _read_group(self, spelled: str, event: HostEvent | None, nth: int, group: Any) -> None:
        if not isinstance(group, LinedObject):
            self._skip(self._hooks.line, f"hooks.{spelled}[{nth}]", "it must be an object with `hooks`")
            return
        if event is None:
            why = REASONS.get(spelled, "hookline has no such event")
            self._skip(group.line, spelled, why)
            return
        # Copilot's own files have no groups: the handlers stand in the list of the event.
        handlers = group.get("hooks", [group] if "type" in group or "bash" in group else None)
        if not isinstance(handlers, list):
            self._skip(group.line, f"hooks.{spelled}[{nth}]", "it must have a list `hooks`")
            return
        matcher = group.get("matcher")
        matcher = "" if matcher is None or not event.subject else matcher
        why = self._find_matcher_problem(event, matcher)
        if why:
            self._skip(group.line, f"{spelled} with the matcher {matcher!r:.200}", why)
            return
        for place, handler in enumerate(handlers):
            if not isinstance(handler, LinedObject):
                self._skip(group.line, f"hooks.{spelled}[{nth}].hooks[{place}]", "it must be an object")
                continue
            self._read_handler(event, matcher, handler)

    def _find_matcher_problem(self, event: HostEvent, matcher: Any) -> str:
        if not isinstance(matcher, str):
            return "a matcher must be text"
        problem = matcher_problem(self._dialect, matcher)
        if problem:
            return problem
        constant = CONSTANT.get(event.subject, "")
        if event.subject == "notification_type":
            constant = "ToolPermission" if self._dialect.name == "gemini" else "permission_prompt"
        if constant and not matches(self._dialect, matcher, constant):
            return f"in hookline, the {event.subject} of this event is always {constant!r}"
        return ""

    def _read_handler(self, event: HostEvent, matcher: str, handler: LinedObject) -> None:
        what = f"{self._dialect.events[event.name]} {self._label(handler)}".strip()
        kind = handler.get("type", "command")
        why = self._find_handler_problem(event, kind, handler)
        if not why:
            matcher, why = self._apply_condition(event, matcher, handler.get("if"))
        if why:
            self._skip(handler.line, what, why)
            return
        if handler.get("if") and self._dialect.name == "codex":
            self._skip(handler.line, what, "Codex ignores `if`, and so does the imported hook")
        for key in sorted(set(handler) - HANDLER_KEYS):
            self._skip(handler.line, what, f"the key {key!r:.100} is not known, and is ignored")
        for fields, script in self._build(event, matcher, handler, is_http=kind == "http"):
            name = self._unique_name(fields["point"], f"{what} {matcher}".strip())
            fields |= {
                "name": name,
                "description": f"From {CONTROL.sub(' ', str(self._path))[:1800]}, line {handler.line}.",
                "tags": ["imported", self._dialect.name, self._tag],
                "enabled": not (self._is_off() or self._is_disabled(handler)),
            }
            try:
                self._found.append(ImportedHook(read_definition(fields), script, handler.line))
            except DefinitionError as error:
                self._skip(handler.line, what, f"{error.problem}, at {error.path}")

    def _is_disabled(self, handler: LinedObject) -> bool:
        config = self._document.get("hooksConfig")
        lists = (self._hooks.get("disabled"), config.get("disabled") if isinstance(config, dict) else None)
        names = [name for name in (handler.get("name"), handler.get("command")) if isinstance(name, str)]
        return any(name in names for each in lists if isinstance(each, list) for name in each)

    def _find_handler_problem(self, event: HostEvent, kind: Any, handler: LinedObject) -> str:
        """Return why a handler cannot be taken over; `""` if it can."""
        if kind not in ("command", "http"):
            why = HANDLERS.get(kind, "only commands and HTTP hooks can be taken over") if isinstance(kind, str) else ""
            return f"a handler of type {kind!r:.60} has no counterpart: {why or 'a type must be text'}"
        if handler.get("shell") not in (None, "bash", "sh"):
            return f"the shell {handler['shell']!r:.60} is not supported"
        if handler.get("async") and not event.observer:
            return "hookline tells nobody of this event in the background; leave `async` out"
        if kind == "http":
            if not isinstance(handler.get("url"), str):
                return "`url` must be text"
            return "" if event.observer else "hookline has no webhook for this event; use a command"
        command, args = self._command(handler), handler.get("args")
        if not isinstance(command, str) or not command.strip():
            return "`command` must be text"
        if args is not None and not (isinstance(args, list) and all(isinstance(each, str) for each in args)):
            return "`args` must be a list of texts"
        try:
            "\0".join([command, *(args or ())]).encode()
        except UnicodeEncodeError:
            return "the command has half a character"
        return "the command has a NUL character" if "\0" in command or any("\0" in each for each in args or ()) else ""

    def _apply_condition(self, event: HostEvent, matcher: str, condition: Any) -> tuple[str, str]:
        """Return the matcher that a condition leaves, and why the hook cannot be taken over; `""` if it can.

        A condition that means every call of one tool is a matcher. Codex runs the hook whatever its condition says.
        """
        if condition in (None, "") or self._dialect.name == "codex":
            return matcher, ""
        if self._dialect.name != "claude" or not isinstance(condition, str):
            return matcher, CONDITION
        if event.subject != "tool_name":
            return matcher, "its host never runs a hook with `if` at an event that is not about a tool"
        whole = WHOLE_TOOL.fullmatch(condition)
        if whole is None or whole[1] in WIDE_RULES:
            return matcher, CONDITION
        names = ("Agent", "Task") if whole[1] in ("Agent", "Task") else (whole[1],)
        left = [name for name in names if matches(self._dialect, matcher, name)]
        if not left:
            return matcher, f"`if` names {whole[1]}, which its matcher leaves out: its host never runs it, either"
        return "|".join(left), ""

    def _command(self, handler: LinedObject) -> Any:
        return handler.get("bash", handler.get("command"))

    def _label(self, handler: LinedObject) -> str:
        """Return a name of a handler that shows no arguments, in which secrets may stand."""
        if isinstance(handler.get("name"), str):
            return str(handler["name"])[:60]
        given = handler.get("url") if handler.get("type") == "http" else self._command(handler)
        if not isinstance(given, str):
            return ""
        if handler.get("type") == "http":
            return re.sub(r"[?#].*|(?<=//)[^/@]*@", "", given)[:100]
        try:
            words = shlex.split(given)
        except ValueError:
            words = given.split()
        paths = (word for word in words if "/" in word and "=" not in word and not word.startswith((">", "<", "2>")))
        program = next(paths, words[0] if words else "")
        return program.rstrip("/").rpartition("/")[2][:60]

    def _build(
        self, event: HostEvent, matcher: str, handler: LinedObject, *, is_http: bool
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield the fields of the definitions of a handler, each with its script."""
        what = f"{self._dialect.events[event.name]} {self._label(handler)}"
        # Not its place in the file, nor its matcher: a hook keeps its id, and what was set for it, when these change.
        runs = json.dumps([handler.get(name) for name in ("url", "bash", "command", "args", "async")])
        key = (self._tenant_id, self._dialect.name, str(self._path), event.name, runs)
        self._met[key] += 1
        identity = derive_id(*key, str(self._met[key]))
        seconds = self._seconds(what, handler, LONGEST_WEBHOOK if is_http else LONGEST)
        host = {"dialect": self._dialect.name, "matcher": matcher}
        if self._dialect.events.keys() >= {"PostToolUseFailure"} or not event.name.startswith("PostToolUse"):
            host["hostEvent"] = event.name
        if is_http:
            is_control = event.name == "PreToolUse" and not handler.get("async")
            if not is_control and not handler.get("async"):
                self._skip(handler.line, what, "the answer to an HTTP hook of this event has no effect")
            webhook = host | {"url": handler["url"], "timeout": seconds, "control": is_control}
            webhook |= self._headers(handler) | ({"onError": "open"} if is_control else {})
            yield {"id": identity, "point": event.observer, "webhook": webhook}, ""
            return
        script = f"imported/{self._dialect.name}-{identity.removeprefix('hook_')}.sh"
        text = self._write_script(event, handler)
        fields = host | {"id": identity, "script": script, "timeout": seconds}
        if handler.get("async"):
            yield fields | {"point": event.observer}, text
            return
        point = event.point
        fields |= {"point": point} | ({} if point[0].islower() else {"onError": "open"})
        if event.name in PROMPT_EVENTS:
            fields["inherit"] = False
        yield fields, text
        agent_tools = {self._dialect.agent_tool, *(("Task",) if self._dialect.name == "claude" else ())}
        if event.name == "PreToolUse" and any(matches(self._dialect, matcher, tool) for tool in agent_tools):
            # A sub-agent is no tool call here: without this, a hook that denies delegation would not hold.
            sub = {"id": derive_id(identity, "sub-agent"), "point": "SubAgentCall.before", "matcher": ""}
            yield fields | sub, text

    def _seconds(self, what: str, handler: LinedObject, longest: float) -> float:
        """Return the time limit of a handler in seconds."""
        default = DEFAULT_SECONDS[self._dialect.name]
        given = handler.get("timeoutSec", handler.get("timeout"))
        if given is None:
            return min(default, longest)
        if not isinstance(given, int | float) or isinstance(given, bool) or not math.isfinite(given) or given <= 0:
            self._skip(handler.line, what, f"the timeout {given!r:.60} is no positive number; it gets {default:g} s")
            return min(default, longest)
        seconds = given / 1000 if self._dialect.name == "gemini" else float(given)
        if seconds > longest:
            self._skip(handler.line, what, f"a timeout of {seconds:g} s is too long; it gets {longest:g} s")
        return min(max(seconds, 0.1), longest)

    def _headers(self, handler: LinedObject) -> dict[str, Any]:
        """Return the headers of an HTTP hook; `$NAME` and `${NAME}` are variables there."""
        headers, allowed = handler.get("headers"), handler.get("allowedEnvVars")
        written = {
            str(name): VARIABLE.sub(lambda found: f"${{{found[1] or found[2]}}}", str(value))
            for name, value in (headers.items() if isinstance(headers, dict) else ())
        }
        return {"headers": written, "allowedEnvVars": list(allowed) if isinstance(allowed, list) else []}

    def _write_script(self, event: HostEvent, handler: LinedObject) -> str:
        """Return the text of the script that runs a command as the host does: by its shell, in the project."""
        shell = "/usr/bin/env bash" if self._dialect.name in ("gemini", "copilot") else "/bin/sh"
        folder = self._project / handler["cwd"] if isinstance(handler.get("cwd"), str) else self._project
        command = self._command(handler)
        if handler.get("args") is not None:
            command = "exec " + shlex.join([command, *handler["args"]])
        project, home = shlex.quote(str(self._project)), shlex.quote(os.path.expanduser("~"))
        origin = CONTROL.sub(" ", str(self._path))
        return (
            f"#!{shell}\n"
            f"# {event.name} of {origin}, line {handler.line}, by `hookline hooks import`.\n"
            f"cd -- {shlex.quote(str(folder))} || exit 1\n"
            f"export HOME={home} CLAUDE_PROJECT_DIR={project} GEMINI_PROJECT_DIR={project}\n"
            f"{command}\n"
        )

    def _unique_name(self, point: str, name: str) -> str:
        """Return a name that no other hook has at a point, in this file and in other projects' files."""
        origin = "/".join(self._path.parts[-3:]).removeprefix("//")[-80:]
        nth, unique = 1, f"{CONTROL.sub(' ', name)[:100]} ({CONTROL.sub(' ', origin)})"
        while (point, unique) in self._names:
            nth += 1
            unique = f"{CONTROL.sub(' ', name)[:100]} {nth} ({CONTROL.sub(' ', origin)})"
        self._names.add((point, unique))
        return unique

    def _skip(self, line: int, what: str, why: str) -> None:
        self._skipped.append(SkippedSetting(self._file, line, CONTROL.sub(" ", what), why))
