"""Conversations of several turns with an agent, scripted or with a simulated user."""

from hookline.evals.conversations._conversation import Conversation as Conversation
from hookline.evals.conversations._conversation import StopConditions
from hookline.evals.conversations._conversation import run_conversation as run_conversation
from hookline.evals.conversations._user import SimulatedUser

__all__ = ["SimulatedUser", "StopConditions"]
