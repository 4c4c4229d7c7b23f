"""One model call, as Pydantic AI is asked to make it."""

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
from hookline.adapters.models._messages import WireNames, answer, conversation, definitions
from hookline.calls import ModelCall, ModelResponse

__all__ = ["Price", "Request", "cost_of", "text_of"]

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


def cost_of(response: messages.ModelResponse, price: Price | None) -> float:
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


def _conditions(response: messages.ModelResponse) -> Hashable:
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


A_DAY = 86_400.0
"""Seconds of silence that an HTTP client is told to bear where its own limit would come before ours."""


class Request:
    """A call on its way to a model.

    Args:
        model: Who is asked.
        call: What is asked.
        settings: Settings of every call; those of the call itself win.
        timeout: Seconds that all of it may take; `None` for no limit.
        silence: Seconds without a byte that a stream may have; `None` for no limit, and for an answer in one piece.
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
        self.parameters = ModelRequestParameters(function_tools=definitions(call.tools, self.names))
        told = conversation(call.messages, self.names)
        self.messages: list[ModelMessage] = model.prepare_messages(told, self.parameters)
        merged = {**settings, **writable(call.settings)}
        self._timeout, self._silence = timeout, silence
        self._deadline = math.inf if timeout is None else anyio.current_time() + timeout
        patience = silence
        if silence is None and self._deadline - anyio.current_time() > DEFAULT_HTTP_TIMEOUT:
            patience = A_DAY
        if patience is not None and _counts_bytes(model):
            # Where the HTTP client watches, pings of the provider count as signs of life, of which we are not told.
            merged.setdefault("timeout", patience)
            self._silence = None
        self.settings = cast("ModelSettings | None", merged or None)

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """Do not wait in here longer than the call may take, or the model may be silent.

        Raises:
            CallTimeoutError: If it took longer.
        """
        until = self._deadline
        if self._silence is not None:
            until = min(until, anyio.current_time() + self._silence)
        with anyio.CancelScope(deadline=until) as scope:
            yield
        if scope.cancelled_caught:
            if until < self._deadline:
                raise CallTimeoutError(f"it was silent for {self._silence:g} s. Give it a longer `stall_timeout`.")
            raise CallTimeoutError(f"it was not done after {self._timeout:g} s. Give it a longer `timeout`.")

    def answer(self, response: WireResponse, price: Price | None) -> ModelResponse:
        """The answer.

        Raises:
            ProviderError: If the provider has put it off.
        """
        if response.state == "suspended":
            raise ProviderError(self.model.model_name, "it goes on in the background, which is not supported")
        return answer(response, self.names, cost_usd=cost_of(response, price))

    def whole(self, response: WireResponse, price: Price | None) -> ModelResponse:
        """The answer, of a stream that has ended.

        Raises:
            CutStreamError: If it ended too early.
        """
        # The library takes any end for a good one; a stream that said neither why it ends nor what it used has no end.
        known = (response.provider_details or {}).get("finish_reason") or response.finish_reason not in (None, "stop")
        if response.state == "incomplete" or (not known and response.usage.unmeasured_requests):
            raise CutStreamError("its stream ended before the answer was whole.")
        return self.answer(response, price)


def text_of(event: object) -> str:
    """The text that an event of a stream brings."""
    if isinstance(event, PartDeltaEvent):
        return event.delta.content_delta if isinstance(event.delta, TextPartDelta) else ""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    return ""


def _counts_bytes(model: Model) -> bool:
    """Whether a model has an HTTP client that takes a timeout."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model.provider is not None and "timeout" not in model.unsupported_settings
