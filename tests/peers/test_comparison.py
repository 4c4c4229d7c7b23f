"""What `make peers` says of two runs of a framework's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .frame import MODES, Difference, Outcomes, compare, differences

BARE = {f"t{number}": "passed" for number in range(200)} | {"broken": "failed", "left": "skipped"}


def ended(outcomes: dict[str, str], *, alone: set[str] | None = None) -> Outcomes:
    """How an attached run ended; every test ran something with hooks unless `alone` names those that did."""
    return Outcomes(ended=dict(outcomes), attached=set(outcomes) if alone is None else alone)


def by_nature(test: str, mode: str = "observers") -> Difference:
    return Difference(test=test, mode=mode, rule="The framework copies what it is given.")


def test_it_holds_where_every_test_ends_as_it_does_bare() -> None:
    found = compare(BARE, ended(BARE), "observers", [])

    assert (found.passed, found.same, found.holds) == (200, 200, True)


def test_tests_that_fail_bare_are_not_compared() -> None:
    found = compare(BARE, ended(BARE | {"broken": "passed", "left": "failed"}), "observers", [])

    assert found.holds


@pytest.mark.parametrize("outcome", ["failed", "skipped", None])
def test_a_test_that_does_not_pass_attached_differs(outcome: str | None) -> None:
    attached = BARE | {"t1": outcome} if outcome else {test: end for test, end in BARE.items() if test != "t1"}

    found = compare(BARE, ended(attached), "observers", [])  # type: ignore[arg-type]

    assert (found.unlisted, found.holds) == (["t1"], False)


def test_a_listed_difference_holds_in_its_mode_alone() -> None:
    attached = BARE | {"t1": "failed"}

    found = [compare(BARE, ended(attached), mode, [by_nature("t1")]) for mode in MODES[1:]]

    assert [each.unlisted for each in found] == [[], ["t1"]]
    assert [each.holds for each in found] == [True, False]


def test_a_listed_difference_that_is_none_any_more_fails() -> None:
    found = compare(BARE, ended(BARE), "observers", [by_nature("t1"), by_nature("t2", "interceptors")])

    assert (found.settled, found.holds) == (["t1"], False)


@pytest.mark.parametrize(("many", "holds"), [(2, True), (3, False)])
def test_at_most_one_test_in_a_hundred_may_differ(many: int, *, holds: bool) -> None:
    tests = [f"t{number}" for number in range(many)]

    found = compare(
        BARE, ended(BARE | dict.fromkeys(tests, "failed")), "observers", [by_nature(test) for test in tests]
    )

    assert found.holds is holds


def test_nothing_holds_where_no_test_passes_bare() -> None:
    assert not compare({"t1": "failed"}, ended({"t1": "failed"}), "observers", []).holds


def test_tests_that_run_nothing_with_hooks_do_not_count() -> None:
    some = {f"t{number}" for number in range(99)}
    differs = ended(BARE | {"t150": "failed"}, alone=some)

    assert not compare(BARE, ended(BARE, alone=set()), "observers", []).holds
    assert compare(BARE, ended(BARE, alone=some), "observers", []).passed == 99
    assert compare(BARE, differs, "observers", [by_nature("t150")]).holds
    assert compare(BARE, differs, "observers", [by_nature("t150")]).passed == 100


def test_a_list_names_tests_modes_and_the_rule(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text(
        '[[difference]]\ntests = ["a", "b"]\nrule = "It copies."\n'
        '[[difference]]\ntests = ["c"]\nmodes = ["interceptors"]\nrule = "It waits."\n'
    )

    found = differences("some", tmp_path)

    assert [(each.test, each.mode) for each in found] == [
        ("a", "observers"), ("a", "interceptors"), ("b", "observers"), ("b", "interceptors"), ("c", "interceptors"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "entry",
    ['tests = ["a"]', 'tests = []\nrule = "x"', 'tests = ["a"]\nrule = " "', 'tests=["a"]\nrule="x"\nmodes=["bare"]'],
)
def test_a_difference_without_a_rule_or_a_test_is_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / "some.toml").write_text(f"[[difference]]\n{entry}\n")

    with pytest.raises(ValueError, match="rule"):
        differences("some", tmp_path)


def test_a_test_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text('[[difference]]\ntests = ["a"]\nrule = "x"\n' * 2)

    with pytest.raises(ValueError, match="twice"):
        differences("some", tmp_path)


def test_a_framework_without_a_list_has_no_differences(tmp_path: Path) -> None:
    assert differences("none", tmp_path) == []


def test_the_lists_of_all_frameworks_can_be_read() -> None:
    for path in sorted((Path(__file__).parent / "differences").glob("*.toml")):
        differences(path.stem)
