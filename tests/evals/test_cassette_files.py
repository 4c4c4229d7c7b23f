"""A cassette's file holds what was recorded, byte for byte, and nothing else is ever taken for one."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import AfterToolCall, BeforeToolCall
from hookline.errors import HooklineError, install_command
from hookline.evals.cassettes import Cassette
from hookline.evals.cassettes._cassette import (
    CassetteConflictError,
    CassetteError,
    CassetteFileError,
    CassetteVersionError,
    CassetteWriteError,
    RecordedCall,
)

HEAD = "hookline_cassette: 1\nname: case\nmatching: keyed\n"
CALL = "- tool: local/look\n  args: {}\n  result: x\n  step: 0\n  call_index: 1\n"


def answered(content: str, *, index: int = 1, step: int = 0, operation: str = "o", **args: Any) -> AfterToolCall:
    return AfterToolCall(
        operation_id=operation,
        toolset="local",
        tool_name="look",
        args=args,
        call_index=index,
        step_index=step,
        tool_call_id="c",
        content=content,
        success=True,
    )


def asked(*, index: int = 1, operation: str = "o", **args: Any) -> BeforeToolCall:
    return BeforeToolCall(
        operation_id=operation,
        toolset="local",
        tool_name="look",
        args=args,
        call_index=index,
        step_index=0,
        tool_call_id="c",
    )


def saved(path: Path, *events: AfterToolCall, **options: Any) -> Cassette:
    with Cassette("case", path=path, **options) as cassette:
        for event in events:
            cassette.keep(event)
    return cassette


def test_a_file_is_short_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "case.yaml"

    saved(
        path,
        answered("two\nlines \n", what="tea", n=2, tags=["a", {"b": None}], when="2024-01-01"),
        answered("no", index=2, step=1, token="hunter2"),
    )

    assert path.read_text() == textwrap.dedent(
        """\
        hookline_cassette: 1
        name: case
        matching: keyed
        calls:
        - tool: local/look
          args:
            what: tea
            n: 2
            tags:
            - a
            - b: null
            when: "2024-01-01"
          result: |
            two
            lines\N{SPACE}
          step: 0
          call_index: 1
        - tool: local/look
          args:
            token: "[redacted]"
          result: "no"
          step: 1
          call_index: 2
        """
    )


def test_what_is_shown_only_where_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    cassette = Cassette(path=path)
    recordings = [
        RecordedCall(tool="t", args={}, result="", success=False, metadata={"rule": "r"}),
        RecordedCall(tool="t", args={}, result="why", success=False, raised="LookupError", call_index=2),
        RecordedCall(tool="t", args={}, result="", agent="guide", operation=2),
    ]
    for recording in recordings:
        cassette._recordings.add(("", recording.tool, str(recording.call_index)), recording)
    cassette._dirty = True

    cassette.save()

    assert path.read_text().count("success: false") == path.read_text().count("raised: LookupError") == 1
    assert path.read_text().count("metadata:") == path.read_text().count("agent: guide") == 1
    assert Cassette.load(path).recordings == recordings


TEXTS = st.text(st.characters(codec=None), max_size=12) | st.text(
    "ab \n\t\r:#-'\"|>?!&*{}[],%@`\x85\u2028\u2029\ufeff\0\x7f\ud800\U0001f600é.0123~<=ynoe", max_size=12
)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    args=st.dictionaries(TEXTS, VALUES, max_size=3), result=TEXTS, metadata=st.dictionaries(TEXTS, VALUES, max_size=2)
)
@example(args={"a": "no", "b": "2024-01-01", "c": "1e3", "d": "~", "e": ""}, result="1e3", metadata={})
@example(args={"a" * 2000: {"\ud800": [[], {}, [[1]]]}}, result=" \n\n \n", metadata={})
@example(args={"nan": -math.inf, "n": 1e300, "i": -(10**50)}, result="\r\n\x00\x85\u2028\u2029", metadata={})
@example(args={}, result="a\n  ", metadata={"on": "- a\n- b\n", "<<": "*x", "=": "&y"})
def test_any_recording_is_the_same_again(
    tmp_path_factory: pytest.TempPathFactory, args: dict[str, Any], result: str, metadata: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / "case.yaml"
    event = AfterToolCall(
        operation_id="o",
        toolset="local",
        tool_name="look",
        args=args,
        call_index=1,
        step_index=0,
        tool_call_id="c",
        content=result,
        success=True,
        metadata={key: value for key, value in metadata.items() if key not in ("cassette", "recording", "latency_ms")},
    )

    first = saved(path, event, redact=None)
    (read,) = Cassette.load(path, redact=None).recordings

    assert [read] == first.recordings
    assert (read.args, read.result, read.metadata) == (args, result, event.metadata)
    assert yaml.parse(path.read_bytes()) is not None


def test_arguments_nested_too_deeply_for_people_are_the_same_again(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"end": 1}
    for level in range(150):
        deep = {"k": [deep]} if level % 2 else {"k": deep}

    saved(tmp_path / "case.yaml", answered("x", **deep))

    assert Cassette.load(tmp_path / "case.yaml").recordings[0].args == deep


def test_the_order_of_a_file_does_not_depend_on_who_was_first(tmp_path: Path) -> None:
    events = [answered("a", what="a"), answered("b", index=2, what="b"), answered("c", index=3, step=1, what="a")]

    saved(tmp_path / "one.yaml", *events)
    saved(tmp_path / "two.yaml", *reversed(events))

    assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    saved(path, answered("x"))
    edited = path.read_text().replace("matching: keyed\n", "matching: keyed\n# by hand\n")
    path.write_text(edited)

    again = Cassette(path=path, mode="all")
    again.keep(answered("x"))

    assert not again.changed
    assert again.save() is None
    assert path.read_text() == edited


def test_nothing_recorded_makes_no_file(tmp_path: Path) -> None:
    with Cassette(path=tmp_path / "case.yaml") as cassette:
        cassette.forget("o")

    assert list(tmp_path.iterdir()) == []


BAD = {
    "empty": ("", 1, "it is empty"),
    "blank": (" \n\n", 1, "it is empty"),
    "another file": ("version: 3\nservices: {}\n", 1, "some other file"),
    "a list": ("- 1\n", 1, "some other file"),
    "a text": ("hello\n", 1, "some other file"),
    "no yaml": (f"{HEAD}calls:\n- tool: [a\n  args: {{}}\n", 6, "it is not YAML"),
    "half a call": (f"{HEAD}calls:\n{CALL}- tool: local/look\n  args: {{}}\n  result: y\n", 10, "no `step` and no"),
    "half a line": (f"{HEAD}calls:\n{CALL.rstrip()}", 9, "it is cut off in its last line"),
    "half a text": (f'{HEAD}calls:\n- tool: "loc', 5, "it is not YAML"),
    "another version": (f"hookline_cassette: 2\n{HEAD[21:]}calls: []\n", 1, "upgrade hookline"),
    "an old version": (f"\nhookline_cassette: 0\n{HEAD[21:]}calls: []\n", 2, "mode='rewrite'"),
    "no version": (f"hookline_cassette: one\n{HEAD[21:]}calls: []\n", 1, "a whole number"),
    "unknown field": (f"{HEAD}colour: red\ncalls: []\n", 4, "`colour` is not a field"),
    "unknown field of a call": (f"{HEAD}calls:\n{CALL}  colour: red\n", 10, "`colour` is not a field of a call"),
    "no calls": (HEAD, 1, "it has no `calls`"),
    "calls are no list": (f"{HEAD}calls: {{}}\n", 4, "`calls` is a list"),
    "a call is a text": (f"{HEAD}calls:\n- hello\n", 5, "a call is a mapping"),
    "a wrong matching": (f"{HEAD.replace('keyed', 'nth')}calls: []\n", 3, "keyed or sequential; got 'nth'"),
    "a number for a text": (f"{HEAD}calls:\n{CALL.replace('x', '1810.50')}", 7, "`result` is text; got 1810.5. Put it"),
    "a text for a number": (f"{HEAD}calls:\n{CALL.replace('step: 0', 'step: first')}", 8, "`step` is a whole number"),
    "true for a number": (f"{HEAD}calls:\n{CALL.replace('step: 0', 'step: true')}", 8, "`step` is a whole number"),
    "zero for an index": (f"{HEAD}calls:\n{CALL.replace('index: 1', 'index: 0')}", 9, "from 1; got 0"),
    "a list for args": (f"{HEAD}calls:\n{CALL.replace('{}', '[]')}", 6, "`args` is a mapping; got a list"),
    "both": (f"{HEAD}calls:\n{CALL}  raised: E\n  success: false\n", 11, "not both"),
    "a key twice": (f"{HEAD}calls:\n{CALL}  step: 1\n", 10, "`step` is given twice"),
    "a key twice in args": (f"{HEAD}calls:\n{CALL.replace('{}', '{a: 1, a: 2}')}", 6, "`a` is given twice"),
    "nested": (f"{HEAD}calls:\n{CALL.replace('{}', '{a: ' + '[' * 5000)}", 6, "64 levels deep"),
    "an alias": (f"{HEAD}calls:\n{CALL.replace('{}', '&a {b: *a}')}", 6, "write that part out"),
    "a tag": (f"{HEAD}calls:\n{CALL.replace('x', '!!python/name:os.system x')}", 7, "the tag"),
    "bad json": (f"{HEAD}calls:\n{CALL.replace('x', '!json [')}", None, ""),
    "two documents": (f"{HEAD}calls: []\n---\n{HEAD}calls: []\n", 5, "several documents"),
    "a control character": (f"{HEAD}calls:\n{CALL.replace('x', 'x' + chr(1))}", 7, "which YAML does not allow"),
    "a list as a key": (f"{HEAD}calls:\n{CALL.replace('{}', '{[a]: 1}')}", 6, "a key is text"),
}


@pytest.mark.parametrize("mode", ["none", "once", "new_episodes", "all"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_line_and_never_overwritten(tmp_path: Path, name: str, mode: Any) -> None:
    text, line, problem = BAD[name]
    path = tmp_path / "case.yaml"
    path.write_text(text)

    with pytest.raises(CassetteFileError) as caught:
        saved(path, answered("x"), mode=mode)

    assert problem in str(caught.value)
    assert f"{path}, line {line or caught.value.line}" in str(caught.value)
    assert path.read_text() == text
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", [name for name, (_, _, problem) in BAD.items() if "is not YAML" in problem or "other" in problem]
)
def test_a_rewrite_does_not_replace_what_is_no_cassette(tmp_path: Path, name: str) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(BAD[name][0])

    with pytest.raises(CassetteFileError):
        saved(path, answered("x"), mode="rewrite")

    assert path.read_text() == BAD[name][0]


@pytest.mark.parametrize("name", ["another version", "an old version", "unknown field", "a text for a number"])
def test_a_rewrite_replaces_a_cassette_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(BAD[name][0])

    saved(path, answered("x"), mode="rewrite")

    assert [recording.result for recording in Cassette.load(path).recordings] == ["x"]


def test_a_file_that_is_no_utf8_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    path.write_bytes(HEAD.encode() + b"# \xff\ncalls: []\n")

    with pytest.raises(CassetteFileError, match=r"line 4 cannot be used: it is not text in UTF-8"):
        Cassette(path=path)
    with pytest.raises(CassetteFileError, match="cannot be read"):
        Cassette(path=tmp_path)
    with pytest.raises(CassetteFileError, match="there is no such file"):
        Cassette.load(tmp_path / "other.yaml")


def test_a_file_with_windows_lines_and_a_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    text = f"\ufeff{HEAD}calls:\n{CALL.replace('result: x', 'result: |' + chr(10) + '    a' + chr(10) + '    b')}"
    path.write_bytes(text.replace("\n", "\r\n").encode())

    assert [recording.result for recording in Cassette(path=path).recordings] == ["a\nb\n"]


def test_two_cassettes_of_one_file_do_not_overwrite_each_other(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    first, second = Cassette("first", path=path), Cassette("second", path=path)
    first.keep(answered("first", what="a"))
    second.keep(answered("second", what="b"))

    first.save()

    with pytest.raises(CassetteConflictError, match="Give each case its own file") as caught:
        second.save()
    assert caught.value.name == "second"
    assert [recording.result for recording in Cassette(path=path).recordings] == ["first"]
    assert [recording.result for recording in second.recordings] == ["second"]


def test_a_file_that_was_deleted_meanwhile_is_a_conflict_too(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    saved(path, answered("x"))
    cassette = Cassette(path=path, mode="new_episodes")
    cassette.keep(answered("y", step=1, what="y"))
    path.unlink()

    with pytest.raises(CassetteConflictError):
        cassette.save()


def test_a_failure_of_the_test_is_not_hidden_by_one_of_saving(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"

    with pytest.raises(LookupError) as caught, Cassette(path=path) as cassette:
        cassette.keep(answered("x"))
        path.write_text("of somebody else\n")
        raise LookupError("the test's own")

    assert "was not saved" in caught.value.__notes__[0]
    assert path.read_text() == "of somebody else\n"


def test_a_cassette_is_saved_after_a_failure_and_can_go_on(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    cassette = Cassette(path=path)

    with pytest.raises(LookupError), cassette:
        cassette.keep(answered("x"))
        raise LookupError("the test's own")
    cassette.keep(answered("y", step=1, what="y"))

    assert cassette.save() == path
    assert [recording.result for recording in Cassette.load(path).recordings] == ["x", "y"]


WRITER = """
import os, sys
from hookline.evals.cassettes._cassette import Cassette
from hookline import AfterToolCall
path, index, how = sys.argv[1:]
cassette = Cassette(path=path, mode="new_episodes")
cassette.keep(AfterToolCall(operation_id="o", toolset="local", tool_name="look", args={"n": int(index)},
    call_index=1, step_index=0, tool_call_id="c", content="x" * 5000, success=True))
