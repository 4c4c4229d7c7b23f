"""Tasks from cases: files, lists and matrices; parameters; bad rows with file and line; and memory."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hookline.errors import HookUsageError
from hookline.evals import SuiteRun, UnknownTaskError, cases_of
from hookline.evals.datasets import Dataset
from hookline.evals.datasets._parameters import MissingParameterError, fill_text, fill_value
from hookline.evals.datasets._rows import RowFile
from hookline.evals.errors import DataFileError, SuiteFileError
from hookline.evals.running import SuiteRunner
from hookline.evals.suites import Task, UserSuite, asks, checks, load_suite_file, says

from .shop import tools
from .test_suite_files import written

HEAD = "suite: shop\ntools: {tools}:tools\ntasks:\n"
PRICES = "price_of_tea", "price_of_milk"


def suite_of(folder: Path, text: str, **files: str) -> UserSuite:
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        (folder / f"{stem}.{ending}").write_text(content)
    found = load_suite_file(written(folder, HEAD + text))
    assert isinstance(found, UserSuite)
    return found


def run(suite: UserSuite) -> SuiteRun:
    return anyio.run(SuiteRunner(cases_of([suite])).run)


CASES = '{"item": "tea", "price": 3}\n\n{"item": "milk", "price": 4, "more": [1]}\n'


def test_every_row_of_a_file_is_a_task_with_its_values_everywhere(tmp_path: Path) -> None:
    suite = suite_of(
        tmp_path,
        """\
  - id: "price-{item}"
    cases: cases.jsonl
    prompt: "What does {item} cost, in {{currency}}?"
    script: [{say: "{item} costs {price} EUR"}]
    expected_output: "{price} EUR"
    tags: ["{item}"]
    metadata: {price: "{price}", text: "it is {price}"}
    checks:
      - output_contains: "{item}"
      - output_matches: '^\\w{3,4} costs {price}'
      - max_calls: "{price}"
      - output_as_expected: contains
""",
        cases_jsonl=CASES,
    )

    tea, milk = run(suite).results

    assert suite.task_ids == ["price-tea", "price-milk"]
    assert (tea.ok, milk.ok) == (True, True)
    assert tea.prompt == "What does tea cost, in {currency}?"
    assert (tea.expected_output, tea.tags, tea.metadata) == ("3 EUR", ["tea"], {"price": 3, "text": "it is 3"})
    assert [check.name for check in milk.checks][:3] == [
        "output contains 'milk'",
        r"output matches '^\\w{3,4} costs 4'",
        "at most 4 calls",
    ]


def test_csv_values_are_texts_and_cells_may_have_several_lines(tmp_path: Path) -> None:
    suite = suite_of(
        tmp_path,
        '  - {id: "{id}", cases: cases.csv, prompt: "{question}", script: [{say: "{answer}"}]}\n',
        cases_csv='id,question,answer\r\na,"What,\r\n""exactly""?",3\r\nb,Why?,"4"\r\n',
    )

    assert [suite.task(name).prompt for name in ("b", "a")] == ["Why?", 'What,\r\n"exactly"?']
    assert [result.output for result in run(suite).results] == ["3", "4"]


def test_cases_may_stand_in_the_suite_and_be_combined_with_a_matrix(tmp_path: Path) -> None:
    suite = suite_of(
        tmp_path,
        """\
  - id: "{item}-{lang}-{count}"
    cases: [{item: tea}, {item: milk}]
    matrix: {lang: [de, en], count: [1, 2]}
    prompt: "{item}"
    script: []
  - {id: plain, prompt: "no {parameter} here", script: []}
  - {id: "m-{x}", matrix: {x: [1, true]}, prompt: "{x}", script: []}
