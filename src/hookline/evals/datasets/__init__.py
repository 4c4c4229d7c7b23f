"""Tasks made from the cases of a file, each when it is asked for."""

from hookline.evals.datasets._dataset import CaseMatrix as CaseMatrix
from hookline.evals.datasets._dataset import CaseSource as CaseSource
from hookline.evals.datasets._dataset import Dataset
from hookline.evals.datasets._dataset import FileCases as FileCases
from hookline.evals.datasets._dataset import InlineCases as InlineCases
from hookline.evals.datasets._parameters import fill_text as fill_text
from hookline.evals.datasets._parameters import fill_value as fill_value
from hookline.evals.datasets._parameters import parameters_in as parameters_in
from hookline.evals.datasets._rows import Row as Row
from hookline.evals.datasets._rows import RowFile as RowFile

__all__ = ["Dataset"]
