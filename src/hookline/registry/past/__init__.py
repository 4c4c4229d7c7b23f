"""The calls of stored operations, rebuilt from what was stored, and hooks that judge them."""

from hookline.registry.past._calls import ALONG as ALONG
from hookline.registry.past._calls import FAILED_AGENT as FAILED_AGENT
from hookline.registry.past._calls import PastCalls as PastCalls
from hookline.registry.past._calls import find_sub_operations as find_sub_operations
from hookline.registry.past._items import PastCall as PastCall
from hookline.registry.past._items import PersonDecision as PersonDecision
from hookline.registry.past._items import UnjudgedCalls as UnjudgedCalls
from hookline.registry.past._items import UnreadableEvent as UnreadableEvent
from hookline.registry.past._judge import INCOMPLETE as INCOMPLETE
from hookline.registry.past._judge import SHARED as SHARED
from hookline.registry.past._judge import PastJudge as PastJudge
from hookline.registry.past._timeline import PastTimeline as PastTimeline
from hookline.registry.past._timeline import TimedCall as TimedCall
