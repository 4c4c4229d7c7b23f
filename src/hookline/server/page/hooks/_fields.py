"""The fields of the form for a hook definition: drawn from the definition's kind and its handler's JSON schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from hookline.dialects import DIALECTS, events_at
from hookline.events import BeforeToolCall
from hookline.registry import POINTS, READ_ONLY, HandlerEntry, HookDefinition, Point, ShadowLimits

__all__ = [
    "MODULE",
    "POINT_GROUPS",
    "FieldGroup",
    "FormField",
    "FormProblems",
    "draw_groups",
    "draw_scope",
    "place_problem",
    "read_groups",
    "write_values",
]

Kind = Literal["line", "number", "choice", "lines", "text", "json"]
Reader = Literal["text", "integer", "number", "boolean", "list", "json", "mixed"]

KINDS = {
    "before": "Before the call runs: it may change, answer or deny it.",
    "guard": "It decides: let the call run, deny it, or ask a person.",
    "after": "After the call ran: it may change or withhold the result.",
    "around": "Around the call: before and after it, in one function.",
}
"""What the hooks of each kind do."""
CALLS = {
    "ToolCall": "Tool calls",
    "AgentCall": "Runs",
    "StepCall": "Steps",
    "ModelCall": "Model calls",
    "SubAgentCall": "Sub-agents",
    "CompactCall": "Compactions",
    "MemoryCall": "Writes to memory",
    "RequestCall": "HTTP requests",
}
HOSTS = {"claude": "Claude Code", "codex": "Codex", "gemini": "Gemini CLI", "copilot": "Copilot CLI"}
POINT_GROUPS = [
    *((title, [(f"{call}.{kind}", f"{call}.{kind}") for kind in KINDS]) for call, title in CALLS.items()),
    ("Events: observe, decide nothing", [(each, each) for each, point in POINTS.items() if point.event]),
]
"""The points, in groups with a title."""
YES_NO = [("yes", "yes"), ("no", "no")]
MODULE = "module"
"""The choice of a handler that is a function of a module."""
QUOTED = re.compile(r"[`']([A-Za-z_]\w*)[`']")


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the form.

    Attributes:
        name: Its path in the definition: `"config.tools"`.
        label: Its label.
        kind: How it is drawn.
        reader: How its text is read.
        value: Its text, as it was typed.
        choices: The values of a choice with their labels; those before the first group stand alone.
        groups: Further values, in groups with a title.
        hint: What to write into it.
        placeholder: What holds if it is left empty.
        suggestions: Texts to choose from, besides others.
        required: Whether it must be filled in.
        redraws: Whether other fields depend on it.
        problem: What is wrong with it.
    """

    name: str
    label: str
    kind: Kind = "line"
    reader: Reader = "text"
    value: str = ""
    choices: list[tuple[str, str]] = []
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    hint: str = ""
    placeholder: str = ""
    suggestions: list[str] = []
    required: bool = False
    redraws: bool = False
    problem: str = ""

    @property
    def id(self) -> str:
        """The id of the element."""
        return "f-" + re.sub(r"[^A-Za-z0-9_-]", "-", self.name)


class FieldGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that belong together.

    Attributes:
        title: Their title.
        fields: The fields.
        note: What is to be known about them.
    """

    title: str
    fields: list[FormField]
    note: str = ""


FormProblems = dict[str, str]
"""What is wrong, by the name of the field; `""` is the form as a whole."""


def draw_groups(
    values: Mapping[str, str],
    *,
    handlers: Sequence[HandlerEntry],
    entry: HandlerEntry | None,
    tenants: Sequence[str] | None,
    is_new: bool,
) -> list[FieldGroup]:
    """Draw the fields of a form for what was chosen so far.

    Args:
        values: The texts of the fields, by name.
        handlers: The installed handlers.
        entry: The chosen handler, if one is chosen.
        tenants: The known tenants, for somebody who may make hooks of all tenants; else `None`.
        is_new: Whether the definition is not stored yet, so that it can be made for a tenant.
    """
    point = POINTS.get(values.get("point", "")) or POINTS["ToolCall.guard"]
    runs = values.get("runs") or "handler"
    is_control = runs == "webhook" and values.get("webhook.control") == "yes"
    what = [
        FormField(name="name", label="Name", required=True, hint="Example: Refunds need a person"),
        FormField(name="tags", label="Tags", reader="list", hint="Words to find it by. Example: money, eu"),
        FormField(name="description", label="Description", kind="text", hint="Why it is there, for your colleagues."),
    ]
    where = [
        FormField(
            name="point",
            label="Point",
            kind="choice",
            groups=POINT_GROUPS,
            hint=KINDS.get(point.kind or "", "It observes this event, and decides nothing."),
            required=True,
            redraws=True,
        ),
    ]
    observes_remotely = runs == "remote" and point.event is not None
    if point.has_tool and not observes_remotely:
        hint = "Which tools: bank/pay, bank/* or *pay*. Leave it empty for all, or if the configuration names tools."
        where.append(FormField(name="tool", label="Tools", hint=hint, placeholder="all tools"))
    if tenants is not None and is_new:
        hint = "Leave it empty for a system hook, which runs for every tenant."
        field = FormField(name="tenantId", label="Tenant", hint=hint, placeholder="all tenants", redraws=True)
        where.append(msgspec.structs.replace(field, suggestions=list(tenants)))
    if tenants is not None and not values.get("tenantId"):
        hint = "The hook does not run for these tenants. Write one per line."
        where.append(
            FormField(name="exceptTenants", label="Disabled for tenants", kind="lines", reader="list", hint=hint)
        )
    scope = draw_scope(values, tenants)
    is_module = values.get("handler") == MODULE
    runner = _runner_fields(runs, handlers, entry, point, is_control=is_control, is_module=is_module)
    if runs in ("webhook", "script"):
        runner += _dialect_fields(values, "webhook." if runs == "webhook" else "")
    groups = [
        FieldGroup(title="Name", fields=what),
        FieldGroup(title="When it runs", fields=where),
        FieldGroup(title="Which operations", fields=scope),
        FieldGroup(title="What runs", fields=[_runs_field(), *runner]),
    ]
    if runs in ("handler", "script"):
        groups.append(_draw_config(values, entry, runs))
    how = [_mode_field(), *_limit_fields()] if is_control else []
    decides = point.call is not None or (point.event is BeforeToolCall and not observes_remotely)
    if not is_control:
        hint = "0 to 1000. A lower number runs earlier before a call, and later after it."
        how.append(
            FormField(name="priority", label="Priority", kind="number", reader="integer", placeholder="100", hint=hint)
        )
    if runs != "webhook":
        if decides:
            how += [_mode_field(), *_limit_fields()]
        if point.call is not None:
            choices = [("closed", "the call is denied (closed)"), ("open", "the call goes on (open)")]
            hint = "It fails if it raises an error, or takes too long."
            how.append(FormField(name="onError", label="If it fails", kind="choice", choices=choices, hint=hint))
        if runs != "remote":
            how.append(
                FormField(
                    name="timeout",
                    label="Time limit, in seconds",
                    kind="number",
                    reader="number",
                    placeholder="default",
                    hint="A hook that takes longer is stopped, and has failed. Example: 2.5",
                )
            )
        default = "default: yes" if point.call is not None else "default: no"
        how.append(
            FormField(
                name="inherit",
                label="Also for sub-agents",
                kind="choice",
                reader="boolean",
                choices=[("", default), *YES_NO],
                hint="Whether it also runs in the runs that an agent starts.",
            )
        )
    states = [("yes", "enabled"), ("no", "disabled")]
    hint = "A disabled hook is stored, and does not run."
    how.append(FormField(name="enabled", label="State", kind="choice", reader="boolean", choices=states, hint=hint))
    groups.append(FieldGroup(title="How it runs", fields=how))
    return [_fill(group, values) for group in groups if group.fields or group.note]


def draw_scope(values: Mapping[str, str], tenants: Sequence[str] | None) -> list[FormField]:
    """Draw the fields that restrict a hook to some operations, without their texts.

    Args:
        values: The texts of the fields of the form, by name.
        tenants: The known tenants, for somebody who may make hooks of all tenants; else `None`.
    """
    fields = []
    if not values.get("point", "").startswith("RequestCall."):
        hint = "0 to 100, such as 0.01. A higher percentage keeps the operations of a lower one."
        share = FormField(name="percent", label="Percent of operations", kind="number", reader="number", hint=hint)
        hint = "The ids of the agents, or globs of them. Write one per line. Example: refund*"
        agents = FormField(name="agents", label="Only for agents", kind="lines", reader="list", hint=hint)
        hint = "The operation must have one of these tags. Globs match too. Write one per line. Example: vip*"
        tags = FormField(name="operationTags", label="Only for tags", kind="lines", reader="list", hint=hint)
        fields += [
            msgspec.structs.replace(share, placeholder="100"),
            msgspec.structs.replace(agents, placeholder="all agents"),
            msgspec.structs.replace(tags, placeholder="all operations"),
        ]
    if tenants is not None and not values.get("tenantId"):
        hint = "The hook only runs for these tenants. Write one per line."
        only = FormField(name="tenants", label="Only for tenants", kind="lines", reader="list", hint=hint)
        fields.append(msgspec.structs.replace(only, placeholder="all tenants"))
    hint = "As processes are named by HOOKLINE_ENVIRONMENT. Write one per line. Example: staging"
    there = FormField(name="environments", label="Only in environments", kind="lines", reader="list", hint=hint)
    return [*fields, msgspec.structs.replace(there, placeholder="all environments")]


def _fill(group: FieldGroup, values: Mapping[str, str]) -> FieldGroup:
    fields = [msgspec.structs.replace(each, value=values.get(each.name, "")) for each in group.fields]
    return msgspec.structs.replace(group, fields=fields)


def _limit_fields() -> list[FormField]:
    """Return the fields with the limits beyond which a hook is put into shadow mode."""
    prefix, above = "shadowAbove", "0.05 is 5 %. Beyond it, the hook is put into shadow mode."
    shares = [
        FormField(
            name=f"{prefix}.{name}", label=label, kind="number", reader="number", placeholder="no limit", hint=above
        )
        for name, label in (("failures", "Largest share of failures"), ("denials", "Largest share of denials"))
    ]
    window = FormField(
        name=f"{prefix}.window", label="Within seconds", kind="number", reader="number", placeholder="300"
    )
    least = FormField(
        name=f"{prefix}.minimum", label="From calls on", kind="number", reader="integer", placeholder="20"
    )
    return [*shares, window, least]


def _mode_field() -> FormField:
    choices = [("enforce", "enforce what it decides"), ("shadow", "shadow: only record what it would decide")]
    hint = "A hook in shadow mode changes nothing, and no run waits for it."
    return FormField(name="mode", label="Mode", kind="choice", choices=choices, hint=hint)


def _runs_field() -> FormField:
    choices = [
        ("handler", "handler (a function)"),
        ("webhook", "webhook (a URL)"),
        ("script", "script (a program)"),
        ("remote", "remote (processes on the bus)"),
    ]
    return FormField(name="runs", label="Type", kind="choice", choices=choices, redraws=True)


def _runner_fields(
    runs: str,
    handlers: Sequence[HandlerEntry],
    entry: HandlerEntry | None,
    point: Point,
    *,
    is_control: bool,
    is_module: bool,
) -> list[FormField]:
    if runs == "handler":
        known = [(each.name, _plain(f"{each.name}: {each.description}"[:110])) for each in handlers if not each.problem]
        fields = [
            FormField(
                name="handler",
                label="Handler",
                kind="choice",
                choices=[("", "choose one"), *known, (MODULE, "a function of a module")],
                required=True,
                redraws=True,
                hint="" if entry is None else _plain(entry.description),
            )
        ]
        if is_module:
            hint = "It must be in a module that the server was started with. Example: policies:deny_refunds"
            fields.append(FormField(name="function", label="Function", hint=hint, required=True, redraws=True))
        return fields
    if runs == "script":
        return [
            FormField(
                name="script",
                label="File",
                required=True,
                hint="Its name in the folder of scripts. Example: deny_refunds.py",
            )
        ]
    if runs == "remote":
        hint = "The name that the processes serve. They decide at points such as ToolCall.before, and observe events."
        name = FormField(name="remote.name", label="Name", required=True, hint=f"{hint} Example: payments")
        hint = "What they hear besides the event above. Write one per line; * is all. Example: onComplete"
        events = FormField(name="remote.events", label="Further events", kind="lines", reader="list", hint=hint)
        hint = "Without an answer by then, the hook has failed. Example: 0.5"
        deadline = FormField(name="remote.deadline", label="Deadline, in seconds", kind="number", reader="number")
        return [name, events if point.event else msgspec.structs.replace(deadline, placeholder="2", hint=hint)]
    fallback = [
        ("fetch", "the operation goes on"),
        ("none", "the operation ends"),
    ]
    fields = [
        FormField(name="webhook.url", label="URL", required=True, hint="Example: https://crm.example.com/hooks"),
        FormField(
            name="webhook.control",
            label="Decides about the call",
            kind="choice",
            reader="boolean",
            choices=[("no", "no: it is notified"), ("yes", "yes: its answer allows, denies or changes the call")],
            hint="For beforeToolCall only.",
            redraws=True,
        ),
        FormField(
            name="webhook.timeout", label="Time limit, in seconds", kind="number", reader="number", placeholder="30"
        ),
        FormField(name="webhook.fallback", label="If it cannot be delivered", kind="choice", choices=fallback),
        FormField(
            name="webhook.eventFields",
            label="Fields of the event to send",
            kind="lines",
            reader="list",
            hint="Write one per line. Example: operationId. Leave it empty for all.",
        ),
        FormField(
            name="webhook.headers", label="Headers", kind="json", reader="json", placeholder='{"X-Team": "payments"}'
        ),
        FormField(
            name="webhook.body", label="Further fields of each payload", kind="json", reader="json", placeholder="{}"
        ),
    ]
    if is_control:
        choices = [("closed", "the call is denied (closed)"), ("open", "the call goes on (open)")]
        fields[3] = FormField(name="webhook.onError", label="Without a valid answer", kind="choice", choices=choices)
    return fields


def _dialect_fields(values: Mapping[str, str], prefix: str) -> list[FormField]:
    """Return the fields for the dialect of a script or a webhook, and for what only other dialects have."""
    names = [("hookline", "hookline"), *((name, HOSTS[name]) for name in DIALECTS)]
    hint = "How it reads its input and answers: as for hookline, or as for the hooks of a coding agent."
    fields = [
        FormField(name=f"{prefix}dialect", label="Dialect", kind="choice", choices=names, hint=hint, redraws=True)
    ]
    dialect = DIALECTS.get(values.get(f"{prefix}dialect", ""))
    if dialect is None:
        return fields
    events = events_at(dialect, values.get("point", ""))
    choices = [("", "the usual one of the point"), *((event.name, dialect.events[event.name]) for event in events)]
    fields.append(
        FormField(name=f"{prefix}hostEvent", label="Event of the coding agent", kind="choice", choices=choices)
    )
    if any(event.subject for event in events):
        hint = "As in its settings: Bash, Edit|Write or mcp__github__.*"
        fields.append(FormField(name=f"{prefix}matcher", label="Matcher", placeholder="all", hint=hint))
    return fields


def _plain(text: str) -> str:
    """Return a text of a docstring without its marks."""
    return text.replace("`", "")


def _draw_config(values: Mapping[str, str], entry: HandlerEntry | None, runs: str) -> FieldGroup:
    """Draw the fields of `config`; what cannot be drawn is one field of JSON."""
    further = FormField(name="config", label="Configuration, as JSON", kind="json", reader="json", placeholder="{}")
    schema = {} if entry is None or entry.problem else entry.schema
    if runs == "script":
        return FieldGroup(title="Configuration", fields=[further])
    if entry is None:
        return FieldGroup(title="Configuration", fields=[], note="")
    fields = list(_draw_properties(schema, schema, "config"))
    if not schema or schema.get("additionalProperties", True) or values.get("config"):
        label = "Further configuration, as JSON" if fields else "Configuration, as JSON"
        fields.append(msgspec.structs.replace(further, label=label))
    note = "" if fields else "This handler has nothing to configure."
    return FieldGroup(title="Configuration", fields=fields, note=note)


def _draw_properties(schema: Mapping[str, Any], root: Mapping[str, Any], prefix: str) -> Iterator[FormField]:
    required = schema.get("required", ())
    for name, given in schema.get("properties", {}).items():
        node = _resolve(given, root)
        path = f"{prefix}.{name}"
        if node.get("type") == "object" and node.get("properties") and path.count(".") < 4:
            yield from _draw_properties(node, root, path)
            continue
        yield _draw_property(path, name, node, given.get("default"), required=name in required)


def _resolve(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without its reference, and without `null` if there is one other kind."""
    reference = node.get("$ref", "")
    if reference.startswith("#/$defs/"):
        node = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    kinds = [each for each in node.get("anyOf", ()) if each.get("type") != "null"]
    if len(kinds) != 1:
        return node
    described = {"description": node["description"]} if "description" in node else {}
    return {**_resolve(kinds[0], root), **described}


