"""Agreement of judges with each other and with people: figures of the literature, laws, and files of labels."""

from __future__ import annotations

import csv
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.errors import HookUsageError
from hookline.evals import CheckResult, TaskResult
from hookline.evals.errors import DataFileError
from hookline.evals.judges import (
    ConfusionMatrix,
    Label,
    calibrate,
    judge_agreement,
    krippendorff_alpha,
    read_labels,
    write_label_sheet,
)
from hookline.evals.running import ConversationTurn, Judgement, JudgeVerdict
from hookline.evals.trajectories import Trajectory

RATING = st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
UNITS = st.integers(2, 4).flatmap(
    lambda raters: st.lists(st.lists(RATING, min_size=raters, max_size=raters), max_size=20)
)


def test_alpha_is_that_of_krippendorffs_examples() -> None:
    none = None
    four_coders = zip(
        [1, 2, 3, 3, 2, 1, 4, 1, 2, none, none, none],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, none, 3],
        [none, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, none],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, none],
        strict=True,
    )
    binary = zip([0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0], strict=True)

    assert krippendorff_alpha(four_coders) == pytest.approx(0.849, abs=0.0005)
    assert krippendorff_alpha(binary) == pytest.approx(0.095, abs=0.0005)


def alpha_by_pairs(units: list[list[float | None]]) -> float | None:
    """The definition, pair by pair."""
    kept = [[value for value in unit if value is not None] for unit in units]
    kept = [unit for unit in kept if len(unit) > 1]
    values = [value for unit in kept for value in unit]
    if not values or len(set(values)) == 1:
        return None
    within = sum(
        sum((one - other) ** 2 for one, other in permutations(unit, 2)) / (len(unit) - 1) for unit in kept
    ) / len(values)
    among = sum((one - other) ** 2 for one, other in permutations(values, 2)) / (len(values) * (len(values) - 1))
    return 1 - within / among


@given(UNITS)
def test_alpha_in_one_pass_is_that_of_all_pairs(units: list[list[float | None]]) -> None:
    expected = alpha_by_pairs(units)

    found = krippendorff_alpha(units)

    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


@settings(max_examples=40)
@given(UNITS, st.randoms(use_true_random=False))
def test_alpha_does_not_depend_on_the_order_of_raters_and_tasks(units: list[list[float | None]], random: Any) -> None:
    mixed = [random.sample(unit, len(unit)) for unit in units]
    random.shuffle(mixed)

    found, other = krippendorff_alpha(units), krippendorff_alpha(mixed)

    assert found == (None if other is None else pytest.approx(other, abs=1e-9))


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=10))
def test_judges_that_always_agree_have_an_alpha_of_one_unless_they_know_one_score_alone(scores: list[float]) -> None:
    found = krippendorff_alpha([score] * 3 for score in scores)

    assert found == (None if len(set(scores)) == 1 else pytest.approx(1.0))


def test_kappa_and_its_interval_are_those_of_the_literature() -> None:
    # Table 1 of Sim and Wright, "The Kappa Statistic in Reliability Studies", 2005.
    matrix = ConfusionMatrix(both_pass=22, judge_passes=2, person_passes=4, both_fail=11)

    assert matrix.agreement == pytest.approx(0.846, abs=0.001)
    assert matrix.kappa == pytest.approx(0.67, abs=0.005)
    low, high = matrix.kappa_interval or (0, 0)
    assert (low, high) == (pytest.approx(0.43, abs=0.02), pytest.approx(0.90, abs=0.02))


@given(*[st.integers(0, 30)] * 4)
def test_kappa_lies_within_its_interval_and_is_symmetric(a: int, b: int, c: int, d: int) -> None:
    matrix = ConfusionMatrix(both_pass=a, judge_passes=b, person_passes=c, both_fail=d)
    other = ConfusionMatrix(both_pass=a, judge_passes=c, person_passes=b, both_fail=d)

    assert matrix.kappa == (None if other.kappa is None else pytest.approx(other.kappa))
    if matrix.kappa is None:
        assert matrix.kappa_interval is None
    else:
        low, high = matrix.kappa_interval or (0, 0)
        assert -1 <= low <= matrix.kappa + 1e-9
        assert matrix.kappa - 1e-9 <= high <= 1
    if matrix.kappa is not None and b == c == 0:
        assert matrix.kappa == pytest.approx(1.0)


