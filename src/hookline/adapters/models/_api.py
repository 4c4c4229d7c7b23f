"""Models of every provider that Pydantic AI supports, as hookline `Model`s."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from hookline.calls import ModelCall, ModelResponse
from hookline.errors import HooklineError, HookUsageError, MissingExtraError

try:
    from pydantic_ai.models import Model
    from pydantic_ai.usage import RequestUsage

    from hookline.adapters.models._calls import ProviderRequest, streamed_text
    from hookline.adapters.models._clients import (
        MissingProviderError,
        ModelNameError,
        check_name,
        is_known,
        shared_model,
    )
    from hookline.adapters.models._failures import ProviderError, make_secret_filter, to_model_error
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("hookline"):
        raise
    raise MissingExtraError("models", "hookline.adapters.models") from None

__all__ = ["MissingProviderError", "ModelNameError", "ProviderError", "PydanticModel", "model_named"]


class PydanticModel:
    """A model of any provider that Pydantic AI supports.

    A model given by name is created at its first call, so an agent can be defined without an API key. All models of the
    same name share connections, which are closed with the event loop, and do not retry: the agent's `retry` does. An
    instance remains the caller's, with its own retries and connections.

    Attributes:
        name: The model's name.
        provider: The provider's name.

    Args:
        model: `"provider:model"`, or an instance of a model class of Pydantic AI.
        name: The name in events and traces; the model's own name unless given.
        timeout: Seconds that a whole call may take; `None` for no limit.
        stall_timeout: Seconds without a byte after which a stream counts as broken; `None` for no limit. An answer in
            one piece arrives all at once, so only `timeout` limits it.
        settings: Pydantic AI's `ModelSettings` for every call; `ModelCall.settings` take precedence.
        price: A function that returns the cost of a call in US dollars, given Pydantic AI's `RequestUsage`; the price
            table unless given. A model that is not in the table costs 0.

    Raises:
        ModelNameError: If there is no such provider, or the name is malformed.
        MissingProviderError: If the provider's package is not installed.
        HookUsageError: If another argument is invalid.
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
                raise HookUsageError(
                    f"`{option}` of a PydanticModel must be a positive number of seconds; got {seconds!r}."
                )
        if settings is not None and not isinstance(settings, Mapping):
            raise HookUsageError(f"`settings` of a PydanticModel must be a mapping; got a {type(settings).__name__}.")
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
            TransientModelError: If the call failed for a transient reason, such as overload or a timeout.
            ModelError: If the call failed for any other reason.
        """
        model: Model | None = None
        try:
            model = await self._client()
            request = ProviderRequest(model, call, self._settings, timeout=self._timeout)
            with request.within_timeout():
                response = await model.request(request.messages, request.settings, request.parameters)
            return request.to_response(response, self._price)
        except HooklineError:
            raise
        except Exception as error:
            converted = to_model_error(error, self.name, make_secret_filter(model, self._settings, call.settings))
        raise converted  # outside of `except`, so that the error does not refer to the request with its headers

    async def stream(self, call: ModelCall) -> AsyncGenerator[str | ModelResponse, None]:
        """Answer a call piece by piece. Closing the generator closes the connection.

        Yields:
            The text as it arrives, and the complete answer as the last item.

        Raises:
            TransientModelError: If the call failed for a transient reason, such as a stream that was cut off.
            ModelError: If the call failed for any other reason.
        """
        model: Model | None = None
        try:
            model = await self._client()
            request = ProviderRequest(model, call, self._settings, timeout=self._timeout, silence=self._stall_timeout)
            async with AsyncExitStack() as stack:
                with request.within_timeout():
                    response = await stack.enter_async_context(
                        model.request_stream(request.messages, request.settings, request.parameters)
                    )
                events = aiter(response)
                while True:
                    try:
                        with request.within_timeout():
                            event = await anext(events)
                    except StopAsyncIteration:
                        break
                    if text := streamed_text(event):
                        yield text
                whole = request.to_complete_response(response.get(), self._price)
            yield whole
            return
        except HooklineError:
            raise
        except Exception as error:
            converted = to_model_error(error, self.name, make_secret_filter(model, self._settings, call.settings))
        raise converted

    async def _client(self) -> Model:
        if isinstance(self._model, str):
            return await shared_model(self._model)
        # Pydantic AI's agents do the same, because connections belong to the event loop that opened them.
        self._model._refresh_http_client()
        return self._model


def model_named(name: str) -> PydanticModel | None:
    """Return the model for a name, as for `Agent(model="openai:gpt-5")`.

    Args:
        name: The name, in the form `provider:model`.

    Returns:
        The model; `None` if Pydantic AI does not know the provider.

    Raises:
        ModelNameError: If the provider is known, but the rest of the name is malformed.
        MissingProviderError: If the provider's package is not installed.
    """
    return PydanticModel(name) if is_known(name) else None
