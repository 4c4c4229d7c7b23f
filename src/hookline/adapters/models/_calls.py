"""One call of a provider's model: its request, time limits, answer and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, cast

import anyio
from genai_prices.types import ModelPrice
from pydantic_ai import messages
from pydantic_ai.messages import ModelMessage, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.messages import ModelResponse as WireResponse
from pydantic_ai.models import DEFAULT_HTTP_TIMEOUT, Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from hookline._readonly import writable
from hookline.adapters.models._failures import CallTimeoutError, CutStreamError, ProviderError
from hookline.adapters.models._messages import WireNames, to_model_response, to_tool_definitions, to_wire_messages
from hookline.calls import ModelCall, ModelResponse

__all__ = ["Price", "ProviderRequest", "cost_of", "streamed_text"]

Price = Callable[[RequestUsage], float]
"""Returns the cost of a call in US dollars, given its usage."""

TEXT_TOKEN_FIELDS = frozenset({"input_tokens", "output_tokens"})
TEXT_PRICES = frozenset(
    {
        *("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok"),
        *("input_audio_mtok", "output_audio_mtok", "cache_audio_read_mtok"),
        *("web_searches_kcount", "storage_searches_kcount"),
    }
)
"""The prices that do not affect a call that only read and wrote text, except for the first two."""

MOST_RATES = 256

_rates: dict[Hashable, tuple[float, float]] = {}
"""US dollars per input and output token, for prices that are flat. A look-up in the price table takes twice as long as
everything else that hookline does for a call."""


def cost_of(response: messages.ModelResponse, price: Price | None) -> float | None:
    """Return the cost of an answer in US dollars; `None` if it is not known.

    Args:
        response: The answer.
        price: Calculates the cost instead of the price table.
    """
    usage = response.usage
    if price is not None:
        return float(price(usage))
    if usage.cost is not None:
        return float(usage.cost)
    plain = all(name in TEXT_TOKEN_FIELDS for name, value in vars(usage).items() if value)
    key = _price_key(response) if plain else None
    if key is not None and (rates := _rates.get(key)) is not None:
        return usage.input_tokens * rates[0] + usage.output_tokens * rates[1]
    try:
        calculated = response.cost()
    except Exception:  # the table lacks the model or this kind of usage, which must not fail the run
        return None
    if key is not None and (found := _flat_rates(calculated.model_price)) is not None:
        if len(_rates) >= MOST_RATES:
            _rates.clear()
        _rates[key] = found
    return float(calculated.total_price)


def _price_key(response: messages.ModelResponse) -> Hashable:
    """Return everything but the usage that a price may depend on: model, provider, service tier and hour."""
    details = response.provider_details or {}
    tier = tuple((name, value) for name, value in details.items() if isinstance(value, str | int))
    hour = int(response.timestamp.timestamp()) // 3600
    return response.model_name, response.provider_url, response.provider_name, tier, hour


def _flat_rates(prices: ModelPrice) -> tuple[float, float] | None:
    """Return the input and output rates, if the price depends only on the number of tokens."""
    rates = {name: rate for name, rate in vars(prices).items() if rate is not None}
    read, written = rates.get("input_mtok"), rates.get("output_mtok")
    if not isinstance(read, Decimal) or not isinstance(written, Decimal) or not TEXT_PRICES.issuperset(rates):
        return None
    return float(read) / 1e6, float(written) / 1e6


DAY_SECONDS = 86_400.0
"""Seconds set as the HTTP client's timeout if its default would end a call before hookline's own limit."""


class ProviderRequest:
    """A call, converted for a model of Pydantic AI, with its time limits.

    Args:
        model: The model.
        call: The call.
        settings: Settings of every call; the settings of the call itself take precedence.
        timeout: Seconds that the whole call may take; `None` for no limit.
        silence: Seconds that a stream may pause; `None` for no limit, and for an answer in one piece.
    """

    def __init__(
        self,
        model: Model,
        call: ModelCall,
        settings: Mapping[str, Any],
        *,
        timeout: float | None,
        silence: float | None = None,
    ) -> None:
        self.model = model
        self.names = WireNames(call.tools, call.messages)
        self.parameters = ModelRequestParameters(function_tools=to_tool_definitions(call.tools, self.names))
        converted = to_wire_messages(call.messages, self.names)
        self.messages: list[ModelMessage] = model.prepare_messages(converted, self.parameters)
        merged = {**settings, **writable(call.settings)}
        self._timeout, self._silence = timeout, silence
        self._deadline = math.inf if timeout is None else anyio.current_time() + timeout
        patience = silence
        if silence is None and self._deadline - anyio.current_time() > DEFAULT_HTTP_TIMEOUT:
            patience = DAY_SECONDS
        if patience is not None and _takes_http_timeout(model):
            # The HTTP client watches for silence, because it also counts pings of the provider, unseen here.
            merged.setdefault("timeout", patience)
            self._silence = None
        self.settings = cast("ModelSettings | None", merged or None)

    @contextmanager
    def within_timeout(self) -> Iterator[None]:
        """Limit the block to the time that the call has left and that the model may be silent.

        Raises:
            CallTimeoutError: If the block took longer.
        """
        until = self._deadline
        if self._silence is not None:
            until = min(until, anyio.current_time() + self._silence)
        with anyio.CancelScope(deadline=until) as scope:
            yield
        if scope.cancelled_caught:
            if until < self._deadline:
                raise CallTimeoutError(f"it sent nothing for {self._silence:g} s. Increase `stall_timeout`.")
            raise CallTimeoutError(f"it took longer than {self._timeout:g} s. Increase `timeout`.")

    def to_response(self, response: WireResponse, price: Price | None) -> ModelResponse:
        """Convert the answer.

        Raises:
            ProviderError: If the provider deferred the answer.
        """
        if response.state == "suspended":
            raise ProviderError(self.model.model_name, "it continues in the background, which is not supported")
        return to_model_response(response, self.names, cost_usd=cost_of(response, price))

    def to_complete_response(self, response: WireResponse, price: Price | None) -> ModelResponse:
        """Convert the answer of a stream that has ended.

        Raises:
            CutStreamError: If the stream ended too early.
        """
        # The library accepts any end. A stream with neither a finish reason nor a usage was cut off.
        known = (response.provider_details or {}).get("finish_reason") or response.finish_reason not in (None, "stop")
        if response.state == "incomplete" or (not known and response.usage.unmeasured_requests):
            raise CutStreamError("its stream ended before the answer was whole.")
        return self.to_response(response, price)


def streamed_text(event: object) -> str:
    """Return the text of a stream's event; `""` if it has none."""
    if isinstance(event, PartDeltaEvent):
        return event.delta.content_delta if isinstance(event.delta, TextPartDelta) else ""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    return ""


def _takes_http_timeout(model: Model) -> bool:
    """Return whether a model has an HTTP client whose timeout can be set."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model.provider is not None and "timeout" not in model.unsupported_settings
