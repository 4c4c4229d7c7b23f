"""Inject faults into tool calls, the same ones in every run: errors, delays, rate limits and damaged answers."""

from hookline.evals.faults._call_faults import (
    FailedResult,
    Fault,
    FaultSpec,
    Latency,
    RaiseError,
    RateLimit,
    Timeout,
    draw_for,
    strikes,
)
from hookline.evals.faults._clocks import Clock as Clock
from hookline.evals.faults._clocks import RealClock as RealClock
from hookline.evals.faults._clocks import VirtualClock as VirtualClock
from hookline.evals.faults._content_faults import (
    DuplicatedResult,
    EmptyResult,
    MalformedJson,
    Oversize,
    TruncatedJson,
    WrongSchema,
)
from hookline.evals.faults._files import FAULT_KINDS as FAULT_KINDS
from hookline.evals.faults._files import load_faults as load_faults
from hookline.evals.faults._files import parse_fault as parse_fault
from hookline.evals.faults._times import LogNormal, Normal, Uniform

__all__ = [
    "DuplicatedResult",
    "EmptyResult",
    "FailedResult",
    "Fault",
    "FaultSpec",
    "Latency",
    "LogNormal",
    "MalformedJson",
    "Normal",
    "Oversize",
    "RaiseError",
    "RateLimit",
    "Timeout",
    "TruncatedJson",
    "Uniform",
    "WrongSchema",
    "draw_for",
    "strikes",
]
