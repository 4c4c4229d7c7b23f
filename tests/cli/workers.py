"""What worker processes of `hookline eval` import before they work."""

from __future__ import annotations

from importlib import import_module

__all__ = ["load_models_and_suites"]


def load_models_and_suites() -> None:
    """Import the models of OpenAI's protocols, and load a suite of AgentDojo."""
    for module in ("anyio.to_process", "hookline.adapters.models", "hookline.cli.eval", "pydantic_ai.models.openai"):
        import_module(module)
    from hookline.evals.suites.agentdojo import load_suite

    load_suite("banking")
