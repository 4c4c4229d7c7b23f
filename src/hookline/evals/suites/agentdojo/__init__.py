"""AgentDojo's four suites: real tools over real environments, with their own check of what an agent achieved."""

from hookline.evals.suites.agentdojo._attacks import FREE as FREE
from hookline.evals.suites.agentdojo._attacks import WORDINGS as WORDINGS
from hookline.evals.suites.agentdojo._attacks import AttackPolicy as AttackPolicy
from hookline.evals.suites.agentdojo._attacks import AttackRow as AttackRow
from hookline.evals.suites.agentdojo._attacks import AttackRun as AttackRun
from hookline.evals.suites.agentdojo._attacks import Follows as Follows
from hookline.evals.suites.agentdojo._attacks import UnknownAttackChoiceError as UnknownAttackChoiceError
from hookline.evals.suites.agentdojo._attacks import attack as attack
from hookline.evals.suites.agentdojo._attacks import attack_pairs as attack_pairs
from hookline.evals.suites.agentdojo._suites import SUITES, VERSION, AgentDojoSuite, load_suite
from hookline.evals.suites.agentdojo._suites import Task as Task

__all__ = ["SUITES", "VERSION", "AgentDojoSuite", "load_suite"]
