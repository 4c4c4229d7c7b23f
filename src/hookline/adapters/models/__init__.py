"""Real models: every provider that Pydantic AI speaks to, as a hookline `Model`."""

from hookline.adapters.models._api import (
    MissingProviderError,
    ModelNameError,
    ProviderError,
    PydanticModel,
    model_named,
)

__all__ = ["MissingProviderError", "ModelNameError", "ProviderError", "PydanticModel", "model_named"]
