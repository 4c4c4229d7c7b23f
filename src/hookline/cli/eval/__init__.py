"""The commands `hookline eval`, `hookline eval diff` and `hookline eval attack`."""

from hookline.cli.eval._eval import eval_app as eval_app
from hookline.cli.eval._evaluation import Evaluation as Evaluation
from hookline.cli.eval._evaluation import evaluate as evaluate
from hookline.cli.eval._evaluation import found_cases as found_cases
from hookline.cli.eval._evaluation import found_suite as found_suite
from hookline.cli.eval._tables import show as show
