"""A matcher fires for the tools for which its host would fire it."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from hookline.dialects import DIALECTS, matcher_problem, matches
from tests.tables import for_each

FIRES = ["Bash", "*", "", ".*", "B.*", "^Bash$", "Edit|Bash", "Edit, Bash", "Edit|Write|Bash", "(Edit|Bash)", "as.$"]
DOES_NOT = ["Bas", "bash", "Bash(echo *)", "Edit|Write", "^ash", "BashOutput", "mcp__.*", "Edit,Write"]


@for_each("matcher", FIRES)
def test_claude_fires_for_bash(matcher: str) -> None:
    assert matcher_problem(DIALECTS["claude"], matcher) == ""
    assert matches(DIALECTS["claude"], matcher, "Bash")


@for_each("matcher", DOES_NOT)
def test_claude_does_not_fire_for_bash(matcher: str) -> None:
    assert not matches(DIALECTS["claude"], matcher, "Bash")


def test_in_gemini_every_matcher_is_an_unanchored_expression() -> None:
    assert matches(DIALECTS["gemini"], "shell", "run_shell_command")
    assert not matches(DIALECTS["claude"], "shell", "run_shell_command")
    assert matches(DIALECTS["gemini"], "write_file|replace", "replace")


@for_each(
    "matcher",
    ["mcp__memory__.*", "mcp__.*__write.*", "mcp__(memory|files)__.*", "^(?!Bash$).*", "Notebook\\w+", "[A-Z]+"],
)
def test_expressions_of_settings_can_be_used(matcher: str) -> None:
    assert matcher_problem(DIALECTS["claude"], matcher) == ""


@for_each(
    ("matcher", "words"),
    [
        ("[", "valid regular expression"),
        ("(", "valid regular expression"),
        ("(a+)+$", "a group in it is repeated"),
        ("(a|a)*$", "a group in it is repeated"),
        ("(a{1,})*", "a group in it is repeated"),
        ("(a*){30}", "a group in it is repeated"),
        (".*.*.*.*x", "more than 3 repetitions"),
        ("(a*|b)(a*|b)(a*|b)(a*|b)(a*|b)", "more than 3 repetitions"),
        ("[*]+.*a+b{2,}c*d*", "more than 3 repetitions"),
        ("a?" * 30 + "a" * 30 + "$", "more than 3 repetitions"),
        ("(a|aa)" * 30 + "$", "more than 30 combinations"),
    ],
    ids=range(11),
)
def test_expressions_that_are_broken_or_slow_cannot_be_used(matcher: str, words: str) -> None:
    assert words in matcher_problem(DIALECTS["claude"], matcher)


def test_a_broken_expression_never_fires() -> None:
    assert not matches(DIALECTS["claude"], "[", "Bash")


def test_a_name_that_is_too_long_to_search_is_one_that_the_hook_is_for() -> None:
    assert matches(DIALECTS["claude"], "^Bash$", "x" * 300)


@for_each("matcher", ["a*a*a*$b", "a+a+a{1,}c", "(a|a)(a|a)(a|a)(a|a)a*a*a*c", "a?a?a*c", "[[b]", "[a||b]"])
def test_the_slowest_matchers_that_can_be_used_end_soon(matcher: str) -> None:
    assert matcher_problem(DIALECTS["claude"], matcher) == ""
    began = time.process_time()
    assert not matches(DIALECTS["claude"], matcher, "a" * 128) or matcher == "[a||b]"
    assert time.process_time() - began < 60  # what is refused takes years


@given(st.text(alphabet="ab.*+|^$[]()?\\{}1,x", max_size=30), st.text(alphabet="ab", min_size=100, max_size=128))
def test_no_matcher_that_can_be_used_takes_long(matcher: str, subject: str) -> None:
    if matcher_problem(DIALECTS["claude"], matcher):
        return
    began = time.process_time()
    matches(DIALECTS["claude"], matcher, subject)
    # A search that blows up takes hours; this bound only tells it from one that does not.
    assert time.process_time() - began < 10
