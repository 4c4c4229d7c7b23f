"""No flaw of the fact sheet is forgotten."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from . import LISTED, NOT_HERE_YET

TESTS = [
    (path.name, node)
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py"))
    if path != pathlib.Path(__file__)
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
]
LATER = {(system, flaw) for system, flaw, _ in NOT_HERE_YET}


def flaw_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, str]:
    """What the docstring of a test begins with: system and number."""
    said = re.match(r"(\S+) ([^:]+): .+\Z", ast.get_docstring(test) or "")
    assert said is not None, f"{test.name} does not say in one line which flaw it is about"
    return said[1], said[2]


@pytest.mark.parametrize("system", LISTED)
def test_every_flaw_has_a_test_or_a_reason_why_not(system: str) -> None:
    tested = {flaw_of(test) for _, test in TESTS}
    listed = {(system, flaw) for flaw in LISTED[system]}

    assert listed <= tested | LATER
    assert not listed & tested & LATER


def test_no_test_and_no_reason_is_about_a_flaw_that_does_not_exist() -> None:
    listed = {(system, flaw) for system, flaws in LISTED.items() for flaw in flaws}

    assert {flaw_of(test) for _, test in TESTS} | LATER <= listed
    assert all(len(reason) > 20 for _, _, reason in NOT_HERE_YET)


def test_the_tests_of_a_system_stand_in_its_file_in_the_order_of_its_flaws_one_for_each() -> None:
    order = [
        (f"test_{re.sub('[^a-z0-9]', '', system.lower())}.py", system, flaw)
        for system, flaws in LISTED.items()
        for flaw in flaws
    ]
    found = [(file, *flaw_of(test)) for file, test in TESTS]

    assert sorted(set(found), key=order.index) == [each for each in order if each[1:] not in LATER]
    assert [each for each in found if found.count(each) > 1 and each[2].strip("F").isdigit()] == []
    assert all(found[n] == found[n - 1] or found.index(each) == n for n, each in enumerate(found))
