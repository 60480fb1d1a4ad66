"""Outcomes of several policies: each as if it were alone, and their summaries."""

import json
import math

import pytest
import torch

from beaconkv.analysis.demand import find_demand, find_loss
from beaconkv.analysis.diagnosis import diagnose
from beaconkv.analysis.losses import compare_policies
from beaconkv.analysis.oracle import least_loss
from tests.analysis.traces import tiny_trace

SMALL = dict(prefix=2, protect=6)
CELLS = [("beaconkv", 40), ("streaming_llm", 40), ("beaconkv", 56), ("recent:16", 40)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return tiny_trace(tmp_path_factory.mktemp("traces"), "qwen3", 120, 15)


@pytest.fixture(scope="module")
def outcomes(trace):
    return compare_policies(trace, CELLS, **SMALL)


def test_each_outcome_is_what_it_is_alone(trace, outcomes):
    for cell, outcome in zip(CELLS, outcomes, strict=True):
        assert (outcome.replay.policy, outcome.replay.budget) == cell
        (alone,) = compare_policies(trace, [cell], **SMALL)
        for name in ("lost", "oracle", "bound", "recall", "later_mass", "later_wanted", "queries"):
            assert torch.equal(getattr(alone, name).nan_to_num(), getattr(outcome, name).nan_to_num()), name


def test_outcomes_are_the_losses_of_each_layer(trace, outcomes):
    outcome = outcomes[1]
    for number, layer in enumerate(trace.info.layers):
        demand = find_demand(trace, layer, outcome.replay.steps)
        loss = find_loss(demand, outcome.replay.event_of()[number])
        assert torch.equal(outcome.lost[number].nan_to_num(), loss.lost.nan_to_num())
        assert torch.equal(outcome.later_wanted[number], loss.later_wanted)
        bound = least_loss(demand, outcome.replay.schedule, 15)
        assert torch.equal(outcome.bound[number].nan_to_num(), bound.nan_to_num())


def test_a_summary_is_a_mean_over_queries(outcomes):
    for outcome in outcomes:
        row = outcome.summary()
        json.dumps(row, allow_nan=False)
        total = sum(
            float(outcome.lost[..., k].mean()) * int(outcome.queries[k])
            for k in range(1, len(outcome.queries))
            if outcome.queries[k]
        )
        assert row["lost"] == pytest.approx(total / int(outcome.queries[1:].sum()), rel=1e-5)
        assert row["bound"] <= row["oracle"] <= row["lost"]
        assert row["regret"] == pytest.approx(row["lost"] - row["oracle"])
    assert outcomes[1].summary()["coverage"] is None
    assert outcomes[2].summary()["lost"] < outcomes[0].summary()["lost"], "a larger budget loses less"


def test_events_add_up(outcomes):
    for outcome in outcomes:
        rows, summary = outcome.events(), outcome.summary()
        json.dumps(rows, allow_nan=False)
        assert [row["step"] for row in rows] == outcome.replay.steps
        assert sum(row["dropped"] for row in rows) == summary["dropped"]
        assert sum(row["later_wanted"] for row in rows) == summary["later_wanted"]
        assert sum(row["queries_after"] for row in rows) == int(outcome.queries[1:].sum())
        assert sum(row["later_mass"] for row in rows) == pytest.approx(outcome.later_mass.sum().item(), rel=1e-4)


def test_progress_ends_at_one(trace):
    done = []
    compare_policies(trace, CELLS[:2], advance=done.append, **SMALL)
    assert sum(done) == pytest.approx(1)
    with pytest.raises(ValueError, match="nothing to replay"):
        compare_policies(trace, [])


def test_a_budget_that_is_never_reached(trace):
    (outcome,) = compare_policies(trace, [("beaconkv", 500)])
    row = outcome.summary()
    assert (row["evictions"], row["dropped"], row["lost"]) == (0, 0, None)
    assert outcome.events() == []


def test_a_diagnosis_counts_what_follows_the_prompt(trace):
    found = diagnose(trace, top_keys=10, distance=20)
    far = found.revisiting.is_global[:, :, 15:].float().mean(-1)
    assert torch.equal(found.frequency, far)
    summary = found.summary()
    json.dumps(summary, allow_nan=False)
    assert summary["global_share"] == pytest.approx(far.mean().item())
    assert summary["heads"] == far.numel()
    assert 0 < summary["heads_tested"] <= summary["heads"]
    assert all(row["count"] >= 32 for row in summary["clusters"])
    assert not math.isnan(summary["silhouette"])
    with pytest.raises(ValueError, match="choose a range within 0 to 120"):
        diagnose(trace, start=50, stop=50)
