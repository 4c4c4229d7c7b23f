"""Translate between hookline and the hook protocols of coding agents: Claude Code, Codex, Gemini CLI and Copilot CLI.

A dialect is a row of a table (`DIALECTS`), not a class: how a host spells its events, the keys of its questions and the
places of its answers. `build_question` makes what a hook of that host reads, `parse_answer` reads what it says, and
`matches` applies a matcher as the host does. Nothing here starts a process or sends anything.
"""

from hookline.dialects._answers import HostAnswer as HostAnswer
from hookline.dialects._answers import parse_answer as parse_answer
from hookline.dialects._answers import parse_answer_object as parse_answer_object
from hookline.dialects._matchers import matcher_problem as matcher_problem
from hookline.dialects._matchers import matches as matches
from hookline.dialects._questions import HostQuestion as HostQuestion
from hookline.dialects._questions import build_question as build_question
from hookline.dialects._questions import host_tool_name as host_tool_name
from hookline.dialects._reports import report_answer as report_answer
from hookline.dialects._table import DIALECTS as DIALECTS
from hookline.dialects._table import HOST_EVENTS as HOST_EVENTS
from hookline.dialects._table import Dialect as Dialect
from hookline.dialects._table import DialectName as DialectName
from hookline.dialects._table import HostEvent as HostEvent
from hookline.dialects._table import HostEventName as HostEventName
from hookline.dialects._table import events_at as events_at
from hookline.dialects._table import find_event as find_event
