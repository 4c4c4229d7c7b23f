"""Real models: every provider that Pydantic AI speaks to, as a hookline `Model`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from hookline.calls import ModelCall, ModelResponse
from hookline.errors import HooklineError, HookUsageError, MissingExtraError

try:
    from pydantic_ai.models import Model
    from pydantic_ai.usage import RequestUsage

    from hookline.adapters.models._calls import Request, text_of
    from hookline.adapters.models._clients import MissingProviderError, ModelNameError, check_name, is_known, made
    from hookline.adapters.models._failures import ProviderError, failure, hider
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("hookline"):
        raise
    raise MissingExtraError("models", "hookline.adapters.models") from None

__all__ = ["MissingProviderError", "ModelNameError", "ProviderError", "PydanticModel", "model_named"]


class PydanticModel:
    """A model of any provider that Pydantic AI speaks to.

    One that is given by name is made when it is first asked, so an agent can be defined without a key; its connections
    are shared by all models of that name and closed with the event loop, and its client does not ask again by itself:
    the agent's `retry` does. An instance stays the caller's, with its own retries and connections.

    Attributes:
        name: The model's name.
        provider: Who runs it.

    Args:
        model: `"provider:model"`, or an instance of a model class of Pydantic AI.
        name: What it is called in events and traces; its own name unless given.
        timeout: Seconds that a whole call may take; `None` for no limit.
        stall_timeout: Seconds without a byte after which a stream counts as broken; `None` for no limit. An answer in
            one piece is silent until it is there, so only `timeout` ends it.
        settings: Pydantic AI's `ModelSettings` for every call; `ModelCall.settings` win over them.
        price: What a call cost in US dollars, of Pydantic AI's `RequestUsage`; by the price table unless given. A model
            that the table does not know costs 0.

    Raises:
        ModelNameError: If there is no such provider, or the name is none.
        MissingProviderError: If the provider's package is not installed.
        HookUsageError: If another argument cannot work.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        name: str | None = None,
        timeout: float | None = 600.0,
        stall_timeout: float | None = 60.0,
        settings: Mapping[str, Any] | None = None,
        price: Callable[[RequestUsage], float] | None = None,
    ) -> None:
        for option, seconds in (("timeout", timeout), ("stall_timeout", stall_timeout)):
            if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
                raise HookUsageError(f"`{option}` of a PydanticModel is a positive number of seconds; got {seconds!r}.")
        if settings is not None and not isinstance(settings, Mapping):
            raise HookUsageError(f"`settings` of a PydanticModel is a mapping; got a {type(settings).__name__}.")
        if isinstance(model, str):
            self.provider, own_name = check_name(model)
        elif isinstance(model, Model):
            self.provider, own_name = model.system, model.model_name
        else:
            raise HookUsageError(f"PydanticModel takes a name or a model of Pydantic AI; got a {type(model).__name__}.")
        self.name = name or own_name
        self._model = model
        self._timeout, self._stall_timeout = timeout, stall_timeout
        self._settings = dict(settings or {})
        self._price = price

    def __repr__(self) -> str:
        return f"PydanticModel({self.provider}:{self.name})"

    async def respond(self, call: ModelCall) -> ModelResponse:
        """Answer a call in one piece.

        Raises:
            TransientModelError: If it failed for a passing reason: overload, a limit, a broken connection, a timeout.
            ModelError: If it failed for any other reason.
        """
        model: Model | None = None
        try:
            model = await self._client()
            request = Request(model, call, self._settings, timeout=self._timeout)
            with request.in_time():
                response = await model.request(request.messages, request.settings, request.parameters)
            return request.answer(response, self._price)
        except HooklineError:
            raise
        except Exception as error:
            failed = failure(error, self.name, hider(model, self._settings, call.settings))
        raise failed  # out of the `except`, so that no request with its headers hangs on it

    async def stream(self, call: ModelCall) -> AsyncGenerator[str | ModelResponse, None]:
        """Answer a call piece by piece. The connection is closed when the generator is.

        Yields:
            Text as it comes, and as the last item the whole answer.

        Raises:
            TransientModelError: If it failed for a passing reason; a stream that was cut is one.
            ModelError: If it failed for any other reason.
        """
        model: Model | None = None
        try:
            model = await self._client()
            request = Request(model, call, self._settings, timeout=self._timeout, silence=self._stall_timeout)
            async with AsyncExitStack() as stack:
                with request.in_time():
                    response = await stack.enter_async_context(
                        model.request_stream(request.messages, request.settings, request.parameters)
                    )
                events = aiter(response)
                while True:
                    try:
                        with request.in_time():
                            event = await anext(events)
                    except StopAsyncIteration:
                        break
                    if text := text_of(event):
                        yield text
                whole = request.whole(response.get(), self._price)
            yield whole
            return
        except HooklineError:
            raise
        except Exception as error:
            failed = failure(error, self.name, hider(model, self._settings, call.settings))
        raise failed

    async def _client(self) -> Model:
        if isinstance(self._model, str):
            return await made(self._model)
        # As an agent of Pydantic AI does: connections belong to the event loop that opened them.
        self._model._refresh_http_client()
        return self._model


def model_named(name: str) -> PydanticModel | None:
    """The model of a name, for `Agent(model="openai:gpt-5")`.

    Args:
        name: `provider:model`.

    Returns:
        `None` if it is of a provider that Pydantic AI does not know.

    Raises:
        ModelNameError: If the provider is known, and the rest is no name.
        MissingProviderError: If the provider's package is not installed.
    """
    return PydanticModel(name) if is_known(name) else None
