"""Local and global queries against a slow direct computation."""

import pytest
import torch

from beaconkv.analysis import attention
from beaconkv.analysis.attention import attention_blocks
from beaconkv.analysis.revisiting import find_revisits, mean_distance
from tests.analysis.test_replay import direct_weights
from tests.analysis.traces import tiny_trace


@pytest.fixture(scope="module", params=["llama", "phi3"])
def trace(request, tmp_path_factory):
    return tiny_trace(tmp_path_factory.mktemp("traces"), request.param, 130, 15)


@pytest.mark.parametrize("top_keys", [1, 7, 40, 150])
def test_mean_distance_equals_slow_loops(trace, top_keys):
    found = find_revisits(trace, top_keys=top_keys, distance=30, targets=3)
    for number, layer in enumerate(trace.info.layers):
        weights = direct_weights(trace, layer)
        for head in range(trace.info.num_heads):
            for t in range(0, 130, 3):
                best = weights[head, t, : t + 1].topk(min(top_keys, t + 1)).indices
                mean = (t - best).double().mean().item()
                assert found.mean_distance[number, head, t] == pytest.approx(mean, abs=1e-4)
                assert bool(found.is_global[number, head, t]) == (mean > 30)


def test_targets_are_the_strongest_keys(trace):
    found = find_revisits(trace, targets=4)
    for number, layer in enumerate(trace.info.layers):
        weights = direct_weights(trace, layer).float()
        for t in range(130):
            most = min(4, t + 1)
            expected = weights[:, t, : t + 1].topk(most, dim=-1)
            torch.testing.assert_close(found.weights[number, :, t, :most], expected.values, atol=1e-5, rtol=1e-4)
            assert torch.equal(found.targets[number, :, t, :most].long(), expected.indices)
            assert (found.targets[number, :, t, most:] == -1).all()
            assert (found.weights[number, :, t, most:] == 0).all()


def test_frequency_of_a_window(trace):
    found = find_revisits(trace, top_keys=10, distance=20)
    assert found.frequency().shape == (len(trace.info.layers), trace.info.num_heads)
    window = found.is_global[:, :, 40:90].float().mean(-1)
    assert torch.equal(found.frequency(40, 90), window)
    assert 0 < window.mean() < 1


@pytest.mark.parametrize("elements", [1, 700, 1 << 22])
def test_blocks_are_the_whole_attention_whatever_their_size(trace, elements, monkeypatch):
    monkeypatch.setattr(attention, "ELEMENTS", elements)
    layer, cuts = trace.info.layers[-1], (1, 40, 77, 129)
    expected = direct_weights(trace, layer).float()
    next_start = 3
    for start, weights in attention_blocks(trace, layer, 3, 120, cuts):
        assert start == next_start
        n, size = weights.shape[2:]
        assert size == start + n
        assert not any(start < cut < start + n for cut in cuts)
        torch.testing.assert_close(weights.flatten(0, 1), expected[:, start : start + n, :size], atol=1e-5, rtol=1e-4)
        next_start = start + n
    assert next_start == 120


def test_counts_below_one_are_refused(trace):
    for name in ("top_keys", "targets"):
        with pytest.raises(ValueError, match=name):
            find_revisits(trace, **{name: 0})
    with pytest.raises(ValueError, match="layer 9 was not recorded"):
        find_revisits(trace, layers=[9])


def test_keys_after_a_query_never_count():
    """Where attention underflows to zero, any key ties with those that the query cannot see."""
    weights = torch.zeros(1, 64, 400)
    weights[..., 0] = 1
    found = mean_distance(weights, 336, 150)
    at = torch.arange(336, 400)
    assert (found >= 0).all()
    assert (found <= at).all()
    one = torch.zeros(1, 1, 300)
    one[0, 0, [10, 20]] = 0.5
    assert mean_distance(one, 299, 2).item() == (289 + 279) / 2


def test_a_distance_below_one_is_refused(trace):
    for distance in (0, -3, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="distance must be at least 1"):
            find_revisits(trace, distance=distance)
