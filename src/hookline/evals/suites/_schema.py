"""The JSON schema of suite files in YAML, for editors: completion, descriptions of keys, and marks under mistakes."""

from __future__ import annotations

import json
from typing import Any, get_args

from hookline.evals.cassettes import Matching
from hookline.evals.faults import FAULT_KINDS
from hookline.evals.judges import Combine
from hookline.evals.matching import ArgumentMode
from hookline.evals.mocking import Then
from hookline.evals.running import ConversationEnd
from hookline.evals.suites._checks_file import CHECKS
from hookline.evals.suites.checks import ExpectedOutput
from hookline.evals.trajectories import MatchType

__all__ = ["suite_schema", "suite_schema_text"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

PARAMETER = r"^\{[A-Za-z_]\w*\}$"
"""A text that is one parameter of a case, and stands for its value."""


def suite_schema() -> Schema:
    """Return the JSON schema of a suite file in YAML, as a dict.

    It accepts what `load_suite_file` accepts. It cannot know everything that is refused there: names of tools, import
    paths, regular expressions, and the contents of files of cases.
    """
    return {
        "$schema": DIALECT,
        "title": "A suite of hookline",
        "description": "Tasks for an agent, and how to judge the results. Run it with `hookline eval FILE`.",
        **_object(
            {
                "suite": _text("The name of the suite; the first part of each task's full name."),
                "tools": _import("A list of tools or functions, or a function that creates one for each task."),
                "agent": _import("An `Agent`, or a function that creates one. It replaces `tools`."),
                "instructions": _text("The system message, if there is no `agent`."),
                "cassettes": {"$ref": "#/$defs/cassettes"},
                "tags": _list(_text(), "Tags of all tasks.", fixed=True),
                "judge": {"$ref": "#/$defs/judgeOptions", "description": "What judges have that do not say otherwise."},
                "checks": _list({"$ref": "#/$defs/check"}, "Checks of every task, after its own.", fixed=True),
                "limits": {"$ref": "#/$defs/limits", "description": "Limits of every task."},
                "tasks": _list({"$ref": "#/$defs/task"}, "The tasks.", fixed=True),
            },
            required=["suite", "tasks"],
        ),
        "not": {"required": ["tools", "agent"]},
        "$defs": {
            "cassettes": _cassettes(),
            "task": _task(),
            "turn": _turn(),
            "call": _call("The tool that the model calls."),
            "mock": _mock(),
            "expected": _expected(),
            "check": _check(),
            "judgeOptions": _object(_judge_options()),
            "limits": _limits(),
            "fault": _fault(),
            "user": _user(),
            "stop": _stop(),
        },
    }


def suite_schema_text() -> str:
    """Return the JSON schema of a suite file in YAML as the text of a file."""
    return json.dumps(suite_schema(), indent=1, ensure_ascii=False) + "\n"


def _object(properties: Schema, *, required: list[str] | None = None, description: str = "") -> Schema:
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        found["required"] = required
    return _described(found, description)


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description} if description else schema


def _text(description: str = "", *, empty: bool = False) -> Schema:
    return _described({"type": "string"} if empty else {"type": "string", "minLength": 1}, description)


def _import(description: str) -> Schema:
    pattern = r"^[^:]+:[^:]+$"
    return {"type": "string", "pattern": pattern, "description": f"Import path package.module:name. {description}"}


def _model(description: str) -> Schema:
    pattern = r"^[^:]+:[^:]+"
    about = f"{description} The name of a model, such as openai:gpt-5, or an import path package.module:name."
    return {"type": "string", "pattern": pattern, "description": about}


def _number(description: str, least: int = 0) -> Schema:
    either = [{"type": "integer", "minimum": least}, _whole_parameter()]
    return {"anyOf": either, "description": description}


def _amount(description: str, least: float = 0, most: float | None = None) -> Schema:
    amount: Schema = {"type": "number", "minimum": least}
    if most is not None:
        amount["maximum"] = most
    return {"anyOf": [amount, _whole_parameter()], "description": description}


def _list(items: Schema, description: str, *, least: int = 0, fixed: bool = False) -> Schema:
    found: Schema = {"type": "array", "items": items}
    found |= {"minItems": least} if least else {}
    return _described(found if fixed else {"anyOf": [found, _whole_parameter()]}, description)


def _whole_parameter() -> Schema:
    return {"type": "string", "pattern": PARAMETER}


def _words(words: tuple[str, ...], description: str) -> Schema:
    return {"enum": list(words), "description": description}


def _mapping(description: str) -> Schema:
    return {"anyOf": [{"type": "object"}, _whole_parameter()], "description": description}


def _cassettes() -> Schema:
    return _object(
        {
            "matching": _words(get_args(Matching), "Whether a recording is found by its arguments, or in order."),
            "ignore": _list(_text(), "Fields of the arguments that make no difference, such as request.id."),
        },
        description="How cassettes compare calls.",
    )


