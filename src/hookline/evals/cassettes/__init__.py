"""Record tool calls in files and replay them: `Cassette`."""

from hookline.evals.cassettes._cassette import DEFAULT_REDACTION as DEFAULT_REDACTION
from hookline.evals.cassettes._cassette import Cassette
from hookline.evals.cassettes._cassette import CassetteError as CassetteError
from hookline.evals.cassettes._cassette import RecordMode as RecordMode
from hookline.evals.cassettes._file import check_needs as check_needs
from hookline.evals.cassettes._file import check_version as check_version
from hookline.evals.cassettes._file import describe_value as describe_value
from hookline.evals.cassettes._file import digest_of as digest_of
from hookline.evals.cassettes._file import parse_document as parse_document
from hookline.evals.cassettes._file import read_bytes as read_bytes
from hookline.evals.cassettes._file import write_cassette as write_cassette
from hookline.evals.cassettes._recorded_calls import Matching as Matching
from hookline.evals.cassettes._recorded_calls import RecordedCall as RecordedCall
from hookline.evals.cassettes._recorded_calls import diff_arguments as diff_arguments
from hookline.evals.cassettes._recorded_calls import to_json_value as to_json_value
from hookline.evals.cassettes._tools import RecordedTool
from hookline.evals.cassettes._tools import ToolWatchingHooks as ToolWatchingHooks
from hookline.evals.cassettes._tools import schema_changes as schema_changes
from hookline.evals.cassettes._yaml import write_yaml as write_yaml

__all__ = ["Cassette", "RecordedTool"]