""",
    )

    assert suite.task_ids == [
        *(f"{item}-{lang}-{count}" for item in ("tea", "milk") for lang in ("de", "en") for count in (1, 2)),
        *("plain", "m-1", "m-true"),
    ]
    assert suite.prompt("milk-de-2") == "milk"
    assert suite.prompt("plain") == "no {parameter} here"


def test_a_matrix_multiplies_the_rows_of_a_file(tmp_path: Path) -> None:
    suite = suite_of(
        tmp_path,
        '  - {id: "{item}-{lang}", cases: cases.jsonl, matrix: {lang: [de, en]}, prompt: "{item} {lang} {price}", script: []}\n',
        cases_jsonl=CASES,
    )

    assert [suite.prompt(name) for name in suite.task_ids] == ["tea de 3", "tea en 3", "milk de 4", "milk en 4"]


def test_braces_of_answer_templates_stay_those_of_arguments(tmp_path: Path) -> None:
    suite = suite_of(
        tmp_path,
        '  - {id: "{x}", matrix: {x: [a]}, prompt: p, script: [], mocks: [{tool: "*", template: "sent to {to}"}]}\n',
    )

    assert suite.task_ids == ["a"]


def test_a_dataset_in_python_makes_its_tasks_from_rows(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text(CASES)

    def make(row: dict[str, Any]) -> Task:
        answer = f"{row['item']} costs {row['price']}"
        script = [asks("price", item=row["item"]), says(answer)]
        return Task(id=row["item"], prompt="?", script=script, checks=[checks.output_contains(str(row["price"]))])

    dataset = Dataset(tmp_path / "cases.jsonl", make)
    suite = UserSuite("shop", tools=tools, tasks=[Task(id="one", prompt="?", script=[]), dataset])

    assert suite.task_ids == ["one", "tea", "milk"]
    assert [result.ok for result in run(suite).results] == [False, True, True]
    assert (len(dataset), "milk" in dataset, list(dataset)) == (2, True, ["tea", "milk"])
    assert suite.models == ["scripted"]


def test_tasks_are_selected_by_name_and_a_wrong_name_is_told_with_a_near_one(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(5_000)))
    suite = UserSuite(
        "many", tasks=[Dataset(tmp_path / "cases.jsonl", lambda row: Task(id=f"task-{row['n']}", prompt="?"))]
    )

    assert suite.select(["task-4999"]) == ["task-4999"]
    with pytest.raises(UnknownTaskError) as caught:
        suite.select(["task-49999"])
    assert "Did you mean 'task-4999'" in str(caught.value)
    assert len(str(caught.value)) < 2_000


# Parameters.


@settings(max_examples=40)
@given(st.text(), st.dictionaries(st.from_regex(r"[A-Za-z_]\w*", fullmatch=True), st.integers()))
def test_filling_changes_parameters_alone(text: str, values: dict[str, int]) -> None:
    try:
        filled = fill_text(text, values)
    except MissingParameterError:
        assume(False)
    if not any(f"{{{name}}}" in text for name in values) and "{{" not in text:
        assert filled == text


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]\w*", fullmatch=True), st.text() | st.integers() | st.booleans() | st.none(), min_size=1
    )
)
def test_a_text_that_is_one_parameter_becomes_its_value(values: dict[str, Any]) -> None:
    for name, value in values.items():
        assert fill_value(f"{{{name}}}", values) == value
        assert fill_value(f"{{{{{name}}}}}", values) == f"{{{name}}}"
        assert fill_text(f"<{{{name}}}>", values) == f"<{value if isinstance(value, str) else json.dumps(value)}>"


@pytest.mark.parametrize("text", ["{2,3}", '{"a": 1}', "{}", "{ a }", "{a", "a}", "{a-b}", "{1a}"])
def test_other_braces_are_left_alone(text: str) -> None:
    assert fill_text(text, {"a": "x"}) == text


# Bad files.


@pytest.mark.parametrize(
    ("name", "content", "line", "told"),
    [
        ("cases.jsonl", '{"item": "tea"}\n{"itm": "milk"}\n', 2, "the case has no 'item', which the task uses as {item}; did you mean 'itm'?"),
        ("cases.jsonl", '{"item": "tea"}\n\n{"item": "tea"}\n', 3, "the id 'p-tea' is given twice; line 1 has it too"),
        ("cases.jsonl", '{"item": "tea"}\n[1]\n', 2, "each line has a JSON object; got '[1]'"),
        ("cases.jsonl", '{"item": "tea"}\n{"item": \n', 2, "the line is not JSON (Expecting value, column 9)"),
        ("cases.jsonl", '{"item": "tea", "item": "milk"}\n', 1, "the line cannot be used: 'item' is given twice"),
        ("cases.jsonl", '{"item": NaN}\n', 1, "NaN is a number that JSON does not have"),
        ("cases.jsonl", b'{"item": "tea"}\n{"item": "\xe4"}\n', 2, "not text in UTF-8; save the file in that encoding"),
        ("cases.jsonl", "{" * 10_000, 1, "the line is not JSON"),
        ("cases.jsonl", "\n\n", None, "there are no cases"),
        ("cases.csv", "item\n", None, "there are no cases"),
        ("cases.csv", "", 1, "the first line of a CSV file names the columns"),
        ("cases.csv", "item,item\ntea,tea\n", 1, "two columns have the name 'item'"),
        ("cases.csv", "item,\ntea,1\n", 1, "a column has no name"),
        ("cases.csv", 'item,x\n"tea\nor\nso",1\nmilk\n', 5, "the header names 2 columns, and this row has 1"),
        ("cases.csv", 'item,x\ntea,"1\n', 2, "the line is not CSV (unexpected end of data)"),
        ("cases.csv", b"item\ntea\n\xff\n", 3, "not text in UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_told_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, line: int | None, told: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(DataFileError) as caught:
        suite_of(tmp_path, f'  - {{id: "p-{{item}}", cases: {name}, prompt: "{{item}}?"}}\n')

    assert told in str(caught.value)
    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert str(caught.value).startswith(f"{path}: " if line is None else f"{path}, line {line}: ")


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ('  - {id: p, cases: cases.jsonl, prompt: "{item}"}\n', 4, "names a parameter, such as 'p-{item}'; got 'p'"),
        ('  - {id: "{item}", cases: cases.txt, prompt: p}\n', 4, "ends in .jsonl, .ndjson, .csv; got 'cases.txt'"),
        ('  - {id: "{item}", cases: 7, prompt: p}\n', 4, "`cases` is a list; got 7"),
        ('  - {id: "{item}", cases: [7], prompt: p}\n', 4, "a case is a mapping of its values; got 7"),
        ('  - {id: "{item}", matrix: 7, prompt: p}\n', 4, "`matrix` is a mapping; got 7"),
        ('  - {id: "{item}", matrix: {item: []}, prompt: p}\n', 4, "`item` of the matrix has no values"),
        ('  - {id: "{item}", matrix: {item: tea}, prompt: p}\n', 4, "`item` is a list; got 'tea'"),
        ('  - id: "{item}"\n    cases:\n      - {item: a}\n      - {itm: b}\n    prompt: p\n', 7, "the case has no 'item'"),
        ('  - id: "{item}"\n    cases:\n      - {item: a}\n      - {item: a}\n    prompt: p\n', 7, "line 6 has it too"),
        ('  - {id: "{item}", cases: [{item: a}], matrix: {item: [b]}, prompt: p}\n', 4, "and so has the matrix; rename one"),
        ('  - id: "{item}"\n    cases: cases.jsonl\n    prompt: p\n    checks: [{max_calls: "{item}"}]\n', 7,
         "this check takes a whole number from 0; got 'tea', with the case in line 1 of cases.jsonl"),
        ('  - id: "{item}"\n    cases: cases.jsonl\n    prompt: p\n    checks: [{not_called: "{item}"}]\n', 7, "no tool 'tea'"),
        ('  - id: "{item}"\n    cases: cases.jsonl\n    prompt: p\n    chekcs: []\n', 7, "a task has no key `chekcs`"),
        ('  - id: "{item}"\n    cases: cases.jsonl\n    prompt: "{price}"\n    turns: [a]\n    user: {goal: g, model: "{tools}:nothing"}\n',
         8, "is neither a model nor a function"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_task_with_cases_is_told_with_the_line_of_the_suite(
    tmp_path: Path, text: str, line: int, told: str
) -> None:
    with pytest.raises(SuiteFileError) as caught:
        suite_of(tmp_path, text, cases_jsonl=CASES)

    assert told in str(caught.value)
    assert caught.value.line == line


def test_a_file_that_is_missing_or_changes_while_it_is_used_is_told(tmp_path: Path) -> None:
    text = '  - {id: "{item}", cases: cases.jsonl, prompt: "{item}?", script: []}\n'
    with pytest.raises(DataFileError, match=r"the file cannot be read \(No such file"):
        suite_of(tmp_path, text)
    suite = suite_of(tmp_path, text, cases_jsonl=CASES)

    (tmp_path / "cases.jsonl").write_text('{"item": "salt"}\n')

    with pytest.raises(DataFileError, match="the file has changed since it was read; start again"):
        suite.task("milk")
    (result, _) = run(suite).results
    assert "has changed since it was read" in (result.error or "")


def test_an_error_of_the_function_that_makes_a_task_names_the_row(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text(CASES)

    def make(row: dict[str, Any]) -> Task:
        return Task(id=row["item"], prompt=row["more"][0] and "?")

    with pytest.raises(
        DataFileError, match=r"cases.jsonl, line 1: the task of this case cannot be made: KeyError: 'more'"
    ):
        UserSuite("shop", tasks=[Dataset(tmp_path / "cases.jsonl", make)])
    with pytest.raises(HookUsageError, match="takes a function that makes the task"):
        Dataset(tmp_path / "cases.jsonl", None)  # type: ignore[arg-type]
    with pytest.raises(HookUsageError, match="two tasks 'tea'"):
        one = Dataset(tmp_path / "cases.jsonl", lambda row: Task(id=row["item"], prompt="?"))
        UserSuite("shop", tasks=[Task(id="tea", prompt="?"), one])
    with pytest.raises(HookUsageError, match="takes tasks; got 7"):
        UserSuite("shop", tasks=[7])  # type: ignore[list-item]


# Laws and size.

CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=8)
LINES = st.lists(st.tuples(CELL, CELL | st.just('a\nb,"c"')), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.booleans(), st.booleans())
def test_every_row_is_read_again_at_its_place(
    tmp_path: Path, rows: list[tuple[str, str]], as_csv: bool, with_mark: bool
) -> None:
    values = [{"a": one, "b": other} for one, other in rows]
    text = io.StringIO(newline="")
    if as_csv:
        writer = csv.DictWriter(text, ["a", "b"])
        writer.writeheader()
        writer.writerows(values)
    else:
        text.write("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in values))
    path = tmp_path / ("x.csv" if as_csv else "x.jsonl")
    path.write_bytes((b"\xef\xbb\xbf" if with_mark else b"") + text.getvalue().encode())

    file = RowFile(path)
    found = list(file)

    assert [row.values for row in found] == values
    assert [file.read(row.key) for row in reversed(found)] == values[::-1]
    assert [file.line_of(row.key) for row in found] == [row.line for row in found]


def test_a_dataset_is_not_kept_in_memory(tmp_path: Path) -> None:
    count, size = 3_000, 2_000
    (tmp_path / "cases.jsonl").write_text(
        "".join(f'{{"n": {number}, "text": "{"x" * size}"}}\n' for number in range(count))
    )

    def make(row: dict[str, Any]) -> Task:
        return Task(id=f"t{row['n']}", prompt=row["text"])

    tracemalloc.start()
    try:
        suite = UserSuite("many", tasks=[Dataset(tmp_path / "cases.jsonl", make)])
        for name in suite.task_ids:
            suite.task(name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(suite.task_ids) == count
    assert peak < count * size / 5