def _draw_property(path: str, name: str, node: Mapping[str, Any], default: Any, *, required: bool) -> FormField:
    *outer, _ = path.split(".")[1:]
    label = ": ".join([*outer, name]).replace("_", " ").capitalize()
    hint = _plain(str(node.get("description", "")))
    shown = "" if default in (None, "", [], {}) else str(default)
    field = FormField(name=path, label=label, hint=hint, required=required, placeholder=shown)
    replace = msgspec.structs.replace
    kind = node.get("type")
    values = [str(each) for each in node.get("enum", ())]
    if values and all(isinstance(each, str) for each in node["enum"]):
        choices = [*([] if required else [("", f"default: {default}")]), *((each, each) for each in values)]
        return replace(field, kind="choice", choices=choices)
    if kind == "boolean":
        word = "yes" if default else "no"
        return replace(
            field, kind="choice", reader="boolean", choices=[*([] if required else [("", f"default: {word}")]), *YES_NO]
        )
    if kind == "integer":
        return replace(field, kind="number", reader="integer")
    if kind == "number":
        return replace(field, kind="number", reader="number")
    if kind == "string":
        return field
    items = node.get("items", {})
    if kind == "array" and items.get("type") == "string":
        return replace(field, kind="lines", reader="list", hint=f"{hint} Write one per line.".lstrip())
    if kind == "array" and items.get("enum"):
        known = ", ".join(str(each) for each in items["enum"])
        return replace(field, kind="lines", reader="list", hint=f"{hint} Write one per line, of {known}.".lstrip())
    kinds = sorted(node.get("anyOf", ()), key=lambda each: "enum" not in each)
    if len(kinds) == 2 and "enum" in kinds[0] and kinds[1].get("type") in ("number", "integer"):
        words = [str(each) for each in kinds[0]["enum"]]
        return replace(
            field,
            reader="mixed",
            suggestions=words,
            hint=hint or f"{', '.join(words)}, or a number of seconds.",
        )
    return replace(field, kind="json", reader="json", hint=f"{hint} As JSON.".lstrip())


