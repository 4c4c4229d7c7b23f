"""Ready-made hooks: bundles for `hooks=[...]`, which any number of runs and tenants can share."""

from hookline.builtin._content import PATTERNS, deny_phrases, redact
from hookline.builtin._injection import PromptInjectionScan
from hookline.builtin._models import budget, retry
from hookline.builtin._provenance import require_provenance
from hookline.builtin._tools import BundleOptions, allow_tools, cache, deny_tools, limit_calls, require_approval
from hookline.builtin._watch import AuditLog, AuditRecord, CallMetrics

__all__ = [
    "PATTERNS",
    "AuditLog",
    "AuditRecord",
    "BundleOptions",
    "CallMetrics",
    "PromptInjectionScan",
    "allow_tools",
    "budget",
    "cache",
    "deny_phrases",
    "deny_tools",
    "limit_calls",
    "redact",
    "require_approval",
    "require_provenance",
    "retry",
]
