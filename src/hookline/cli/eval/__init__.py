"""The commands `hookline eval`, `hookline eval diff` and `hookline eval attack`."""

from hookline.cli.eval._eval import eval_app as eval_app
from hookline.cli.eval._evaluation import Evaluation as Evaluation
from hookline.cli.eval._evaluation import evaluate as evaluate
from hookline.cli.eval._evaluation import find_cases as find_cases
from hookline.cli.eval._evaluation import find_suite as find_suite
from hookline.cli.eval._tables import show_evaluation as show_evaluation
