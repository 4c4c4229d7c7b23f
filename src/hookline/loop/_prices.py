"""The cost of a model call, from the price table of `genai_prices` where that is installed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

__all__ = ["cost_of", "highest_cost_of"]

MOST_RATES = 256
PROVIDERS = {"azure.ai.openai": "azure", "aws.bedrock": "aws", "gcp.vertex_ai": "google", "gcp.gemini": "google"}
"""The names of providers in `genai_prices`, where OpenTelemetry's are others."""

FLAT = frozenset({"input_tokens", "output_tokens"})
"""The tokens whose price is known without the table."""

_rates: dict[tuple[str, str, int], tuple[float, float] | None] = {}
"""US dollars per input and output token, where they are flat; a look-up in the table takes a hundred times as long."""


def cost_of(usage: Mapping[str, int], model: str, provider: str) -> float | None:
    """Return the cost of an answer in US dollars; `None` if it is not known.

    Args:
        usage: The tokens of the answer, by the names that `genai_prices` uses.
        model: The name of the model.
        provider: The provider of the model.
    """
    key = model, provider, int(time.time()) // 3600
    flat = _rates.get(key)
    if flat is not None and FLAT.issuperset(usage):
        return usage.get("input_tokens", 0) * flat[0] + usage.get("output_tokens", 0) * flat[1]
    if not usage or (flat is None and key in _rates):
        return None
    calculated = _look_up(usage, model, provider)
    if len(_rates) >= MOST_RATES:
        _rates.clear()
    if calculated is None:
        _rates[key] = None
        return None
    prices = calculated.model_price
    read, written = getattr(prices, "input_mtok", None), getattr(prices, "output_mtok", None)
    if isinstance(read, Decimal) and isinstance(written, Decimal):
        _rates[key] = float(read) / 1e6, float(written) / 1e6
    return float(calculated.total_price)


def highest_cost_of(model: str, input_tokens: int, output_tokens: int) -> float | None:
    """Return what a model call with at most that many tokens costs at most, in US dollars.

    Args:
        model: The name of the model, of any provider.
        input_tokens: The most tokens that it reads.
        output_tokens: The most tokens that it writes.

    Returns:
        The cost; `None` if the model has no known price.
    """
    calculated = _look_up({"input_tokens": input_tokens, "output_tokens": output_tokens}, model, None)
    return None if calculated is None else float(calculated.total_price)


def _look_up(usage: Mapping[str, int], model: str, provider: str | None) -> Any:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    provider = PROVIDERS.get(provider or "", provider)
    try:
        return calc_price(Usage(**usage), model, provider_id=provider)
    except Exception:  # the table lacks the model or this kind of usage, which must not fail the run
        return None
