"""A file of faults says what it means, or which of its lines does not."""

from __future__ import annotations

import builtins
import pathlib
import pickle
import re
from typing import Any

import pytest

from hookline.errors import MissingExtraError, install_command
from hookline.evals.errors import FaultFileError
from hookline.evals.faults import (
    FailedResult,
    FaultSpec,
    Latency,
    LogNormal,
    Normal,
    Oversize,
    RaiseError,
    RateLimit,
    Timeout,
    TruncatedJson,
    Uniform,
)
from hookline.evals.faults._files import FAULT_KINDS, load_faults

GOOD = """\
# What breaks in production.
faults:
  - {tool: "*/search", fault: timeout, seconds: 5, probability: 0.2}
  - tool: bank/transfer
    fault: rate_limit
    calls: 3
    per_seconds: 60
    raises: false
    args:
      currency: EUR
      tags: [a, 1, null]
    name: bank-is-busy
  - {tool: "*", fault: latency, seconds: 0.3}
  - {tool: "*", fault: latency, seconds: {uniform: {low: 0, high: 2}}}
  - {tool: "*", fault: latency, seconds: {normal: {mean: 1, deviation: 0.1}}}
  - {tool: "*", fault: latency, seconds: {lognormal: {median: 1, sigma: 0.1}}}
  - {tool: a/b, fault: failed_result, content: "no"}
  - {tool: a/b, fault: truncated_json, keep: 0.5}
  - {tool: a/b, fault: oversize, size_bytes: 10, filler: x}
"""


def load(folder: pathlib.Path, text: str | bytes) -> list[FaultSpec]:
    path = folder / "faults.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_faults(path)