def _task() -> Schema:
    properties = {
        "id": _text("The name of the task. With cases it names a parameter, such as price-{item}."),
        "prompt": _text("The prompt of the user; the first message of a conversation."),
        "cases": {
            "anyOf": [
                {"type": "string", "pattern": r"\.(jsonl|ndjson|csv)$"},
                {"type": "array", "items": {"type": "object"}, "minItems": 1},
            ],
            "description": "One task for each case: a file, or a list of mappings. {name} stands for a value of it.",
        },
        "matrix": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "array", "minItems": 1},
            "description": "One task for each combination of these values, and of the cases if there are any.",
        },
        "script": _list({"$ref": "#/$defs/turn"}, "The turns of a scripted model."),
        "model": _model("The model of this task; without it, the agent's own."),
        "mocks": _list({"$ref": "#/$defs/mock"}, "Rules that answer tool calls, in every mode."),
        "faults": _list({"$ref": "#/$defs/fault"}, "Faults that strike tool calls, in every mode."),
        "expected": {"$ref": "#/$defs/expected"},
        "expected_output": _text("The answer that is expected. Judges read it."),
        "checks": _list({"$ref": "#/$defs/check"}, "Further conditions."),
        "limits": {"$ref": "#/$defs/limits"},
        "cassette": _text("The cassette file of this task, used without --cassettes."),
        "turns": _list(_text(), "The messages of the user that follow the prompt."),
        "user": {"$ref": "#/$defs/user"},
        "stop": {"$ref": "#/$defs/stop"},
        "tags": _list(_text(), "Words by which tasks are chosen and reported."),
        "weight": _amount("The weight of the task in mean scores, above 0. 1 by default."),
        "metadata": _mapping("Further data, which results have."),
    }
    return {
        **_object(properties, required=["id"]),
        "anyOf": [{"required": ["prompt"]}, {"required": ["user"]}],
        "allOf": [
            {"not": {"required": ["script", "model"]}},
            {"not": {"required": ["turns", "user"]}},
            {
                "if": {"required": ["stop"]},
                "then": {"anyOf": [{"required": ["turns"]}, {"required": ["user"]}]},
            },
            {
                "if": {"anyOf": [{"required": ["cases"]}, {"required": ["matrix"]}]},
                "then": {"properties": {"id": {"pattern": r"\{[A-Za-z_]\w*\}"}}},
            },
        ],
    }


def _call(description: str) -> Schema:
    return _object({"tool": _text(description), "args": _mapping("Its arguments.")}, required=["tool"])


def _turn() -> Schema:
    say = _text("What the model says.", empty=True)
    call = _call("The tool that the model calls.")
    several = _list({"$ref": "#/$defs/call"}, "Tool calls that the model makes at the same time.", least=1)
    return {
        "description": "A turn of the model.",
        "anyOf": [
            _object({"say": say}, required=["say"]),
            {**call, "properties": {**call["properties"], "say": say}},
            _object({"calls": several, "say": say}, required=["calls"]),
        ],
    }


def _mock() -> Schema:
    answers = {
        "returns": {"description": "A value, as if the tool had returned it."},
        "raises": {
            "type": "string",
            "pattern": r"^\s*[A-Z]\w*(Error|Exception|Iteration|Warning)\s*(:|$)",
            "description": "A built-in exception, such as 'ConnectionError: down'.",
        },
        "fails": _text("The text of a failed result."),
        "sequence": _list({}, "One answer after the other: values, {raises: …} or {fails: …}.", least=1),
        "table": _object(
            {"field": _text("The argument."), "answers": _mapping("The answer to each value; '*' for others.")},
            required=["field", "answers"],
            description="An answer that is chosen by an argument.",
        ),
        "template": _text("A text with arguments, such as 'sent to {to}'."),
        "runs": _import("A function of the arguments."),
        "passthrough": {"const": True, "description": "The real tool answers."},
    }
    matching = {
        "tool": _text("The tool: its path, its name, or a glob."),
        "name": _text("The name of the rule in results."),
        "args": _mapping("The arguments of the call."),
        "args_mode": _words(get_args(ArgumentMode), "How the arguments are compared."),
        "fields": _mapping("Values of dotted fields of the arguments."),
        "schema": _mapping("A JSON schema of the arguments."),
        "nth": _number("Only the n-th call of the tool, from 1.", 1),
        "step": _number("Only calls of this step, from 0."),
        "then": _words(get_args(Then), "What follows when a sequence is at its end."),
    }
    return {
        **_object({**matching, **answers}, required=["tool"], description="A rule that answers tool calls."),
        "oneOf": [{"required": [name]} for name in answers],
        "dependentRequired": {"then": ["sequence"]},
    }


def _expected() -> Schema:
    calls = {"anyOf": [_text(), {"$ref": "#/$defs/call"}]}
    return _object(
        {
            "calls": _list(calls, "The calls: a tool, or {tool, args}."),
            "mode": _words(get_args(MatchType), "The calls that may be missing, added or moved. in_order by default."),
            "args": _words(get_args(ArgumentMode), "How arguments are compared. exact by default."),
        },
        required=["calls"],
        description="The calls that solve the task.",
    )


