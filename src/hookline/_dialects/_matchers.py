"""Matchers: which tools, agents or sources a hook of a host is for."""

from __future__ import annotations

import re
from functools import lru_cache

from hookline._dialects._table import Dialect

__all__ = ["matcher_problem", "matches"]

LIST = re.compile(r"[A-Za-z0-9_\- ,|]*", re.ASCII)
"""A matcher of these characters only is a list of exact names in Claude Code, any other is a regular expression."""
SEPARATOR = re.compile(r"[|,]")
ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""An escaped character or a class of characters, of which the content does not repeat anything."""
REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d*,)")
UNBOUNDED = re.compile(r"[*+]|\{\d*,")
MOST_REPEATS = 4
LONGEST_SUBJECT = 256


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
    compiled = _compile(matcher)
    return compiled is not None and compiled.search(subject) is not None


def matcher_problem(dialect: Dialect, matcher: str) -> str:
    """Return why a matcher cannot be used; `""` if it can.

    The definition may be a stranger's, and a search blocks the event loop: expressions that can take exponential or
    high polynomial time are refused.
    """
    if matcher in ("", "*") or (dialect.name != "gemini" and LIST.fullmatch(matcher)):
        return ""
    try:
        re.compile(matcher)
    except (re.error, RecursionError, OverflowError) as error:
        return f"it is not a valid regular expression ({error}), with which the host never runs the hook"
    plain = ATOM.sub("x", matcher)
    if REPEATED_GROUP.search(plain):
        return "a group in it is repeated, which can take too long; list the names instead"
    parts = plain.split("|") if "(" not in plain else [plain]
    if max(len(UNBOUNDED.findall(part)) for part in parts) > MOST_REPEATS:
        return f"it has more than {MOST_REPEATS} repetitions, which can take too long; list the names instead"
    return ""


@lru_cache(1000)
def _compile(matcher: str) -> re.Pattern[str] | None:
    try:
        return re.compile(matcher)
    except (re.error, RecursionError, OverflowError):
        return None
