"""Ready-made hooks: each makes a bundle for any `hooks=[...]`, to be shared by any number of runs and tenants."""

from hookline.ready._options import BundleOptions
from hookline.ready.content import PATTERNS, redact
from hookline.ready.injection import PromptInjectionScan
from hookline.ready.models import budget, retry
from hookline.ready.provenance import require_provenance
from hookline.ready.tools import allow_tools, cache, deny_tools, limit_calls, require_approval
from hookline.ready.watch import AuditLog, AuditRecord, CallMetrics

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
    "deny_tools",
    "limit_calls",
    "redact",
    "require_approval",
    "require_provenance",
    "retry",
]
