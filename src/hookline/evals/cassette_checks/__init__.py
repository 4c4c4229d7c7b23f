"""Check whether recordings are stale: compare them with the tools of today, and ask tools again."""

from hookline.evals.cassette_checks._check import CassettesReport as CassettesReport
from hookline.evals.cassette_checks._check import CheckedCassette as CheckedCassette
from hookline.evals.cassette_checks._check import CheckedTool as CheckedTool
from hookline.evals.cassette_checks._check import check_cassettes as check_cassettes
from hookline.evals.cassette_checks._differences import ResultDifference as ResultDifference
from hookline.evals.cassette_checks._differences import compare_results as compare_results
from hookline.evals.cassette_checks._live import LiveCheck as LiveCheck
from hookline.evals.cassette_checks._live import RepeatedCall as RepeatedCall

__all__ = [
    "CassettesReport",
    "CheckedCassette",
    "CheckedTool",
    "LiveCheck",
    "RepeatedCall",
    "ResultDifference",
    "check_cassettes",
    "compare_results",
]