def _judge_options() -> Schema:
    model = _model("The model that judges.")
    return {
        "model": {"anyOf": [model, _list(model, "Several models.", least=1)], "description": model["description"]},
        "threshold": _amount("The score from which the check passes. 0.75 by default.", 0, 1),
        "grades": {**_number("The number of grades. 5 by default; 2 for yes and no.", 2)},
        "combine": _words(get_args(Combine), "How the scores of several models become one. mean by default."),
        "required": {"type": "boolean", "description": "Whether the task fails if no model has a verdict."},
        "tools": {"type": "boolean", "description": "Whether the models read tool calls and their results."},
        "attempts": {**_number("How often a model is asked for an answer with a grade. 2 by default.", 1)},
        "settings": _mapping("Settings of the model calls, such as {temperature: 0}."),
    }


def _check() -> Schema:
    counted = _object({"count": _number("The largest number."), "tool": _text("The tool.")}, required=["count"])
    called = _object(
        {
            "tool": _text("The tool: its path, its name, or a glob."),
            "args": _mapping("Arguments that the call has; it may have others."),
            "times": _number("The exact number of calls."),
        },
        required=["tool"],
    )
    not_called = _object({name: called["properties"][name] for name in ("tool", "args")}, required=["tool"])
    rubric = _text("What a good result is.")
    judge = _object({"rubric": rubric, "name": _text("The name in results."), **_judge_options()}, required=["rubric"])
    ends = _words(tuple(each for each in get_args(ConversationEnd) if each), "")
    kinds: dict[str, Schema] = {
        "output_contains": _text("The final answer contains this text.", empty=True),
        "any_output_contains": _text("The answer of some turn contains this text.", empty=True),
        "output_equals": _text("The final answer is exactly this text.", empty=True),
        "output_matches": _text("This regular expression matches somewhere in the final answer.", empty=True),
        "called": {"anyOf": [_text(), called], "description": "The tool was called."},
        "not_called": {"anyOf": [_text(), not_called], "description": "The tool was not called."},
        "max_calls": {"anyOf": [_number(""), counted], "description": "There were at most this many tool calls."},
        "max_steps": _number("There were at most this many steps."),
        "output_as_expected": _words(get_args(ExpectedOutput), "The final answer has the `expected_output`."),
        "conversation_ended": {
            "anyOf": [ends, _list(ends, "", least=1)],
            "description": "The conversation ended in this way.",
        },
        "judge": {"anyOf": [rubric, judge], "description": "A model judges the task by a rubric."},
        "python": _import("A function of the finished task."),
    }
    assert kinds.keys() == CHECKS.keys()
    return {
        **_object(kinds, description="A condition: a mapping with one key."),
        "minProperties": 1,
        "maxProperties": 1,
    }


def _limits() -> Schema:
    properties = {
        "max_calls": _number("Tool calls, mocked and failed ones included."),
        "max_steps": _number("Steps."),
        "max_tokens": _number("Tokens, read and written."),
        "max_cost_usd": _amount("Price in US dollars."),
        "max_calls_per_tool": {
            "type": "object",
            "additionalProperties": _number(""),
            "description": "Tool calls by tool: a path, a name, or a glob.",
        },
        "no_repeated_call": {"type": "boolean", "description": "Whether no call may be made twice."},
    }
    return {**_object(properties, description="Limits of calls, steps, tokens and cost."), "minProperties": 1}


def _fault() -> Schema:
    shared = {
        "tool": _text("The tool: its path, its name, or a glob."),
        "args": _mapping("Strike only calls with these arguments."),
        "probability": _amount("The probability that it strikes a call. 1 by default.", 0, 1),
        "name": _text("The name of the fault in results."),
    }
    kinds = [
        _object(
            {"fault": {"const": name}, **shared, **{key: {} for key in kind.keys}},
            required=["tool", "fault", *kind.needed],
        )
        for name, kind in FAULT_KINDS.items()
    ]
    return {
        "description": "Something that goes wrong with a tool call.",
        "type": "object",
        "properties": {"fault": {"enum": list(FAULT_KINDS)}},
        "required": ["tool", "fault"],
        "anyOf": kinds,
    }


def _user() -> Schema:
    return _object(
        {
            "goal": _text("What the user wants, and what the user knows."),
            "model": _model("The model that plays the user."),
            "persona": _text("Who the user is, and how the user talks."),
            "settings": _mapping("Settings of the model calls, such as {temperature: 0}."),
        },
        required=["goal", "model"],
        description="A model that plays the user after the prompt; without a prompt, it begins.",
    )


def _stop() -> Schema:
    return _object(
        {
            "max_turns": _number("The largest number of messages of the user. 10 by default with a `user`.", 1),
            "phrase": _text("A text in an answer of the agent."),
            "check": {"$ref": "#/$defs/check", "description": "A check that passes."},
        },
        description="When a conversation ends before the user is done.",
    )
