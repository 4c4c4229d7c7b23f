"""Models by name: checked at once, made on first use, and closed with the event loop that they were used on."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from difflib import get_close_matches

import anyio
from anyio.lowlevel import RunVar
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model, known_model_names, parse_model_id
from pydantic_ai.providers import infer_provider_class

from hookline.adapters.models._failures import hider
from hookline.errors import HooklineError, ModelError, define_error

__all__ = ["MissingProviderError", "ModelNameError", "check_name", "is_known", "made", "spoken_by"]

TEST = "test"
"""The one name without a provider: a model that needs no network and calls every tool once."""

SPEAKS = {"openai-chat": "openai", "openai-responses": "openai", "azure-responses": "azure", TEST: TEST}
"""Names of protocols of a provider, and the provider's own."""

_HINT = re.compile(r" To try Pydantic AI .*", re.DOTALL)
_PACKAGE = re.compile(r"pydantic-ai-slim\[[\w,-]+\]")


@define_error("There is no model {name!r}: {problem}")
class ModelNameError(HooklineError, ValueError):
    """There cannot be a model of that name.

    Attributes:
        name: What was asked for.
        problem: What is wrong with it, and how to fix it.
    """

    name: str
    problem: str


@define_error("Model {model!r} needs a package that is not installed: pip install '{package}'")
class MissingProviderError(HooklineError, ImportError):
    """A provider's own package is not installed.

    Attributes:
        model: The model that needs it.
        package: What to install.
    """

    model: str
    package: str


def is_known(name: str) -> bool:
    """Whether a name is one of a provider that there is, whatever else may be wrong with it."""
    provider, _, _ = name.partition(":")
    try:
        infer_provider_class(provider)
    except ValueError:
        return name == TEST
    except ImportError:
        return True
    return True


def check_name(name: str) -> tuple[str, str]:
    """The provider and the model of a name.

    Raises:
        ModelNameError: If there is no such provider, or the name is none.
        MissingProviderError: If the provider's package is not installed.
    """
    if name == TEST:
        return TEST, TEST
    provider, colon, model = name.partition(":")
    if not colon or not provider or not model.strip() or name != name.strip():
        raise ModelNameError(name, f"a name is `provider:model`, such as 'openai:gpt-5'.{_similar(name)}")
    try:
        infer_provider_class(provider)
    except ValueError:
        raise ModelNameError(name, f"there is no provider {provider!r}.{_similar(name)}") from None
    except ImportError as error:
        found = _PACKAGE.search(str(error))
        raise MissingProviderError(name, found[0] if found else f"pydantic-ai-slim[{provider}]") from None
    return spoken_by(provider), model


def spoken_by(provider: str) -> str:
    """The provider's own name, of the name of one of its protocols."""
    provider = provider.removeprefix("gateway/")
    return SPEAKS.get(provider, provider)


async def made(name: str) -> Model:
    """The model of a name on this event loop: one for all who ask for it, so that they share its connections.

    It is closed when the event loop ends, as open async generators are.

    Raises:
        ModelError: If it cannot be made, for the want of a key for example.
    """
    models = _models.get(None)
    if models is None:
        models = {}
        _models.set(models)
    if name not in models:
        model = _new(name)
        keeper = _kept_open(model)
        models[name] = model, keeper
        with anyio.CancelScope(shield=True):
            await anext(keeper)
    return models[name][0]


def _new(name: str) -> Model:
    problem = ""
    try:
        model = infer_model(name)
    except UserError as error:
        problem = _HINT.sub("", str(error))
    except Exception as error:
        problem = f"{type(error).__name__}: {hider()(str(error))}"
    if problem:
        raise ModelError(f"Model {name!r} cannot be used. {problem}")
    client = getattr(model.provider, "client", None)
    if isinstance(getattr(client, "max_retries", None), int):
        client.max_retries = 0  # type: ignore[union-attr]  # the loop asks again, and events tell of it
    return model


async def _kept_open(model: Model) -> AsyncGenerator[None, None]:
    await model.__aenter__()
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):  # an event loop that was cancelled still has to close its sockets
            await model.__aexit__(None, None, None)


_models: RunVar[dict[str, tuple[Model, AsyncGenerator[None, None]]] | None] = RunVar("hookline.adapters.models")


def _similar(name: str) -> str:
    close = get_close_matches(name, known_model_names(), n=1, cutoff=0.6)
    if not close:
        same = [known for known in known_model_names() if parse_model_id(known)[1] == name]
        close = same[:1]
    return f" Did you mean {close[0]!r}?" if close else ""
