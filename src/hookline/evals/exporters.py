"""Runs in the forms of other evaluation tools, so that what one has there goes on working."""

from hookline.evals.reports import HasResults, agentevals_messages, inspect_log, write_inspect_log

__all__ = ["HasResults", "agentevals_messages", "inspect_log", "write_inspect_log"]
