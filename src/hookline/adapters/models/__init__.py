"""Models of every provider that Pydantic AI supports, as hookline `Model`s."""

from hookline.adapters.models._api import (
    MissingProviderError,
    ModelNameError,
    ProviderError,
    PydanticModel,
    model_named,
)

__all__ = ["MissingProviderError", "ModelNameError", "ProviderError", "PydanticModel", "model_named"]
