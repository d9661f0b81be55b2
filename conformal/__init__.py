"""Certificates for proposals scored by regret: thresholds, gates, tests of the promise.

numpy and scipy only; knows nothing of where scores come from.
"""

from conformal.bands import (
    CoverageCount,
    beta_binomial_band,
    beta_binomial_p_value,
    hit_probability,
    lower_band,
    poisson_binomial,
    replicate_count,
)
from conformal.calibrators import acceptance_thresholds, as_acceptance, certify, fit, roundwise
from conformal.diagnostics import (
    GateRates,
    RoundCoverage,
    WholeCoverage,
    coverage_by_round,
    covered,
    gate_rates,
    no_proposal_refused,
    vacuous,
)
from conformal.exchangeability import Power, RankCheck, power, rank_checks
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
from conformal.hierarchical import hierarchical
from conformal.mondrian import MondrianThresholds, mondrian
from conformal.pac import coverage_confidence, pac_ranks, pac_smallest_n
from conformal.planner import ModePlan, fold_size, plan
from conformal.proposals import map_malformed, outside_regrets, vote_outside
from conformal.ranks import order_statistic, order_statistics, rank, ranks, smallest_n
from conformal.risk import risk_threshold, sequential_risk
from conformal.scores import fail_from
from conformal.screen_band import ScreenBand, fit_band
from conformal.screened import Predictions, constant_predictions
from conformal.sequential import SequentialCalibrator
from conformal.thresholds import PolicyMismatch, Thresholds, policy_hash
from conformal.ties import TiedThreshold, tied_covered, tied_threshold
from conformal.trajectory import scale, trajectory, trajectory_bonferroni
from conformal.weighted import WeightedThresholds, effective_sample_size, weighted

__all__ = [
    "ArgminGate",
    "AuditGate",
    "CoverageCount",
    "Decision",
    "Gate",
    "GateRates",
    "LockstepGate",
    "ModePlan",
    "MondrianThresholds",
    "OpenGate",
    "PolicyMismatch",
    "Power",
    "Predictions",
    "RankCheck",
    "RoundCoverage",
    "RowGate",
    "SamplingGate",
    "ScreenBand",
    "SequentialCalibrator",
    "ThresholdGate",
    "Thresholds",
    "TiedThreshold",
    "WeightedThresholds",
    "WholeCoverage",
    "acceptance_thresholds",
    "as_acceptance",
    "beta_binomial_band",
    "beta_binomial_p_value",
    "certify",
    "constant_predictions",
    "coverage_by_round",
    "coverage_confidence",
    "covered",
    "effective_sample_size",
    "fail_from",
    "fit",
    "fit_band",
    "fold_size",
    "gate_rates",
    "hierarchical",
    "hit_probability",
    "lower_band",
    "map_malformed",
    "mondrian",
    "no_proposal_refused",
    "order_statistic",
    "order_statistics",
    "outside_regrets",
    "pac_ranks",
    "pac_smallest_n",
    "plan",
    "poisson_binomial",
    "policy_hash",
    "power",
    "rank",
    "rank_checks",
    "ranks",
    "replicate_count",
    "risk_threshold",
    "roundwise",
    "scale",
    "sequential_risk",
    "smallest_n",
    "tied_covered",
    "tied_threshold",
    "trajectory",
    "trajectory_bonferroni",
    "vacuous",
    "vote_outside",
    "weighted",
]