if how == "killed":
    os.fsync = lambda number: os.kill(os.getpid(), 9)
print("ready", flush=True)
sys.stdin.read()
try:
    cassette.save()
except Exception as error:
    print(type(error).__name__)
else:
    print("saved")
"""


def process(path: Path, index: int, how: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(index), how]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def test_of_several_processes_one_writes_and_the_others_are_told(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    running = [process(path, index) for index in range(3)]

    said = sorted(each.communicate("go")[0].strip() for each in running)

    assert said == ["CassetteConflictError", "CassetteConflictError", "saved"]
    assert len(Cassette.load(path)) == 1


def test_a_killed_process_leaves_the_old_file_and_its_rest_is_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    saved(path, answered("x"))
    before = path.read_bytes()
    killed = process(path, 1, "killed")

    killed.communicate("go")

    assert killed.returncode == -9
    assert path.read_bytes() == before
    assert len(list(tmp_path.glob(".*.tmp"))) == 1
    saved(path, answered("y", step=1, what="y"), mode="new_episodes")
    assert list(tmp_path.glob(".*.tmp")) == []
    assert [recording.result for recording in Cassette.load(path).recordings] == ["x", "y"]


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    blocked = Cassette(path=tmp_path / "folder" / "case.yaml")
    blocked.keep(answered("x"))
    (tmp_path / "folder").write_text("")

    with pytest.raises(CassetteWriteError, match=r"folder.case\.yaml cannot be written"):
        blocked.save()


def test_the_mode_of_a_file_stays_and_a_link_leads_to_its_file(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    saved(path, answered("x"))
    path.chmod(0o640)
    (tmp_path / "link.yaml").symlink_to(path)

    saved(tmp_path / "link.yaml", answered("y", step=1, what="y"), mode="new_episodes")

    assert path.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link.yaml").is_symlink()
    assert len(Cassette.load(path)) == 2


@pytest.mark.parametrize(
    "error",
    [
        CassetteFileError("a.yaml", "it is empty", 3),
        CassetteFileError("a.yaml", "it is empty"),
        CassetteVersionError("a.yaml", 1, 2, 1),
        CassetteConflictError("a.yaml", "case"),
        CassetteWriteError("a.yaml", "no space"),
    ],
)
def test_every_error_names_its_file_and_pickles(error: CassetteError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), copy.path) == (type(error), str(error), "a.yaml")
    assert "a.yaml" in str(error)
    assert isinstance(error, HooklineError)
    assert isinstance(error, CassetteError)


def test_thousands_of_calls_are_read_without_a_pause(tmp_path: Path) -> None:
    path = tmp_path / "case.yaml"
    saved(path, *[answered(f"tea\ncosts {n} EUR\n", index=n + 1, what=f"tea {n}") for n in range(3000)])

    cassette = Cassette.load(path)

    assert len(cassette) == 3000
    answer = cassette.answer(asked(index=2000, what="tea 1999"))
    assert answer is not None
    assert answer.content == "tea\ncosts 1999 EUR\n"


def test_without_pyyaml_a_file_needs_the_extra_and_memory_does_not() -> None:
    program = """
        import sys
        sys.modules["yaml"] = sys.modules["filelock"] = None
        from hookline.errors import MissingExtraError
        from hookline.evals.cassettes._cassette import Cassette
        Cassette("in memory")
        try:
            Cassette(path="case.yaml")
        except MissingExtraError as error:
            print(error)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )

    assert "A cassette file needs an extra" in done.stdout
    assert install_command("evals") in done.stdout