@pytest.fixture(params=["C", "Python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """PyYAML with and without its C part."""
    if request.param == "Python":
        yaml = pytest.importorskip("yaml")
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    return request.param


@pytest.mark.usefixtures("loader")
def test_a_file_gives_its_faults_in_order(tmp_path: pathlib.Path) -> None:
    first, second, *others = load(tmp_path, GOOD)

    assert first == FaultSpec(tool="*/search", fault=Timeout(5), probability=0.2)
    assert second == FaultSpec(
        tool="bank/transfer",
        fault=RateLimit(calls=3, per_seconds=60, raises=False),
        args={"currency": "EUR", "tags": ["a", 1, None]},
        name="bank-is-busy",
    )
    assert type(second.args) is dict
    assert [each.fault for each in others] == [
        Latency(0.3),
        Latency(Uniform(low=0, high=2)),
        Latency(Normal(mean=1, deviation=0.1)),
        Latency(LogNormal(median=1, sigma=0.1)),
        FailedResult("no"),
        TruncatedJson(keep=0.5),
        Oversize(size_bytes=10, filler="x"),
    ]


def test_an_exception_is_named_like_the_one_of_python(tmp_path: pathlib.Path) -> None:
    text = "faults: [{tool: a, fault: raise_error, error: ConnectionError, message: down}, {tool: a, fault: raise_error, error: OSError}]"

    first, second = (spec.fault for spec in load(tmp_path, text))

    assert isinstance(first, RaiseError)
    assert isinstance(second, RaiseError)
    assert repr(first.error) == "ConnectionError('down')"
    assert repr(second.error) == "OSError()"


@pytest.mark.parametrize("name", sorted(set(FAULT_KINDS) - {"raise_error", "latency", "timeout", "rate_limit"}))
def test_a_fault_that_needs_nothing_is_named_by_its_class(tmp_path: pathlib.Path, name: str) -> None:
    [spec] = load(tmp_path, f"faults: [{{tool: a, fault: {name}}}]")

    assert spec.fault.name == name
    assert "".join(word.capitalize() for word in name.split("_")) == type(spec.fault).__name__


def test_a_list_may_hold_no_faults(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, "faults: []") == []


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "the file is empty"),
        ("# only a remark\n", 1, "the file is empty"),
        ("- 1\n", 1, "the file holds a mapping with one key, `faults`"),
        ("faults: []\nfault: []\n", 2, "unknown key `fault`"),
        ("\nfaults:\n", 2, "`faults` is a list of mappings; got None"),
        ("faults: {tool: a}\n", 1, "`faults` is a list of mappings; got {'tool': 'a'}"),
        ("faults:\n  - timeout\n", 2, "a fault is a mapping with `tool` and `fault`; got 'timeout'"),
        ("faults:\n  - tool: a\n", 2, "`fault` is missing; it is one of raise_error, failed_result, timeout"),
        ("faults:\n  - fault: timeout\n", 2, "`tool` is missing; it is a pattern of tools"),
        ("faults:\n  - tool: a\n    fault: timout\n", 3, "got 'timout'"),
        ("faults:\n  - tool: a\n    fault: timout\n", 3, "one of raise_error, failed_result, timeout, latency"),
        ("faults:\n  - tool: a\n    fault: timeout\n", 2, "timeout: `seconds` is missing"),
        ("faults:\n  - tool: a\n    fault: timeout\n    seconds: 5 s\n", 4, "number of seconds from 0"),
        ("faults:\n  - tool: a\n    fault: timeout\n    seconds: -1\n", 4, "got -1"),
        ("faults:\n  - tool: a\n    fault: timeout\n    seconds: .nan\n", 4, "a number that JSON does not have"),
        (
            "faults:\n  - tool: a\n    fault: timeout\n    second: 5\n",
            4,
            "`second` is an unknown key; it takes seconds, tool",
        ),
        ("faults:\n  - tool: a\n    probability: 1.5\n    fault: empty_result\n", 3, "number from 0 to 1; got 1.5"),
        ("faults:\n  - tool: a\n    probability: yes\n    fault: empty_result\n", 3, "got True"),
        (f"faults:\n  - tool: a\n    probability: 1{'0' * 400}\n    fault: empty_result\n", 3, "number from 0 to 1"),
        (f"faults:\n  - tool: a\n    fault: timeout\n    seconds: 1{'0' * 400}\n", 4, "number of seconds from 0"),
        (
            "faults:\n  - tool: 7\n    fault: empty_result\n",
            2,
            "`tool` is a pattern of tools, such as '*/search'; got 7",
        ),
        ("faults:\n  - tool: ''\n    fault: empty_result\n", 2, "got ''"),
        ("faults:\n  - tool: a\n    args: [1]\n    fault: empty_result\n", 3, "`args` is a mapping of arguments"),
        ("faults:\n  - tool: a\n    name: no\n    fault: empty_result\n", 3, "`name` is text; got False"),
        ("faults:\n  - tool: a\n    fault: raise_error\n    error: open\n", 4, "such as ConnectionError; got 'open'"),
        ("faults:\n  - tool: a\n    fault: raise_error\n    error: KeyboardInterrupt\n", 4, "got 'KeyboardInterrupt'"),
        ("faults:\n  - tool: a\n    fault: raise_error\n    error: UnicodeDecodeError\n", 4, "more than a message"),
        ("faults:\n  - tool: a\n    fault: raise_error\n    error: OSError\n    message: 5\n", 5, "`message` is text"),
        (
            "faults:\n  - tool: a\n    fault: latency\n    seconds: {gamma: {}}\n",
            4,
            "one of uniform, normal, lognormal",
        ),
        ("faults:\n  - tool: a\n    fault: latency\n    seconds: {}\n", 4, "one of uniform, normal, lognormal"),
        ("faults:\n  - tool: a\n    fault: latency\n    seconds: {normal: 5}\n", 4, "with mean and deviation; got 5"),
        (
            "faults:\n  - tool: a\n    fault: latency\n    seconds: {uniform: {low: 3, high: 1}}\n",
            4,
            "has a `high` that is not below `low`",
        ),
        (
            "faults:\n  - tool: a\n    fault: oversize\n    tool: b\n",
            4,
            "`tool` is given twice; it is in line 2 already",
        ),
        ("faults:\n  - tool: a\n    args: {b: 1,\n      b: 2}\n", 4, "`b` is given twice"),
        ("faults:\n  - tool: a\n    args: {when: 2024-01-01}\n", 3, "timestamp, which JSON does not have"),
        ("faults:\n  - tool: a\n    args: {1: 2}\n", 3, "a key is text, and `1` is not"),
        ("faults:\n  - &one {tool: a, fault: oversize}\n  - *one\n", 3, "`*one` repeats another part"),
        ("faults:\n  - !!python/object/apply:os.system ['true']\n", 2, "has no meaning here"),
        ("faults:\n  - {tool: a\n", 3, "not YAML"),
        ("faults: []\n---\nfaults: []\n", 2, "not YAML: but found another document"),
        ("faults:\n\t- tool: a\n", 2, "not YAML"),
        ("faults: []\n# \x00\n", 2, "not YAML"),
        (b"faults: []\n# \xff\n", 2, "not text in UTF-8"),
        ("faults: " + "[\n" * 100_000, 50, "nested more than 50 levels deep"),
        ("faults: " + "[" * 5000, 1, "nested more than 50 levels deep"),
        ("faults:\n - " + "9" * 6000, 2, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_says_in_which_line_and_why(
    tmp_path: pathlib.Path, text: str | bytes, line: int, problem: str
) -> None:
    with pytest.raises(FaultFileError) as caught:
        load(tmp_path, text)

    said = str(caught.value)
    assert problem in said
    assert said.startswith(f"{tmp_path / 'faults.yaml'}, line {line}: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == said


def test_a_file_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FaultFileError, match=r"none\.yaml: the file cannot be read \(No such file or directory\)\."):
        load_faults(tmp_path / "none.yaml")


def test_a_folder_is_no_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FaultFileError, match="the file cannot be read"):
        load_faults(tmp_path)


def test_without_pyyaml_the_extra_to_install_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def without_yaml(name: str, *others: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return really(name, *others)

    monkeypatch.setattr(builtins, "__import__", without_yaml)

    with pytest.raises(
        MissingExtraError, match=f"Reading faults from a file needs .* {re.escape(install_command('evals'))}"
    ):
        load(tmp_path, GOOD)
