"""Equal verdicts: one policy, run through every way to run an agent, must lead to the same verdict."""

from hookline.evals.verdicts._decisions import DECISIONS, Decision
from hookline.evals.verdicts._judging import VerdictError, check_verdict, observe_verdict
from hookline.evals.verdicts._paths import ForcedDifference, Form, Path, policy_hooks
from hookline.evals.verdicts._policies import Policy
from hookline.evals.verdicts._verdict import Record, Verdict

__all__ = [
    "DECISIONS",
    "Decision",
    "ForcedDifference",
    "Form",
    "Path",
    "Policy",
    "Record",
    "Verdict",
    "VerdictError",
    "check_verdict",
    "observe_verdict",
    "policy_hooks",
]
