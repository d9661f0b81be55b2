"""Certificates for proposals scored by regret: thresholds, gates, tests of the promise.

numpy and scipy only; knows nothing of where scores come from.
"""

from conformal.bands import (
    CoverageCount,
    beta_binomial_band,
    beta_binomial_p_value,
    lower_band,
    poisson_binomial,
    replicate_count,
)
from conformal.calibrators import acceptance_thresholds, as_acceptance, certify, fit, roundwise
from conformal.gate import (
    ArgminGate,
    AuditGate,
    Decision,
    Gate,
    LockstepGate,
    OpenGate,
    RowGate,
    SamplingGate,
    ThresholdGate,
)
from conformal.ranks import order_statistic, order_statistics, rank, ranks, smallest_n
from conformal.sequential import SequentialCalibrator
from conformal.thresholds import PolicyMismatch, Thresholds, policy_hash
from conformal.ties import TiedThreshold, tied_covered, tied_threshold
from conformal.trajectory import scale, trajectory, trajectory_bonferroni

__all__ = [
    "ArgminGate",
    "AuditGate",
    "CoverageCount",
    "Decision",
    "Gate",
    "LockstepGate",
    "OpenGate",
    "PolicyMismatch",
    "RowGate",
    "SamplingGate",
    "SequentialCalibrator",
    "ThresholdGate",
    "Thresholds",
    "TiedThreshold",
    "acceptance_thresholds",
    "as_acceptance",
    "beta_binomial_band",
    "beta_binomial_p_value",
    "certify",
    "fit",
    "lower_band",
    "order_statistic",
    "order_statistics",
    "poisson_binomial",
    "policy_hash",
    "rank",
    "ranks",
    "replicate_count",
    "roundwise",
    "scale",
    "smallest_n",
    "tied_covered",
    "tied_threshold",
    "trajectory",
    "trajectory_bonferroni",
]
