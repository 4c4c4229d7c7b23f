"""Statistics of evaluation runs: means with intervals, pass@k, percentiles, and a paired test of two runs."""

from hookline.evals.statistics._estimates import Estimate, estimate_mean, pass_at_k, pass_hat_k
from hookline.evals.statistics._paired_test import PairedTest, paired_test
from hookline.evals.statistics._paired_test import PairedVerdict as PairedVerdict
from hookline.evals.statistics._paired_test import fisher_p_value as fisher_p_value
from hookline.evals.statistics._percentiles import Percentiles
from hookline.evals.statistics._run_statistics import (
    CheckStatistics,
    ModelStatistics,
    RunStatistics,
    TagStatistics,
    TaskStatistics,
)
from hookline.evals.statistics._run_statistics import ModelTally as ModelTally

__all__ = [
    "CheckStatistics",
    "Estimate",
    "ModelStatistics",
    "PairedTest",
    "Percentiles",
    "RunStatistics",
    "TagStatistics",
    "TaskStatistics",
    "estimate_mean",
    "paired_test",
    "pass_at_k",
    "pass_hat_k",
]
