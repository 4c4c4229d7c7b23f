"""Matchers: which tools, agents or sources a hook of a host is for."""

from __future__ import annotations

import math
import re
import warnings
from functools import lru_cache

from hookline.dialects._table import Dialect

__all__ = ["matcher_problem", "matches"]

LIST = re.compile(r"[A-Za-z0-9_\- ,|]*", re.ASCII)
"""A matcher of these characters only is a list of exact names in Claude Code, any other is a regular expression."""
SEPARATOR = re.compile(r"[|,]")
ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""An escaped character or a class of characters, of which the content does not repeat anything."""
REPEATED_GROUP = re.compile(r"\)[*+{]")
REPEAT = re.compile(r"[*+]|\{\d*,|(?<![*+?}(])\?")
"""What repeats a character, or leaves it out: each multiplies the ways in which a name can be tried."""
MOST_REPEATS, MOST_ALTERNATIVES = 3, 30
LONGEST_SUBJECT = 128


def matches(dialect: Dialect, matcher: str, subject: str) -> bool:
    """Return whether a hook with a matcher is for a subject, as the host decides it.

    Args:
        dialect: The dialect of the host. In Gemini's, every matcher of a tool is a regular expression.
        matcher: The matcher; `""` and `"*"` mean everything.
        subject: The name to compare: the host's name of a tool, or the type of an agent.
    """
    if matcher in ("", "*"):
        return True
    if dialect.name != "gemini" and LIST.fullmatch(matcher):
        return subject in {name.strip() for name in SEPARATOR.split(matcher)}
    if len(subject) > LONGEST_SUBJECT:
        return True  # a hook that runs too often denies more, not less, and a search of it could take too long
    return _search(matcher, subject)


def matcher_problem(dialect: Dialect, matcher: str) -> str:
    """Return why a matcher cannot be used; `""` if it can.

    The definition may be a stranger's, and a search blocks the event loop: expressions that can take exponential or
    high polynomial time are refused.
    """
    if matcher in ("", "*") or (dialect.name != "gemini" and LIST.fullmatch(matcher)):
        return ""
    try:
        _compile(matcher)
    except (re.error, RecursionError, OverflowError) as error:
        return f"it is not a valid regular expression ({error}), with which the host never runs the hook"
    plain = ATOM.sub("x", matcher)
    if REPEATED_GROUP.search(plain):
        return "a group in it is repeated, which can take too long; list the names instead"
    parts = plain.split("|") if "(" not in plain else [plain]
    if max(len(REPEAT.findall(part)) for part in parts) > MOST_REPEATS:
        return f"it has more than {MOST_REPEATS} repetitions, which can take too long; list the names instead"
    if "(" in plain and math.prod(part.count("|") + 1 for part in re.split(r"[()]", plain)) > MOST_ALTERNATIVES:
        return f"its groups have more than {MOST_ALTERNATIVES} combinations; list the names instead"
    return ""


def _compile(matcher: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of "[[", which a later Python may read otherwise
        return re.compile(matcher)


@lru_cache(10_000)
def _search(matcher: str, subject: str) -> bool:
    """Return whether an expression is found in a name; a broken one never is."""
    try:
        return _compile(matcher).search(subject) is not None
    except (re.error, RecursionError, OverflowError):
        return False
