"""Models by name: the name is checked at once, the model is created on first use and closed with its event loop."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from difflib import get_close_matches

import anyio
from anyio.lowlevel import RunVar
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model, known_model_names, parse_model_id
from pydantic_ai.providers import infer_provider_class

from hookline.adapters.models._failures import make_secret_filter
from hookline.errors import HooklineError, ModelError, define_error

__all__ = ["MissingProviderError", "ModelNameError", "check_name", "is_known", "provider_of_protocol", "shared_model"]

TEST_MODEL = "test"
"""The only model name without a provider: it needs no network and calls every tool once."""

PROVIDERS_BY_PROTOCOL = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "azure-responses": "azure",
    TEST_MODEL: TEST_MODEL,
}
"""The provider of each protocol name."""

_HINT = re.compile(r" To try Pydantic AI .*", re.DOTALL)
_PACKAGE = re.compile(r"pydantic-ai-slim\[[\w,-]+\]")


@define_error("There is no model {name!r}: {problem}")
class ModelNameError(HooklineError, ValueError):
    """A model name is malformed, or its provider does not exist.

    Attributes:
        name: The name.
        problem: What is wrong with the name, and how to fix it.
    """

    name: str
    problem: str


@define_error("Model {model!r} needs a package that is not installed: pip install '{package}'")
class MissingProviderError(HooklineError, ImportError):
    """The Python package of a provider is not installed.

    Attributes:
        model: The model that needs it.
        package: The package to install.
    """

    model: str
    package: str


def is_known(name: str) -> bool:
    """Return whether a name starts with an existing provider, even if the rest of the name is wrong."""
    provider, _, _ = name.partition(":")
    try:
        infer_provider_class(provider)
    except ValueError:
        return name == TEST_MODEL
    except ImportError:
        return True
    return True


def check_name(name: str) -> tuple[str, str]:
    """Return the provider and the model of a name.

    Raises:
        ModelNameError: If there is no such provider, or the name is malformed.
        MissingProviderError: If the provider's package is not installed.
    """
    if name == TEST_MODEL:
        return TEST_MODEL, TEST_MODEL
    provider, colon, model = name.partition(":")
    if not colon or not provider or not model.strip() or name != name.strip():
        raise ModelNameError(name, f"a name is `provider:model`, such as 'openai:gpt-5'.{_suggestion(name)}")
    try:
        infer_provider_class(provider)
    except ValueError:
        raise ModelNameError(name, f"there is no provider {provider!r}.{_suggestion(name)}") from None
    except ImportError as error:
        found = _PACKAGE.search(str(error))
        raise MissingProviderError(name, found[0] if found else f"pydantic-ai-slim[{provider}]") from None
    return provider_of_protocol(provider), model


def provider_of_protocol(provider: str) -> str:
    """Return the provider of a protocol name such as `openai-responses`."""
    provider = provider.removeprefix("gateway/")
    return PROVIDERS_BY_PROTOCOL.get(provider, provider)


async def shared_model(name: str) -> Model:
    """Return the model of a name, shared by all callers on this event loop so that they share its connections.

    The model is closed when the event loop ends, because the loop then closes open async generators.

    Raises:
        ModelError: If the model cannot be created, for example without an API key.
    """
    models = _models.get(None)
    if models is None:
        models = {}
        _models.set(models)
    if name not in models:
        model = _new_model(name)
        keeper = _keep_open(model)
        models[name] = model, keeper
        with anyio.CancelScope(shield=True):
            await anext(keeper)
    return models[name][0]


def _new_model(name: str) -> Model:
    problem = ""
    try:
        model = infer_model(name)
    except UserError as error:
        problem = _HINT.sub("", str(error))
    except Exception as error:
        problem = f"{type(error).__name__}: {make_secret_filter()(str(error))}"
    if problem:
        raise ModelError(f"Model {name!r} cannot be used. {problem}")
    client = getattr(model.provider, "client", None)
    if isinstance(getattr(client, "max_retries", None), int):
        client.max_retries = 0  # type: ignore[union-attr]  # the run retries, with events
    return model


async def _keep_open(model: Model) -> AsyncGenerator[None, None]:
    await model.__aenter__()
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):  # sockets must be closed even if the event loop was cancelled
            await model.__aexit__(None, None, None)


_models: RunVar[dict[str, tuple[Model, AsyncGenerator[None, None]]] | None] = RunVar("hookline.adapters.models")


def _suggestion(name: str) -> str:
    close = get_close_matches(name, known_model_names(), n=1, cutoff=0.6)
    if not close:
        same = [known for known in known_model_names() if parse_model_id(known)[1] == name]
        close = same[:1]
    return f" Did you mean {close[0]!r}?" if close else ""