def result(
    task: str, *scores: float | None, check: str = "polite", threshold: float = 0.75, **further: Any
) -> TaskResult:
    """The result of a task that models gave these scores."""
    known = [score for score in scores if score is not None]
    mean = sum(known) / len(known) if known else 0.0
    verdicts = [JudgeVerdict(model=f"m{number}", score=score, reason="") for number, score in enumerate(scores)]
    checked = CheckResult(
        name=check,
        passed=bool(known) and mean >= threshold,
        score=mean,
        judged=bool(known),
        judgement=Judgement(threshold=threshold, reason="", verdicts=verdicts),
    )
    fields: dict[str, Any] = {
        "suite": "shop",
        "task_id": task,
        "prompt": f"prompt of {task}",
        "operation_id": "op",
        "utility": True,
        "reason": "done",
        "error": None,
        **dict.fromkeys(("steps", "tool_calls", "mocked", "failed", "tools_run", "forbidden", "hook_executions"), 0),
        "hook_time_ms": 0.0,
        "duration_ms": 0.0,
        "tool_results": [],
        "output": f"answer to {task}",
        "trajectory": Trajectory(steps=[], output="", reason="done"),
        "checks": [checked],
    }
    return TaskResult(**{**fields, **further})


def test_the_agreement_of_a_panel_counts_what_each_model_gave() -> None:
    (found,) = judge_agreement([result("a", 1.0, 1.0), result("b", 0.0, 0.5), result("c", 1.0, None), result("d", 0.5)])

    assert (found.check, found.models, found.tasks, found.missing) == ("polite", ["m0", "m1"], 2, 1)
    assert found.means == [pytest.approx(2 / 3), 0.75]
    assert found.alpha == krippendorff_alpha([[1.0, 1.0], [0.0, 0.5]])


def test_a_judge_with_one_model_has_no_agreement() -> None:
    assert judge_agreement([result("a", 1.0)]) == []


# Calibration.


def labels(**passed: bool) -> list[Label]:
    return [Label(task=f"shop/{task}", passed=each) for task, each in passed.items()]


def test_a_calibration_compares_and_finds_the_threshold_that_fits_best() -> None:
    results = [result(task, score) for task, score in (("a", 1.0), ("b", 0.5), ("c", 0.5), ("d", 0.25), ("e", 0.0))]

    (found,) = calibrate(results, labels(a=True, b=True, c=True, d=False, e=False))

    assert found.now.confusion == ConfusionMatrix(both_pass=1, judge_passes=0, person_passes=2, both_fail=2)
    assert found.best is not None
    assert (found.best.threshold, found.best.confusion.kappa) == (0.5, 1.0)
    assert [fit.threshold for fit in found.fits] == [0.0, 0.25, 0.5, 1.0]
    assert (found.labels, found.few) == (5, True)


def test_a_threshold_that_fits_by_chance_does_worse_on_tasks_that_it_was_not_chosen_for() -> None:
    results = [result(task, score) for task, score in (("a", 1.0), ("b", 0.5), ("c", 0.25), ("d", 0.0))]

    (found,) = calibrate(results, labels(a=True, b=True, c=False, d=False))

    assert found.best is not None
    assert (found.best.threshold, found.best.confusion.kappa) == (0.5, 1.0)
    assert found.held_out_kappa == 0.5


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans()), min_size=1, max_size=30))
def test_no_threshold_has_a_higher_kappa_than_the_best_one(pairs: list[tuple[float, bool]]) -> None:
    results = [result(str(number), score) for number, (score, _) in enumerate(pairs)]
    given_labels = [Label(task=f"shop/{number}", passed=passed) for number, (_, passed) in enumerate(pairs)]

    (found,) = calibrate(results, given_labels)

    kappas = []
    for threshold in {score for score, _ in pairs}:
        cells = [(score >= threshold, passed) for score, passed in pairs]
        matrix = ConfusionMatrix(
            both_pass=cells.count((True, True)),
            judge_passes=cells.count((True, False)),
            person_passes=cells.count((False, True)),
            both_fail=cells.count((False, False)),
        )
        kappas += [] if matrix.kappa is None else [matrix.kappa]
    best = None if found.best is None else found.best.confusion.kappa
    assert best == (pytest.approx(max(kappas)) if kappas else None)
    assert found.labels == len(pairs)


def test_what_cannot_be_compared_is_counted() -> None:
    results = [result("a", 1.0), result("b", None), result("c", 0.0), result("d", 1.0)]
    given_labels = [
        *labels(a=True, b=True, gone=False),
        *(Label(task="shop/c", passed=passed, by=who) for passed, who in ((True, "ann"), (False, "bob"))),
    ]

    (found,) = calibrate(results, given_labels)

    assert (found.labels, found.not_judged, found.ties, found.unlabelled) == (1, 1, 1, 1)
    assert found.unknown == ["shop/gone"]
    assert found.people == 2
    assert found.people_alpha is not None


def test_the_majority_of_several_people_counts() -> None:
    votes = [
        Label(task="shop/a", passed=passed, by=who) for passed, who in ((True, "ann"), (True, "bob"), (False, "eve"))
    ]

    (found,) = calibrate([result("a", 1.0)], votes)

    assert found.now.confusion == ConfusionMatrix(both_pass=1)


