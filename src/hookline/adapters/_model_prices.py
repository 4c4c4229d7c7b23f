"""What a call cost, by the price table that Pydantic AI carries; nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from decimal import Decimal

from genai_prices.types import ModelPrice
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

__all__ = ["Price", "cost_of"]

Price = Callable[[RequestUsage], float]
"""What a call cost in US dollars, of the tokens that it used."""

PLAIN = frozenset({"input_tokens", "output_tokens"})
IDLE = frozenset(
    {
        *("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok"),
        *("input_audio_mtok", "output_audio_mtok", "cache_audio_read_mtok"),
        *("web_searches_kcount", "storage_searches_kcount"),
    }
)
"""Prices that do not matter to a call that only read and wrote text, but for the first two."""

KNOWN = 256

_rates: dict[Hashable, tuple[float, float]] = {}
"""US dollars per token read and written, where both are one number. To look one up in the table takes twice as long as
all else that we do for a call."""


def cost_of(response: ModelResponse, price: Price | None) -> float:
    """US dollars that an answer cost; 0 where nobody knows.

    Args:
        response: The answer.
        price: Whose word goes before the table's.
    """
    usage = response.usage
    if price is not None:
        return float(price(usage))
    if usage.cost is not None:
        return float(usage.cost)
    plain = all(name in PLAIN for name, value in vars(usage).items() if value)
    key = _conditions(response) if plain else None
    if key is not None and (rates := _rates.get(key)) is not None:
        return usage.input_tokens * rates[0] + usage.output_tokens * rates[1]
    try:
        calculated = response.cost()
    except Exception:  # the table does not know the model or this kind of usage, and no run fails for that
        return 0.0
    if key is not None and (found := _flat(calculated.model_price)) is not None:
        if len(_rates) >= KNOWN:
            _rates.clear()
        _rates[key] = found
    return float(calculated.total_price)


def _conditions(response: ModelResponse) -> Hashable:
    """All that a price may depend on, but for the usage: the model, the tier that served it, and the hour."""
    details = response.provider_details or {}
    tier = tuple((name, value) for name, value in details.items() if isinstance(value, str | int))
    hour = int(response.timestamp.timestamp()) // 3600
    return response.model_name, response.provider_url, response.provider_name, tier, hour


def _flat(prices: ModelPrice) -> tuple[float, float] | None:
    """The two rates, of prices that depend on nothing but the number of tokens."""
    rates = {name: rate for name, rate in vars(prices).items() if rate is not None}
    read, written = rates.get("input_mtok"), rates.get("output_mtok")
    if not isinstance(read, Decimal) or not isinstance(written, Decimal) or not IDLE.issuperset(rates):
        return None
    return float(read) / 1e6, float(written) / 1e6
