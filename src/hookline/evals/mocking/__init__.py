"""Mock tools: rules that answer tool calls instead of the tools, and faults that strike them."""

from hookline.evals.mocking._answers import Answer, Fake
from hookline.evals.mocking._answers import Then as Then
from hookline.evals.mocking._assertions import assert_called as assert_called
from hookline.evals.mocking._assertions import assert_called_before as assert_called_before
from hookline.evals.mocking._assertions import assert_called_once_with as assert_called_once_with
from hookline.evals.mocking._assertions import assert_no_unmocked as assert_no_unmocked
from hookline.evals.mocking._assertions import assert_not_called as assert_not_called
from hookline.evals.mocking._assertions import calls_of as calls_of
from hookline.evals.mocking._assertions import table as table
from hookline.evals.mocking._mocks import FaultRule, FaultStrike, MockedCall, ToolMocks
from hookline.evals.mocking._mocks import Outcome as Outcome
from hookline.evals.mocking._rules import Rule

__all__ = ["Answer", "Fake", "FaultRule", "FaultStrike", "MockedCall", "Rule", "ToolMocks"]
