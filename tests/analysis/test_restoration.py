"""Putting entries back, against a full run without any cache in which entries are hidden."""

import pytest
import torch

from beaconkv.analysis.losses import compare_policies
from beaconkv.analysis.replay import replay
from beaconkv.analysis.restoration import missed_soon, most_missed, restore
from tests.analysis.test_replay import direct_weights
from tests.analysis.traces import tiny_trace
from tests.hidden import Recorder, full_logits
from tests.tiny import tiny

SMALL = dict(prefix=2, protect=6)
WINDOW = 20


def divergence(model, trace, step, hidden, window):
    """KL from the full run, mean over the window; hidden (L, H_kv, T) bool, from the query after ``step`` on."""
    recorder = Recorder()
    for layer, heads in enumerate(hidden):
        recorder.gone.append((layer, 0, step, [head.nonzero().flatten() for head in heads]))
    layers = list(range(hidden.shape[0]))
    part = slice(step + 1, step + 1 + window)
    full = full_logits(model, trace.tokens, Recorder(), 0, layers)[part].double().log_softmax(-1)
    other = full_logits(model, trace.tokens, recorder, 0, layers)[part].double().log_softmax(-1)
    return (full.exp() * (full - other)).sum(-1).mean().item()


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen3-yarn"])
@pytest.mark.parametrize("event", [1, 4])
def test_divergences_are_those_of_a_run_with_hidden_entries(family, kernel, event, tmp_path):
    model = tiny(family, kernel)
    trace = tiny_trace(tmp_path, family, 110, 20, model=model)
    one = replay(trace, "beaconkv", 40, **SMALL)
    number = one.event_of()
    step = one.steps[event - 1]
    here = number == event
    positions = [j for j in range(step) if here[:, :, j].any()][:2]
    found = restore(model, trace, one, event, positions, WINDOW)
    until = (number > 0) & (number <= event)
    assert (found.step, found.window) == (step, WINDOW)
    assert found.evicted == pytest.approx(divergence(model, trace, step, until, WINDOW), abs=1e-4, rel=1e-3)
    assert found.before == pytest.approx(divergence(model, trace, step, until & ~here, WINDOW), abs=1e-4, rel=1e-3)
    for position in positions:
        back = torch.zeros_like(here)
        back[:, :, position] = here[:, :, position]
        expected = divergence(model, trace, step, until & ~back, WINDOW)
        assert found.single[position] == pytest.approx(expected, abs=1e-4, rel=1e-3)
    assert found.evicted > 1e-3
    if event == 1:
        assert found.before == pytest.approx(0, abs=1e-5)


def test_most_missed_entries_come_first(tmp_path):
    trace = tiny_trace(tmp_path, length=110)
    (outcome,) = compare_policies(trace, [("streaming_llm", 40)], **SMALL)
    number = outcome.replay.event_of()
    order = most_missed(outcome.later_mass, number, 2, 5)
    mass = [(outcome.later_mass * (number == 2))[:, :, j].sum().item() for j in range(110)]
    assert [mass[j] for j in order] == sorted(mass, reverse=True)[: len(order)]
    assert len(order) == 5


def test_what_is_missed_soon_equals_slow_loops(tmp_path):
    trace = tiny_trace(tmp_path, length=80)
    one = replay(trace, "recent:16", 40, **SMALL)
    found = missed_soon(trace, one, 9)
    for number, layer in enumerate(trace.info.layers):
        weights = direct_weights(trace, layer).float()
        for head in range(2):
            for j in range(80):
                step = int(one.dropped[number, head, j])
                expected = weights[3 * head : 3 * head + 3, step + 1 : step + 10, j].sum() if step < 80 else 0
                assert found[number, head, j].item() == pytest.approx(float(expected), abs=1e-5)
    assert found.max() > 0.05


def test_what_cannot_be_put_back_is_refused(tmp_path):
    model = tiny()
    trace = tiny_trace(tmp_path, length=60)
    one = replay(trace, "beaconkv", 40, **SMALL)
    kept = next(j for j in range(30) if not (one.event_of()[:, :, j] == 1).any())
    for event, positions, message in (
        (0, [], "event must be"),
        (99, [], "event must be"),
        (1, [kept], "dropped no entry"),
    ):
        with pytest.raises(ValueError, match=message):
            restore(model, trace, one, event, positions)
    with pytest.raises(ValueError, match="all 3 layers and 2 KV heads"):
        restore(model, trace, replay(trace, "beaconkv", 40, layers=[0], **SMALL), 1, [])
    gemma = tiny_trace(tmp_path, "gemma3", 60)
    with pytest.raises(ValueError, match="every layer is full attention"):
        restore(tiny("gemma3"), gemma, replay(gemma, "beaconkv", 40, **SMALL), 1, [])
    ends = tiny_trace(tmp_path, length=one.steps[0] + 1)
    with pytest.raises(ValueError, match="no token follows"):
        restore(model, ends, replay(ends, "beaconkv", 40, **SMALL), 1, [])
