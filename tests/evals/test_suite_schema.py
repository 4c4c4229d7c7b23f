"""The JSON schema of suite files: it is the stored one, accepts every suite of ours, and refuses what the reader refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hookline.evals.errors import DataFileError, SuiteFileError
from hookline.evals.suites import load_suite_file, suite_schema
from hookline.evals.suites._schema import suite_schema_text
from tests.docs.markdown import PAGES, ROOT, blocks, title

from .test_suite_files import written

STORED = ROOT / "docs" / "examples" / "suite.schema.json"
CHECKED = jsonschema.Draft202012Validator(suite_schema())

FILES = [path for path in sorted((ROOT / "docs" / "examples").rglob("*.yaml")) if "suite:" in path.read_text()]
SHOWN = [
    (f"{title(page)}:{block.line}", block.code)
    for page in PAGES
    for block in blocks(page.read_text())
    if block.language == "yaml" and "suite:" in block.code and "tasks:" in block.code
]


def problems(text: str) -> list[str]:
    return [error.message for error in CHECKED.iter_errors(yaml.safe_load(text))]


def test_the_schema_is_valid_and_is_the_stored_one() -> None:
    jsonschema.Draft202012Validator.check_schema(suite_schema())

    assert STORED.read_text() == suite_schema_text(), f"run `hookline eval schema {STORED.relative_to(ROOT)}`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_accepts_every_suite_of_the_examples(path: Path) -> None:
    assert problems(path.read_text()) == []


@pytest.mark.parametrize("text", [text for _, text in SHOWN], ids=[name for name, _ in SHOWN])
def test_it_accepts_every_suite_of_the_pages(text: str) -> None:
    assert problems(text) == []


HEAD = "suite: shop\ntools: {tools}:tools\ntasks:\n  - id: tea\n    prompt: Tea?\n"

GOOD = [
    "suite: shop\ntasks: []\n",
    HEAD,
    HEAD + "    script: [{say: ''}, {tool: a, args: {}}, {calls: [{tool: a}], say: b}]\n",
    HEAD + "    mocks: [{tool: '*', args: {a: 1}, args_mode: subset, nth: 1, step: 0, name: n, sequence: [1, {raises: OSError}], then: error}]\n",
    HEAD + "    mocks: [{tool: '*', returns: null}, {tool: '*', passthrough: true}, {tool: '*', table: {field: a, answers: {x: 1}}}]\n",
    HEAD + "    mocks: [{tool: '*', raises: 'ConnectionError: down'}, {tool: '*', fails: x}, {tool: '*', template: '{a}'}]\n",
    HEAD + "    expected: {calls: [], mode: strict, args: subset}\n",
    HEAD + "    checks: [{output_equals: ''}, {any_output_contains: a}, {output_matches: a}, {max_calls: 0}, {max_steps: 3}]\n",
    HEAD + "    checks: [{output_as_expected: equals}, {max_calls: {count: 3, tool: '*'}}]\n    expected_output: a\n",
    HEAD + "    turns: [a, b]\n    stop: {max_turns: 2, phrase: a, check: {output_contains: a}}\n    checks: [{conversation_ended: turns}, {conversation_ended: [user, phrase]}]\n",
    HEAD + "    limits: {max_calls: 3, max_steps: 3, max_tokens: 5, max_cost_usd: 0.1, max_calls_per_tool: {'*': 2}, no_repeated_call: true}\n",
    HEAD + "    faults: [{tool: '*', fault: timeout, seconds: 5, probability: 0.5, name: n, args: {a: 1}}, {tool: '*', fault: empty_result}]\n",
    HEAD + "    faults: [{tool: '*', fault: raise_error, error: OSError, message: m}, {tool: '*', fault: latency, seconds: {uniform: {low: 1, high: 2}}}]\n",
    HEAD + "    tags: [a]\n    weight: 0.5\n    metadata: {a: [1]}\n    cassette: a.yaml\n    model: '{tools}:model'\n",
    HEAD + "    checks: [{judge: a}, {judge: {rubric: a, name: b, model: ['{tools}:model', '{tools}:model'], threshold: 0.5, grades: 3}}]\n"
    "judge: {model: '{tools}:model', combine: min, required: false, tools: false, attempts: 1, settings: {temperature: 0}}\n",
    "suite: s\nlimits: {max_calls: 1}\nchecks: [{max_steps: 3}]\ntags: [a]\ncassettes: {matching: sequential, ignore: [a]}\ninstructions: a\n"
    "tasks: [{id: x, user: {goal: g, model: '{tools}:model', persona: p, settings: {a: 1}}}]\n",
    "suite: s\ntasks: [{id: '{a}-{b}', prompt: p, cases: [{a: 1}], matrix: {b: [1]}, checks: [{max_calls: '{a}'}], weight: '{a}'}]\n",
]  # fmt: skip
"""What the reader accepts, every key at least once."""


@pytest.mark.parametrize("text", GOOD)
def test_it_accepts_what_the_reader_accepts(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    module = next(tmp_path.glob("tools_of_*.py"))
    module.write_text(
        f"{module.read_text()}def model():\n    from hookline import ScriptedModel\n    return ScriptedModel([])\n"
    )

    load_suite_file(path)

    assert problems(path.read_text()) == []


def keys_of(schema: Any) -> set[str]:
    """Every key that some mapping of a schema names."""
    if isinstance(schema, list):
        return {key for each in schema for key in keys_of(each)}
    if not isinstance(schema, dict):
        return set()
    own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return own | {key for each in schema.values() for key in keys_of(each)}


def test_the_accepted_suites_use_every_key_of_the_schema() -> None:
    used = "\n".join(GOOD)
    faults = {
        "calls",
        "per_seconds",
        "content",
        "filler",
        "keep",
        "raises",
        "size_bytes",
        "fault",
        "called",
        "not_called",
    }
    others = {"agent", "python", "runs", "fields", "schema", "times", "tool", "args"}

    assert {key for key in keys_of(suite_schema()) if f"{key}:" not in used} <= faults | others


BAD = [
    "",
    "- suite",
    "suite: shop\n",
    "suite: 7\ntasks: []\n",
    "suite: shop\ntoolz: x\ntasks: []\n",
    "suite: shop\ntools: shop\ntasks: []\n",
    "suite: shop\ntasks: 7\n",
    "suite: shop\ntasks:\n  - id: a\n",
    "suite: shop\ntasks:\n  - 7\n",
    "suite: shop\ntags: [7]\ntasks: []\n",
    "suite: shop\njudge: {rubric: a}\ntasks: []\n",
    HEAD + "    scripts: []\n",
    HEAD + "    script:\n      - {}\n",
    HEAD + "    script:\n      - {tool: price, arg: {}}\n",
    HEAD + "    script:\n      - {tool: price, args: tea}\n",
    HEAD + "    script: []\n    model: '{tools}:nothing'\n",
    HEAD + "    mocks:\n      - {tool: price}\n",
    HEAD + "    mocks:\n      - {tool: price, returns: 1, fails: x}\n",
    HEAD + "    mocks:\n      - {tool: price, raises: Nope}\n",
    HEAD + "    mocks:\n      - {tool: price, sequence: []}\n",
    HEAD + "    mocks:\n      - {tool: price, args_mode: some, returns: 1}\n",
    HEAD + "    mocks:\n      - {tool: price, passthrough: false}\n",
    HEAD + "    mocks:\n      - {tool: price, returns: 1, then: last}\n",
    HEAD + "    expected: {call: []}\n",
    HEAD + "    expected: {calls: [], mode: loose}\n",
    HEAD + "    checks: [{outputs: x}]\n",
    HEAD + "    checks: [output_contains]\n",
    HEAD + "    checks: [{output_contains: 3}]\n",
    HEAD + "    checks: [{output_contains: a, max_calls: 1}]\n",
    HEAD + "    checks: [{max_calls: many}]\n",
    HEAD + "    checks: [{max_calls: -1}]\n",
    HEAD + "    checks: [{max_calls: {tool: price}}]\n",
    HEAD + "    checks: [{called: {args: {}}}]\n",
    HEAD + "    checks: [{not_called: {tool: price, times: 0}}]\n",
    HEAD + "    checks: [{python: shop}]\n",
    HEAD + "    checks: [{judge: {model: '{tools}:tools'}}]\n",
    HEAD + "    checks: [{judge: {rubric: a, model: '{tools}:tools', threshold: 2}}]\n",
    HEAD + "    checks: [{judge: {rubric: a, model: '{tools}:tools', grades: 1}}]\n",
    HEAD + "    checks: [{judge: {rubric: a, model: '{tools}:tools', combine: vote}}]\n",
    HEAD + "    checks: [{judge: {rubric: a, model: []}}]\n",
    HEAD + "    checks: [{conversation_ended: later}]\n",
    HEAD + "    checks: [{output_as_expected: maybe}]\n",
    HEAD + "    limits: {max_call: 3}\n",
    HEAD + "    limits: {max_calls: -3}\n",
    HEAD + "    limits: {}\n",
    HEAD + "    limits: {no_repeated_call: 1}\n",
    HEAD + "    faults: [{tool: '*'}]\n",
    HEAD + "    faults: [{tool: '*', fault: explode}]\n",
    HEAD + "    faults: [{tool: '*', fault: timeout}]\n",
    HEAD + "    faults: [{tool: '*', fault: empty_result, seconds: 5}]\n",
    HEAD + "    faults: [{tool: '*', fault: empty_result, probability: 2}]\n",
    HEAD + "    turns: Hello\n",
    HEAD + "    turns: ['']\n",
    HEAD + "    turns: [a]\n    user: {goal: g, model: '{tools}:tools'}\n",
    HEAD + "    user: {model: '{tools}:tools'}\n",
    HEAD + "    user: {goal: g}\n",
    HEAD + "    stop: {max_turns: 2}\n",
    HEAD + "    turns: [a]\n    stop: {max_turns: 0}\n",
    HEAD + "    turns: [a]\n    stop: {turns: 2}\n",
    HEAD + "    tags: price\n",
    HEAD + "    weight: heavy\n",
    HEAD + "    metadata: [1]\n",
    HEAD + "    cases: cases.jsonl\n",
    HEAD + "    matrix: {a: [1]}\n",
    "suite: s\ntasks: [{id: '{a}', prompt: p, cases: cases.txt}]\n",
    "suite: s\ntasks: [{id: '{a}', prompt: p, cases: [1]}]\n",
    "suite: s\ntasks: [{id: '{a}', prompt: p, cases: []}]\n",
    "suite: s\ntasks: [{id: '{a}', prompt: p, matrix: {a: 1}}]\n",
    "suite: s\ntasks: [{id: '{a}', prompt: p, matrix: {a: []}}]\n",
]  # fmt: skip
"""What the reader refuses, and an editor can see. It cannot see what a name leads to, nor whether YAML repeats a key."""


@pytest.mark.parametrize("text", BAD)
def test_it_refuses_what_the_reader_refuses(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)

    with pytest.raises((SuiteFileError, DataFileError)):
        load_suite_file(path)

    assert problems(path.read_text()) != []


def test_every_key_has_a_description_for_editors() -> None:
    schema = suite_schema()
    missing = [
        key
        for part in ("task", "check", "mock", "limits", "user", "stop", "expected", "judgeOptions")
        for key, value in schema["$defs"][part]["properties"].items()
        if "description" not in value
        and "description" not in schema["$defs"].get(value.get("$ref", "").rpartition("/")[2], {})
    ]

    assert missing == []
    assert json.loads(suite_schema_text()) == schema