def read_groups(groups: Sequence[FieldGroup]) -> tuple[dict[str, Any], FormProblems]:
    """Read the texts of the fields as the JSON of a definition.

    Returns:
        The fields of the definition, and what is wrong with single texts.
    """
    given: dict[str, Any] = {}
    problems: FormProblems = {}
    fields = {field.name: field for group in groups for field in group.fields}
    for name, field in fields.items():
        if name in ("runs", "function", "config"):
            continue
        text = field.value.strip() if field.kind != "text" else field.value
        if name == "handler" and text == MODULE:
            text = fields["function"].value.strip() or "choose one"
        if not text:
            if field.required:
                problems[name] = "Choose one." if field.kind == "choice" else "Fill this in."
            continue
        try:
            _put(given, name, _read_text(field, text))
        except ValueError as error:
            problems[name] = str(error)
    _read_further(fields.get("config"), given, problems)
    return given, problems


def _read_further(field: FormField | None, given: dict[str, Any], problems: FormProblems) -> None:
    if field is None or not field.value.strip():
        return
    try:
        found = _read_json(field.value)
        if not isinstance(found, dict):
            raise ValueError("It must be a JSON object, such as {}.")
    except ValueError as error:
        problems["config"] = str(error)
        return
    given["config"] = found | given.get("config", {})


