"""Record calls of models in files and replay them: `ModelTape`."""

from hookline.evals.tapes._calls import TapedCall
from hookline.evals.tapes._tape import ModelTape

__all__ = ["ModelTape", "TapedCall"]
