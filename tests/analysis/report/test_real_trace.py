"""The page of a real trace: numbers on it are those of the trace, computed another way."""

import numpy as np
import pytest
import torch

from beaconkv.analysis.diagnosis import diagnose
from beaconkv.analysis.losses import compare_policies
from beaconkv.analysis.report.data import choose_heads, page_data
from beaconkv.analysis.report.page import render_page
from tests.analysis.test_replay import direct_weights
from tests.analysis.traces import tiny_trace

SMALL = dict(prefix=2, protect=6)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    trace = tiny_trace(tmp_path_factory.mktemp("traces"), "qwen3", 120, 15)
    outcomes = compare_policies(trace, [("beaconkv", 40), ("streaming_llm", 40)], **SMALL)
    return trace, diagnose(trace, top_keys=10, distance=20), outcomes


def test_what_the_page_says_is_what_the_trace_says(parts):
    trace, found, outcomes = parts
    data = page_data(trace, found, outcomes, heads=7)
    assert "".join(data["tokens"]) == "".join(chr(0x100 + i) for i in trace.tokens)
    assert len(data["heads"]) == 7
    for number, head in enumerate(data["heads"]):
        weights = direct_weights(trace, head["layer"])[head["head"]].float()
        assert head["kv_head"] == head["head"] // trace.info.group
        for t in (0, 3, 50, 119):
            most = min(8, t + 1)
            expected = weights[t, : t + 1].topk(most)
            assert data["targets"][number, t, :most].tolist() == expected.indices.tolist()
            np.testing.assert_allclose(data["weights"][number, t, :most], expected.values.numpy(), atol=1e-5)
        layer = found.revisiting.layers.index(head["layer"])
        for policy, outcome in zip(data["policies"], outcomes, strict=True):
            np.testing.assert_array_equal(policy["lost"][number], outcome.lost[layer, head["head"]].numpy())
            np.testing.assert_array_equal(policy["dropped"], outcome.replay.dropped.numpy())
    assert data["policies"][1]["coverage"] is None
    assert data["policies"][0]["coverage"].shape == (7, 120)


def test_the_page_renders_and_says_what_was_lost(parts):
    trace, found, outcomes = parts
    page = render_page(page_data(trace, found, outcomes))
    for outcome in outcomes:
        assert f"{100 * outcome.summary()['lost']:.1f}%" in page


def test_a_trace_of_some_heads_keeps_their_numbers(tmp_path):
    trace = tiny_trace(tmp_path, "llama", 90, 15, layers=[2], kv_heads=[1])
    found = diagnose(trace, top_keys=10, distance=20)
    outcomes = compare_policies(trace, [("beaconkv", 40)], **SMALL)
    data = page_data(trace, found, outcomes)
    assert {(h["layer"], h["head"], h["kv_head"]) for h in data["heads"]} == {(2, 3, 0), (2, 4, 0), (2, 5, 0)}
    assert np.isnan(data["frequency"][:, :3]).all()
    assert not np.isnan(data["frequency"][:, 3:]).any()
    assert "</html>" in render_page(data)


def test_a_page_without_any_eviction(tmp_path):
    trace = tiny_trace(tmp_path, "llama", 60, 15)
    outcomes = compare_policies(trace, [("beaconkv", 200)])
    data = page_data(trace, diagnose(trace), outcomes)
    assert "nothing was evicted" in " ".join(data["facts"])
    assert "</html>" in render_page(data)


def test_outcomes_of_other_layers_are_refused(parts):
    trace, found, _ = parts
    other = compare_policies(trace, [("beaconkv", 40)], layers=[0], **SMALL)
    with pytest.raises(ValueError, match=r"has layers \[0\], the diagnosis \[0, 1, 2\]"):
        page_data(trace, found, other)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 99])
def test_heads_are_chosen_by_their_share_one_of_each_layer_first(most):
    frequency = torch.tensor([[0.1, 0.2, 0.0], [0.9, 0.8, 0.7], [0.3, 0.3, 0.1]])
    order = [(1, 0), (2, 0), (0, 1), (1, 1), (1, 2), (2, 1), (0, 0), (2, 2), (0, 2)]
    assert choose_heads(frequency, most) == sorted(order[:most])
