"""Models that judge tasks by a rubric, their agreement with each other, and their calibration against people."""

from hookline.evals.judges._agreement import ConfusionMatrix, JudgeAgreement, judge_agreement, krippendorff_alpha
from hookline.evals.judges._calibration import Calibration, ThresholdFit, calibrate
from hookline.evals.judges._judge import Combine as Combine
from hookline.evals.judges._judge import Judge, judge
from hookline.evals.judges._labels import Label, read_labels, write_label_sheet

__all__ = [
    "Calibration",
    "ConfusionMatrix",
    "Judge",
    "JudgeAgreement",
    "Label",
    "ThresholdFit",
    "calibrate",
    "judge",
    "judge_agreement",
    "krippendorff_alpha",
    "read_labels",
    "write_label_sheet",
]