def _put(given: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        given = given.setdefault(name, {})
    given[last] = value


def _read_text(field: FormField, text: str) -> Any:
    """Read the text of a field.

    Raises:
        ValueError: If it is not of the field's kind; the message is for people.
    """
    match field.reader:
        case "boolean":
            return text == "yes"
        case "integer":
            if re.fullmatch(r"[+-]?\d{1,15}", text, re.ASCII) is None:
                raise ValueError("It must be a whole number.")
            return int(text)
        case "number":
            return _read_number(text)
        case "list":
            return [
                part.strip() for part in re.split(r"[\n,]" if field.kind == "line" else r"\n", text) if part.strip()
            ]
        case "mixed":
            return text if text in field.suggestions else _read_number(text)
        case "json":
            return _read_json(text)
    return text


def _read_number(text: str) -> float:
    if re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,15})?", text, re.ASCII) is None:
        raise ValueError("It must be a number, such as 5 or 0.5.")
    number = float(text)
    return int(number) if number.is_integer() else number


def _read_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"It is not JSON: {error}") from None


def write_values(definition: HookDefinition, entry: HandlerEntry | None) -> dict[str, str]:
    """Write a definition as the texts of a form's fields.

    Args:
        definition: The definition.
        entry: Its handler, if it has one that is known.
    """
    plain = msgspec.to_builtins(definition)
    config = plain.pop("config")
    webhook = plain.pop("webhook") or {}
    remote = plain.pop("remote") or {}
    limits = plain.pop("shadowAbove") or {}
    values = {name: _write_text(value) for name, value in plain.items() if name not in READ_ONLY or name == "tenantId"}
    values |= {f"webhook.{name}": _write_text(value) for name, value in webhook.items()}
    values |= {f"remote.{name}": _write_text(value) for name, value in remote.items()}
    # The defaults of the others stay out, so that a form whose limits are cleared has none.
    defaults = msgspec.to_builtins(ShadowLimits())
    values |= {f"shadowAbove.{name}": _write_text(value) for name, value in limits.items() if value != defaults[name]}
    values |= {"runs": definition.runs, "tags": ", ".join(definition.tags)}
    schema = {} if entry is None or entry.problem else entry.schema
    for field in _draw_properties(schema, schema, "config"):
        value, is_there = _take(config, field.name.split(".")[1:])
        if not is_there:
            continue
        text = _write_text(value) if field.reader != "json" else _pretty(value)
        try:
            fits = _read_text(field, text) == value
        except ValueError:
            fits = False
        if fits:
            values[field.name] = text
        else:
            _put(config, field.name.removeprefix("config."), value)
    values["config"] = _pretty(config) if _prune(config) else ""
    return {name: value for name, value in values.items() if value}


