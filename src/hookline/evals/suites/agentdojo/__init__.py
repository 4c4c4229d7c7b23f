"""AgentDojo's four suites, with their own checks, and its injection tasks as attacks on a policy."""

from hookline.evals.suites.agentdojo._attacks import (
    FREE,
    SIDE_EFFECTS,
    WORDINGS,
    AttackAttempt,
    AttackPolicy,
    AttackRow,
    AttackRun,
    Follows,
    UnknownAttackChoiceError,
    attack,
    attack_pairs,
)
from hookline.evals.suites.agentdojo._suites import SUITES, VERSION, AgentDojoSuite, load_suite
from hookline.evals.suites.agentdojo._suites import AgentDojoTask as AgentDojoTask

__all__ = [
    "FREE",
    "SIDE_EFFECTS",
    "SUITES",
    "VERSION",
    "WORDINGS",
    "AgentDojoSuite",
    "AttackAttempt",
    "AttackPolicy",
    "AttackRow",
    "AttackRun",
    "Follows",
    "UnknownAttackChoiceError",
    "attack",
    "attack_pairs",
    "load_suite",
]