def test_labels_are_of_attempts_models_and_judges() -> None:
    results = [result("a", 1.0, attempt=1), result("a", 0.0, attempt=2), result("b", 1.0, check="short")]

    polite, short = calibrate(
        results,
        [
            Label(task="shop/a", passed=True),
            Label(task="shop/a", passed=False, attempt=2, check="polite"),
            Label(task="shop/b", passed=False),
        ],
    )

    assert polite.now.confusion == ConfusionMatrix(both_pass=1, both_fail=1)
    assert short.now.confusion == ConfusionMatrix(judge_passes=1)
    assert [each.check for each in calibrate(results, [], check="short")] == ["short"]


@pytest.mark.parametrize(
    ("given_labels", "check", "told"),
    [
        ([Label(task="shop/a", passed=True)] * 2, None, "two labels without `by` for 'shop/a'; keep one"),
        ([Label(task="shop/a", passed=True, by="ann")] * 2, None, "'ann' labels 'shop/a' twice"),
        ([Label(task="shop/c", passed=True)], None, "does not say which model it is about: x, y. Add `model`"),
        ([Label(task="shop/a", passed=True, check="kind")], None, "about the judge 'kind'; the run has polite"),
        ([], "kind", "has no judge 'kind'"),
    ],
)
def test_ambiguous_labels_are_refused(given_labels: list[Label], check: str | None, told: str) -> None:
    results = [result("a", 1.0), result("c", 1.0, model="x"), result("c", 0.0, model="y")]

    with pytest.raises(HookUsageError, match=told):
        calibrate(results, given_labels, check=check)


def test_a_run_without_judges_cannot_be_calibrated() -> None:
    with pytest.raises(HookUsageError, match="The run has no judge"):
        calibrate([result("a", checks=[])], [])


# Files.


def test_labels_are_read_from_csv_and_json_lines(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("task,label,attempt,by,remark\nshop/a,pass,2,ann,x\nshop/b,NO,,,\nshop/c,,,,\n")
    (tmp_path / "l.jsonl").write_text(
        '{"task": "shop/a", "label": true, "attempt": 2, "by": "ann"}\n\n{"task": "shop/b", "label": 0}\n'
    )

    for name in ("l.csv", "l.jsonl"):
        assert list(read_labels(tmp_path / name)) == [
            Label(task="shop/a", passed=True, attempt=2, by="ann"),
            Label(task="shop/b", passed=False),
        ]


@pytest.mark.parametrize(
    ("name", "text", "line", "told"),
    [
        ("l.csv", "task,verdict\na,pass\n", 2, "a label has a 'label'; this row has task, verdict"),
        ("l.csv", "task,label\na,pass\nb,maybe\n", 3, "`label` is pass or fail; got 'maybe'"),
        ("l.csv", "task,label,attempt\na,pass,0\n", 2, "`attempt` is a whole number from 1; got '0'"),
        ("l.csv", "task,label\n,pass\n", 2, "`task` is a text"),
        ("l.jsonl", '{"task": 7, "label": "pass"}\n', 1, "`task` is a text; got 7"),
        ("l.jsonl", '{"task": "a", "label": [1]}\n', 1, "`label` is pass or fail"),
    ],
)
def test_what_is_no_label_is_told_with_its_line(tmp_path: Path, name: str, text: str, line: int, told: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(DataFileError, match=told) as caught:
        list(read_labels(tmp_path / name))
    assert caught.value.line == line


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sheet_has_the_judged_tasks_without_their_scores_and_can_be_read_again(tmp_path: Path) -> None:
    talk = [
        ConversationTurn(user="Hi", output="Hello", operation_id="x"),
        ConversationTurn(user="Tea?", operation_id="y"),
    ]
    results = [result("a", 1.0), result("b", None), result("c", 0.0, turns=talk), result("d", 1.0, output="=cmd|x")]

    count = write_label_sheet(tmp_path / "sheet.csv", results)

    rows = read_csv(tmp_path / "sheet.csv")
    assert count == len(rows) == 3
    assert [row["task"] for row in rows] == ["shop/a", "shop/c", "shop/d"]
    assert rows[1]["prompt"] == "user: Hi\n\nagent: Hello\n\nuser: Tea?"
    assert rows[2]["output"] == "'=cmd|x"
    assert set(rows[0]) == {"task", "attempt", "model", "prompt", "output", "by", "label"}
    assert list(read_labels(tmp_path / "sheet.csv")) == []
    with pytest.raises(DataFileError, match="somebody may have filled it in"):
        write_label_sheet(tmp_path / "sheet.csv", results)


def test_a_sample_is_drawn_by_its_seed(tmp_path: Path) -> None:
    def draw(name: str, seed: int) -> list[str]:
        write_label_sheet(tmp_path / name, (result(str(number), 1.0) for number in range(50)), sample=10, seed=seed)
        return [row["task"] for row in read_csv(tmp_path / name)]

    first, same, other = draw("a", 1), draw("b", 1), draw("c", 2)

    assert len(set(first)) == 10
    assert first == same
    assert len({tuple(first), tuple(other)}) == 2
    assert all(int(one[5:]) < int(two[5:]) for one, two in combinations(first, 2))
