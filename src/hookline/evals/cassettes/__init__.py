"""Record tool calls in files and replay them: `Cassette`."""

from hookline.evals.cassettes._cassette import Cassette
from hookline.evals.cassettes._cassette import CassetteError as CassetteError
from hookline.evals.cassettes._recordings import Matching as Matching
from hookline.evals.cassettes._recordings import RecordedCall as RecordedCall
from hookline.evals.cassettes._recordings import to_json_value as to_json_value
from hookline.evals.cassettes._tools import RecordedTool
from hookline.evals.cassettes._tools import ToolWatchingHooks as ToolWatchingHooks
from hookline.evals.cassettes._tools import schema_changes as schema_changes

__all__ = ["Cassette", "RecordedTool"]
