"""No flaw of the fact sheet is forgotten."""

from __future__ import annotations

import ast
import pathlib
import re

from . import LISTED

TESTS = [
    (path.name, node)
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py"))
    if path != pathlib.Path(__file__)
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
]


def flaw_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, str]:
    """What the docstring of a test begins with: system and number."""
    said = re.match(r"(\S+) ([^:]+): .+\Z", ast.get_docstring(test) or "")
    assert said is not None, f"{test.name} does not say in one line which flaw it is about"
    return said[1], said[2]


def test_every_flaw_has_a_test_and_every_test_a_flaw() -> None:
    listed = {(system, flaw) for system, flaws in LISTED.items() for flaw in flaws}

    assert {flaw_of(test) for _, test in TESTS} == listed


def test_the_tests_of_a_system_stand_in_its_file_in_the_order_of_its_flaws_one_for_each() -> None:
    order = [
        (f"test_{re.sub('[^a-z0-9]', '', system.lower())}.py", system, flaw)
        for system, flaws in LISTED.items()
        for flaw in flaws
    ]
    found = [(file, *flaw_of(test)) for file, test in TESTS]

    assert sorted(set(found), key=order.index) == order
    assert [each for each in found if found.count(each) > 1 and each[2].strip("F").isdigit()] == []
    assert all(found[n] == found[n - 1] or found.index(each) == n for n, each in enumerate(found))
