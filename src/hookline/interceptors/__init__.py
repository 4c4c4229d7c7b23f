"""`Chain`: the interceptors around one call, in order, bounded in time, failing open or closed as each declares."""

from hookline.interceptors._chain import (
    AgentCall,
    AgentResult,
    Ask,
    Chain,
    CompactCall,
    CompactResult,
    Continue,
    Denial,
    Deny,
    Guide,
    Interceptor,
    MemoryCall,
    MemoryResult,
    ModelCall,
    ModelResponse,
    Outcome,
    RequestCall,
    RequestResult,
    Respond,
    StepCall,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.interceptors._chain import PastChain as PastChain
from hookline.interceptors._chain import PastVerdict as PastVerdict
from hookline.interceptors._fenced import Fence as Fence
from hookline.interceptors._fenced import FencedChain as FencedChain
from hookline.interceptors._fenced import FencedHooks as FencedHooks
from hookline.interceptors._fenced import boot_time as boot_time
from hookline.interceptors._fenced import is_fenced as is_fenced
from hookline.interceptors._shadow import judge_in_shadow as judge_in_shadow
from hookline.interceptors._text_judge import TextJudge as TextJudge
from hookline.interceptors._text_judge import cut_answer as cut_answer
from hookline.interceptors._text_judge import judge_in_time as judge_in_time
from hookline.interceptors._text_judge import open_text_judge as open_text_judge
from hookline.interceptors._traversal import NEVER_INTERRUPTED as NEVER_INTERRUPTED
from hookline.interceptors._traversal import CompiledInterceptor as CompiledInterceptor
from hookline.interceptors._traversal import Interruptible as Interruptible
from hookline.interceptors._traversal import Terminal as Terminal
from hookline.interceptors._traversal import Traversal as Traversal
from hookline.interceptors._validate import check_changed as check_changed
from hookline.interceptors._validate import check_fields as check_fields
from hookline.interceptors._validate import check_result as check_result
from hookline.interceptors._validate import result_of as result_of

__all__ = [
    "AgentCall",
    "AgentResult",
    "Ask",
    "Chain",
    "CompactCall",
    "CompactResult",
    "Continue",
    "Denial",
    "Deny",
    "Guide",
    "Interceptor",
    "MemoryCall",
    "MemoryResult",
    "ModelCall",
    "ModelResponse",
    "Outcome",
    "RequestCall",
    "RequestResult",
    "Respond",
    "StepCall",
    "StepResult",
    "SubAgentCall",
    "ToolCall",
    "ToolResult",
]
