"""Spans of a command: read from recorded runs, sent by OTLP, shown as a tree in the terminal."""

from hookline.cli.trace._otlp import PROJECT as PROJECT
from hookline.cli.trace._otlp import Tracing as Tracing
from hookline.cli.trace._otlp import otlp_json as otlp_json
from hookline.cli.trace._otlp import send as send
from hookline.cli.trace._recorded import EventRecording as EventRecording
from hookline.cli.trace._recorded import load_events as load_events
from hookline.cli.trace._recorded import replay_events as replay_events
from hookline.cli.trace._span_tree import DENIED as DENIED
from hookline.cli.trace._span_tree import ENDINGS as ENDINGS
from hookline.cli.trace._span_tree import FAILED as FAILED
from hookline.cli.trace._span_tree import OK as OK
from hookline.cli.trace._span_tree import STOPPED as STOPPED
from hookline.cli.trace._span_tree import WAITING as WAITING
from hookline.cli.trace._span_tree import Mark as Mark
from hookline.cli.trace._span_tree import fit as fit
from hookline.cli.trace._span_tree import format_duration as format_duration
from hookline.cli.trace._span_tree import show_spans as show_spans
