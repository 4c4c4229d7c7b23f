"""Runs in the forms of other evaluation tools, so that what one has there goes on working."""

from hookline.evals._agentevals import agentevals_messages
from hookline.evals._inspect_log import HasResults, inspect_log, write_inspect_log

__all__ = ["HasResults", "agentevals_messages", "inspect_log", "write_inspect_log"]
