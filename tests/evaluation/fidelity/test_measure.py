"""Fidelity against a slow oracle: the full-cache run in which evicted entries are hidden, in float64."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import BoundedCache, policies
from beaconkv.evaluation.cells import Cell, make_cells
from beaconkv.evaluation.fidelity.head import OutputHead
from beaconkv.evaluation.fidelity.measure import FidelitySettings, measure, work
from beaconkv.evaluation.fidelity.reference import sampled_steps
from beaconkv.evaluation.fidelity.texts import Text
from beaconkv.instruments import bounded_layers
from tests.hidden import Recorder, full_logits
from tests.tiny import VOCAB, tiny

EXACT = ("kl", "agreement", "nll_full", "nll", "mass_lost")


def text(prompt, total, seed=0, name=None):
    ids = torch.randint(1, VOCAB, (total,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Text(name or f"{prompt}-{total}-{seed}", tuple(ids), prompt)


@torch.no_grad()
def oracle(model, cell, sample, every, seed):
    """What a record must say, from two runs without any cache of ours, and the list of what was evicted when."""
    recorder, ids = Recorder(), torch.tensor([sample.ids[:-1]])
    with BoundedCache(model, cell.policy, cell.budget, on_evict=recorder, **cell.overrides) as cache:
        for part in ids.split([sample.prompt_length, *[1] * (sample.predictions - 1)], dim=1):
            model(part, past_key_values=cache, use_cache=True)
        layers = [i for i, _ in bounded_layers(cache)]
    first = sample.prompt_length - 1
    bounded = full_logits(model, sample.ids[:-1], recorder, 0, layers)[first:].double()
    out = model(ids, use_cache=False, output_attentions=True)
    p, q = out.logits[0, first:].double().log_softmax(-1), bounded.log_softmax(-1)
    target = torch.tensor(sample.ids[first + 1 :]).unsqueeze(1)
    at = [first + step for step in sampled_steps(sample.predictions, every, seed)]
    lost = []
    for layer in layers:
        weights = out.attentions[layer][0]  # (H, T, T)
        kv_heads, size = model.config.num_key_value_heads, len(sample.ids) - 1
        last = recorder.last_seen(layer, 0, kv_heads, size).repeat_interleave(weights.shape[0] // kv_heads, 0)
        gone = last.unsqueeze(1) < torch.arange(size).view(1, -1, 1)
        lost.append((weights * gone).sum(-1)[:, at].mean().item())
    return {
        "kl": (p.exp() * (p - q)).sum(-1).mean().item(),
        "agreement": (p.argmax(-1) == q.argmax(-1)).double().mean().item(),
        "nll_full": -p.gather(1, target).mean().item(),
        "nll": -q.gather(1, target).mean().item(),
        "mass_lost": sum(lost) / len(lost),
    }


def assert_alike(found, expected, atol=2e-4):
    for name in EXACT:
        assert found[name] == pytest.approx(expected[name], abs=atol), name


@pytest.mark.parametrize("family", ["llama", "qwen3-yarn", "smollm3", "gemma3", "gpt-oss", "glm4"])
def test_a_record_is_what_the_oracle_finds(family):
    model, cells = tiny(family, "eager"), make_cells(["beaconkv", "streaming_llm"], [40], protect=8)
    sample = text(17, 130)
    for cell, record in zip(cells, measure(model, [sample], cells, FidelitySettings(mass_every=3)), strict=True):
        expected = oracle(model, cell, sample, 3, 0)
        assert_alike(record, expected)
        assert record["kl"] > 0.002
        assert record["mass_lost"] > 0.01
        assert record["evictions"] > 10


CELLS = [Cell(name, 48, {"protect": 8}) for name, cls in policies().items() if cls.evicts]
CELLS += [Cell("rkv:code", 160), Cell("rpc", 48, {"protect": 8, "growth": 5})]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.policy}-{cell.overrides}")
def test_every_method(cell):
    model, sample = tiny("llama", "eager"), text(50, 190)
    (record,) = measure(model, [sample], [cell])
    assert_alike(record, oracle(model, cell, sample, 8, 0))
    assert record["evictions"] > 0


@settings(max_examples=10)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 90)), min_size=1, max_size=4),
    budget=st.integers(24, 60),
    scope=st.sampled_from(["total", "output"]),
    rows=st.integers(1, 4),
    chunk=st.sampled_from([1, 13, 512]),
    every=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
def test_any_lengths_in_any_batch(lengths, budget, scope, rows, chunk, every, seed):
    model, cells = tiny("llama", "eager"), make_cells(["beaconkv"], [budget], protect=8, scope=scope)
    texts = [text(prompt, prompt + more, seed + i, str(i)) for i, (prompt, more) in enumerate(lengths)]
    how = FidelitySettings(rows=rows, chunk=chunk, mass_every=every, seed=seed)
    for sample, record in zip(texts, measure(model, texts, cells, how), strict=True):
        assert (record["text"], record["prompt_tokens"]) == (sample.name, sample.prompt_length)
        assert record["tokens"] == sample.predictions
        expected = oracle(model, cells[0], sample, every, seed)
        if record["mass_lost"] is None:
            assert sampled_steps(sample.predictions, every, seed) == []
            record["mass_lost"] = expected["mass_lost"] = 0
        assert_alike(record, expected)


@pytest.mark.parametrize("policies", [["full"], ["beaconkv"]])
def test_nothing_is_lost_where_nothing_is_evicted(policies):
    model = tiny("llama")
    texts = [text(9, 200), text(40, 160, seed=1)]
    for record in measure(model, texts, make_cells(policies, [256])):
        assert 0 <= record["kl"] < 1e-6
        assert record["agreement"] == 1
        assert record["mass_lost"] == 0
        assert record["evictions"] == 0
        assert record["nll"] == pytest.approx(record["nll_full"], abs=1e-5)


def test_a_batch_gives_each_text_what_it_gives_alone():
    model, cells = tiny("qwen3"), make_cells(["beaconkv", "recent"], [40, 56], protect=8)
    texts = [text(30, 200), text(5, 90, 1), text(61, 231, 2), text(30, 180, 3)]
    together = measure(model, texts, cells, FidelitySettings(rows=4))
    alone = measure(model, texts, cells, FidelitySettings(rows=1))
    for a, b in zip(together, alone, strict=True):
        for name in ("text", "policy", "budget", "evictions", "kv_bytes"):
            assert a[name] == b[name]
        assert_alike(a, b, atol=1e-5)
        assert (a["rows"], b["rows"]) == (4, 1)


@pytest.mark.parametrize("family", ["llama", "qwen3-yarn"])
@pytest.mark.parametrize("together", [2, 3, 99])
def test_methods_side_by_side_find_what_each_finds_alone(family, together):
    model = tiny(family)
    names = [name for name, cls in policies().items() if cls.evicts and not name.startswith("kmeans")]
    cells = make_cells([*names, "full"], [40, 56], protect=8)
    texts = [text(30, 120), text(5, 70, 1), text(61, 131, 2)]
    alone = measure(model, texts, cells, FidelitySettings(rows=3))
    beside = measure(model, texts, cells, FidelitySettings(rows=3, together=together))
    for a, b in zip(alone, beside, strict=True):
        for name in ("text", "policy", "budget", "tokens", "evictions", "kv_bytes", "state_bytes", "peak_kv_bytes"):
            assert a[name] == b[name], (a["policy"], name)
        assert_alike(a, b, atol=1e-5)
        assert a["tokens_per_second"] > 0
    lonely = {(b["policy"], b["budget"]) for b in beside if b["tokens_per_second"] is not None}
    assert len(lonely) <= 1  # what was left for the last group


def test_side_by_side_is_refused_where_it_cannot_work():
    model = tiny("gemma3")
    cells = make_cells(["beaconkv", "recent"], [40], protect=8)
    with pytest.raises(ValueError, match="every layer is bounded"):
        measure(model, [text(9, 30)], cells, FidelitySettings(together=2))


def test_costs_are_those_of_the_cache():
    model, sample = tiny("llama"), text(100, 190)
    (cell,) = make_cells(["beaconkv"], [48], protect=8)
    (record,) = measure(model, [sample], [cell])
    with cell.new_cache(model) as cache, torch.no_grad():
        for part in torch.tensor([sample.ids[:-1]]).split([100, *[1] * 89], dim=1):
            model(part, past_key_values=cache, use_cache=True)
        stats = cache.stats
    for name in ("evictions", "kv_bytes", "state_bytes", "peak_kv_bytes"):
        assert record[name] == getattr(stats, name)
    assert record["kv_bytes"] == 2 * 3 * 2 * 48 * 8 * 4
    assert record["peak_kv_bytes"] > record["kv_bytes"]  # the prompt was longer than the budget


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    model, cells = tiny("llama"), make_cells(["beaconkv", "streaming_llm"], [40], protect=8)
    texts, how = [text(8, 120, seed) for seed in range(3)], FidelitySettings(rows=2)
    whole = measure(model, texts, cells, how, records=tmp_path / "whole.jsonl")
    path, told = tmp_path / "records.jsonl", []

    def kill(tokens):
        told.append(tokens)
        if sum(told) > 300:  # the first batch of the second method is under way
            raise KilledError

    with pytest.raises(KilledError):
        measure(model, texts, cells, how, records=path, advance=kill)
    done = path.read_text()
    assert len(done.splitlines()) == 2
    path.write_text(done + '{"key": "cut o')
    told.clear()
    again = measure(model, texts, cells, how, records=path, advance=told.append)
    assert sum(told) == work(texts, cells) == 3 * 2 * 112
    assert path.read_text().startswith(done)
    assert len(path.read_text().splitlines()) == 6
    for a, b in zip(whole, again, strict=True):
        assert {**a, "tokens_per_second": 0} == {**b, "tokens_per_second": 0}
    assert measure(model, texts, cells, how, records=path) == again
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()][4:] == [texts[2].name] * 2


def test_what_changes_the_result_is_measured_anew(tmp_path):
    model, path = tiny("llama"), tmp_path / "records.jsonl"
    texts, cells = [text(8, 80)], make_cells(["beaconkv"], [40], protect=8)

    def lines(*args, **kwargs):
        measure(model, *args, records=path, **kwargs)
        return len(path.read_text().splitlines())

    assert lines(texts, cells) == 1
    assert lines(texts, cells, FidelitySettings(rows=1, chunk=7)) == 1
    assert lines(texts, cells, FidelitySettings(mass_every=4)) == 2
    assert lines(texts, cells, FidelitySettings(seed=1)) == 3
    assert lines(texts, make_cells(["beaconkv:n_recent=4"], [40], protect=8)) == 4
    assert lines(texts, make_cells(["beaconkv"], [40], protect=9)) == 5
    assert lines([dataclasses.replace(texts[0], prompt_length=9)], cells) == 6
    assert lines(texts, cells, label="another model") == 7


def test_mass_can_be_switched_off():
    (record,) = measure(tiny("llama"), [text(8, 80)], make_cells(["recent"], [48]), FidelitySettings(mass_every=0))
    assert record["mass_lost"] is None
    assert record["kl"] > 0


@given(n=st.integers(1, 200), more=st.integers(0, 50), every=st.integers(1, 12), seed=st.integers(0, 99))
def test_sampled_steps(n, more, every, seed):
    steps = sampled_steps(n, every, seed)
    assert steps == [step for step in sampled_steps(n + more, every, seed) if step < n]
    whole, rest = divmod(n - 1, every)  # one in each stretch of ``every`` steps; perhaps one in the last, shorter
    assert [(step - 1) // every for step in steps] in (list(range(whole)), list(range(whole + (rest > 0))))
    assert all(1 <= step < n for step in steps)


def test_cells_and_settings_refuse_early():
    assert [(c.policy, c.budget) for c in make_cells(["full", "beaconkv", "recent:16"], [64, 96])] == [
        ("full", None), ("beaconkv", 64), ("beaconkv", 96), ("recent:16", 64), ("recent:16", 96),
    ]  # fmt: skip
    (own,) = make_cells(["rpc:growing-1024"], [64, 96])  # it brings its own budget
    assert (own.budget, own.schedule.scope) == (1024, "output")
    for arguments, message in [
        ((["best"], [64]), "unknown policy 'best'"),
        ((["beaconkv"], [30]), "leave no room"),
        ((["beaconkv", "beaconkv"], [64]), "policies repeat"),
        ((["beaconkv"], []), "policy 'beaconkv' needs at least one budget"),
        (([], [64]), "nothing to measure"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_cells(*arguments)
    for name, value in (("rows", 0), ("chunk", 0), ("mass_every", -1)):
        with pytest.raises(ValueError, match=f"{name} must be at least"):
            FidelitySettings(**{name: value})
    for prompt, total in ((0, 5), (5, 5)):
        with pytest.raises(ValueError, match="at least one token"):
            text(prompt, total)
    with pytest.raises(ValueError, match="names of their own"):
        measure(tiny("llama"), [text(5, 9), text(5, 9)], make_cells(["recent"], [64]))
    with pytest.raises(ValueError, match="prompt of 60 tokens as prefix"):
        measure(tiny("llama"), [text(60, 90)], make_cells(["recent"], [64], prefix="prompt"))


def test_the_head_makes_the_models_own_logits():
    ids = torch.arange(1, 9).view(1, -1)
    model = tiny("gemma3")
    plain = model.config.final_logit_softcapping
    try:
        for softcap in (None, 3.0):
            model.config.final_logit_softcapping = softcap
            OutputHead(model, ids)
    finally:
        model.config.final_logit_softcapping = plain

    class Odd(type(tiny("llama"))):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 1.001
            return out

    odd = Odd(tiny("llama").config).eval()
    with pytest.raises(ValueError, match="Odd computes its logits in a way that is not supported"):
        OutputHead(odd, ids)


def test_logits_that_are_not_finite_are_refused():
    model = type(tiny("llama"))(tiny("llama").config).eval()
    model.lm_head.weight.data[3] = math.inf
    with pytest.raises(ValueError, match=r"not finite|not supported"):
        measure(model, [text(5, 60)], make_cells(["streaming_llm"], [40], protect=8))
