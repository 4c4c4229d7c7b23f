"""Record tool calls in files and replay them: `Cassette`."""

from hookline.evals.cassettes._cassette import Cassette
from hookline.evals.cassettes._cassette import CassetteError as CassetteError
from hookline.evals.cassettes._recordings import plain as plain

__all__ = ["Cassette"]
