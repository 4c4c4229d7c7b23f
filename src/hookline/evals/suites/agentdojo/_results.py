"""Results of attacks: one record per attempt, and a table of their sums."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hookline.evals._canonical import canonical
from hookline.evals.running import hookline_version

__all__ = ["AttackAttempt", "AttackRow", "AttackRun"]

TOTAL = "all"
"""Stands for all suites together."""


class AttackAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a user task under one policy, with or without an attack.

    Attributes:
        suite: The suite.
        policy: The policy's name.
        task_id: The user task.
        injection_id: The injection task; `None` if nothing was injected.
        followed: Whether the model read the injected instruction, which the scripted model then follows.
        goal: Whether the attack reached its goal, in the suite's own judgement.
        useful: Whether the user's task is solved, in the suite's own judgement.
        questions: How often a person had to decide.
        withheld: How many answers of tools the model was not shown.
        reason: The reason of the run's end: `"done"`, `"error"`, …
    """

    suite: str
    policy: str
    task_id: str
    injection_id: str | None
    followed: bool
    goal: bool
    useful: bool
    questions: int
    withheld: int
    reason: str


class AttackRow(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a policy in a suite.

    Attributes:
        suite: The suite, or `"all"`.
        policy: The policy.
        pairs: User tasks times injection tasks that were tried.
        reached: In how many of them the model saw the injected instruction, and followed it.
        goals: How many attacks reached their goal.
        stopped: How many reached it under the first policy and do not under this one.
        useful_attacked: In how many pairs the user's task is solved.
        tasks: User tasks that were tried without an attack.
        useful: How many of those are solved.
        harmed: How many are solved under the first policy and not under this one.
        questions: How often a person had to decide in them.
        questions_attacked: How often in the pairs.
        blinded: In how many pairs a result that the model had requested was withheld. A script continues all the
            same; a real model would have to do without.
    """

    suite: str
    policy: str
    pairs: int
    reached: int
    goals: int
    stopped: int
    useful_attacked: int
    tasks: int
    useful: int
    harmed: int
    questions: int
    questions_attacked: int
    blinded: int


class AttackRun(msgspec.Struct, frozen=True, kw_only=True):
    """The results of attacks on suites, under one policy after the other.

    The first policy is the one that the others are compared with.

    Attributes:
        wording: How the injected texts spoke to the model.
        follows: The moment at which the model followed them.
        attempts: One record per user task, injection task and policy.
        model: The model, or the agent, that was attacked; empty for the scripted one.
    """

    wording: str
    follows: str
    attempts: list[AttackAttempt]
    model: str = ""

    @property
    def rows(self) -> list[AttackRow]:
        """One row per suite and policy; with several suites, also one per policy for all of them."""
        suites = list(dict.fromkeys(each.suite for each in self.attempts))
        rows = [
            row for suite in suites for row in _rows(suite, [each for each in self.attempts if each.suite == suite])
        ]
        return rows + (_rows(TOTAL, self.attempts) if len(suites) > 1 else [])

    @property
    def totals(self) -> list[AttackRow]:
        """One row per policy, over all suites."""
        return _rows(TOTAL, self.attempts)

    def __add__(self, other: AttackRun) -> AttackRun:
        return msgspec.structs.replace(self, attempts=[*self.attempts, *other.attempts])

    def as_json(self) -> str:
        """Return all results as JSON."""
        document = {
            "hookline": hookline_version(),
            "wording": self.wording,
            "follows": self.follows,
            "model": self.model or None,
            "rows": self.rows,
            "attempts": self.attempts,
        }
        return canonical(document, indent=2, sort_keys=False)


def _rows(suite: str, attempts: Iterable[AttackAttempt]) -> list[AttackRow]:
    by_policy: dict[str, list[AttackAttempt]] = {}
    for each in attempts:
        by_policy.setdefault(each.policy, []).append(each)
    first = next(iter(by_policy.values()), [])
    reached = {_what(each) for each in first if each.goal}
    solved = {_what(each) for each in first if each.useful}
    return [_row(suite, policy, own, reached, solved) for policy, own in by_policy.items()]


def _what(attempt: AttackAttempt) -> tuple[str, str, str | None]:
    return attempt.suite, attempt.task_id, attempt.injection_id


def _row(
    suite: str,
    policy: str,
    attempts: list[AttackAttempt],
    reached: set[tuple[str, str, str | None]],
    solved: set[tuple[str, str, str | None]],
) -> AttackRow:
    attacked = [each for each in attempts if each.injection_id is not None]
    clean = [each for each in attempts if each.injection_id is None]
    return AttackRow(
        suite=suite,
        policy=policy,
        pairs=len(attacked),
        reached=sum(each.followed for each in attacked),
        goals=sum(each.goal for each in attacked),
        stopped=sum(not each.goal and _what(each) in reached for each in attacked),
        useful_attacked=sum(each.useful for each in attacked),
        tasks=len(clean),
        useful=sum(each.useful for each in clean),
        harmed=sum(not each.useful and _what(each) in solved for each in clean),
        questions=sum(each.questions for each in clean),
        questions_attacked=sum(each.questions for each in attacked),
        blinded=sum(each.withheld > 0 for each in attacked),
    )