def _take(config: dict[str, Any], path: Sequence[str]) -> tuple[Any, bool]:
    """Take a value out of nested mappings."""
    *outer, last = path
    for name in outer:
        inner = config.get(name)
        if not isinstance(inner, dict):
            return None, False
        config = inner
    if last not in config:
        return None, False
    return config.pop(last), True


def _prune(config: dict[str, Any]) -> dict[str, Any]:
    for name, value in list(config.items()):
        if isinstance(value, dict) and not _prune(value):
            del config[name]
    return config


def _write_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    if isinstance(value, dict | list):
        return _pretty(value) if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def place_problem(path: str, problem: str, names: Sequence[str]) -> str:
    """Return the field that an error belongs to: that of its path, one that its text names, or a parent.

    Args:
        path: The JSON path of the error: `"$.config.tools"`.
        problem: What is wrong.
        names: The fields of the form.
    """
    name = re.sub(r"\[.*", "", path.removeprefix("$").removeprefix("."))
    if name in names:
        return name
    if name == "config":
        for word in QUOTED.findall(problem):
            if f"config.{word}" in names:
                return f"config.{word}"
        return "handler" if "config" not in names and "handler" in names else name if name in names else ""
    while "." in name:
        name = name.rpartition(".")[0]
        if name in names:
            return name
    return ""
