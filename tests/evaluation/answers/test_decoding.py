import pytest
import torch

from beaconkv import BoundedCache
from beaconkv.evaluation.answers.decoding import Dice, Sampling, write_answers
from tests.tiny import VOCAB, greedy, prompt, tiny


def prompts_of(*lengths, seed=0):
    inputs = prompt(*lengths, seed=seed)
    return [ids[mask.bool()].tolist() for ids, mask in zip(*inputs.values(), strict=True)]


def write(model, prompts, sampling, stop=(), policy="beaconkv", budget=64, seeds=None, **settings):
    done, writing = {}, []
    cache = BoundedCache(model, policy, None if policy == "full" else budget, **settings)
    seeds = seeds or list(range(len(prompts)))
    write_answers(model, prompts, cache, sampling, seeds, stop, 0, lambda w: done.update({w.row: w}), writing.append)
    return done, writing


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("policy", ["full", "beaconkv", "streaming_llm"])
def test_greedy_is_what_generate_writes(family, policy):
    model, lengths = tiny(family), (70, 5, 33)
    done, _ = write(model, prompts_of(*lengths), Sampling(60), policy=policy)
    cache = BoundedCache(model, policy, None if policy == "full" else 64)
    expected = greedy(model, prompt(*lengths), cache, 60)
    assert [done[row].tokens for row in range(3)] == expected.tolist()
    assert all(w.capped and w.rows == 3 for w in done.values())
    layers = [layer.layer for layer in cache.layers if hasattr(layer, "layer")]
    assert [done[row].evictions for row in range(3)] == layers[0].num_evictions == cache.row_evictions()


@pytest.mark.parametrize("policy", ["full", "beaconkv", "h2o"])
def test_rows_that_end_leave_the_others_alone(policy):
    """Some rows stop early and are taken out; each row writes what it writes alone, up to its stop token."""
    model, lengths = tiny(), (70, 5, 33, 64, 12, 40)
    stop = [3, 17, 40, 51]
    together, writing = write(model, prompts_of(*lengths), Sampling(80), stop, policy)
    ends = [len(w.tokens) for w in together.values()]
    assert len(set(ends)) > 2
    assert writing[0] >= writing[-1] == 0
    for row, alone in enumerate(prompts_of(*lengths)):
        done, _ = write(model, [alone], Sampling(80), stop, policy)
        assert done[0].tokens == together[row].tokens
        assert (done[0].capped, done[0].evictions) == (together[row].capped, together[row].evictions)
        assert not set(stop) & set(done[0].tokens)
        assert together[row].capped == (len(together[row].tokens) == 80)


def test_sampling_depends_on_the_seed_and_nothing_else():
    model, lengths = tiny(), (20, 5, 33)
    sampling = Sampling(300, temperature=0.8, top_p=0.9)
    together, _ = write(model, prompts_of(*lengths), sampling, seeds=[7, 8, 9])
    again, _ = write(model, prompts_of(*lengths), sampling, seeds=[7, 8, 9])
    other, _ = write(model, prompts_of(*lengths), sampling, seeds=[1, 2, 9])
    alone, _ = write(model, prompts_of(*lengths)[2:], sampling, seeds=[9])
    assert together == again
    assert together[2].tokens == other[2].tokens == alone[0].tokens
    assert together[0].tokens != other[0].tokens


def test_samples_follow_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]]).expand(20_000, -1)
    for temperature, top_p in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.7), (2.0, 0.9)):
        sampling = Sampling(1, temperature, top_p)
        chosen = Dice(sampling, range(20_000), torch.device("cpu")).choose(logits, 0)
        probs = (logits[0] / temperature).softmax(-1)
        number = int((probs.cumsum(-1) - probs < top_p).sum())  # the smallest set of at least top_p
        probs[number:] = 0
        share = torch.bincount(chosen, minlength=5) / 20_000
        assert (share[number:] == 0).all()
        torch.testing.assert_close(share, probs / probs.sum(), atol=0.015, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(max_new_tokens=0), "max_new_tokens must be at least 1, got 0"),
        (dict(max_new_tokens=5, temperature=-1), "temperature must be >= 0, got -1"),
        (dict(max_new_tokens=5, temperature=float("nan")), "temperature must be >= 0, got nan"),
        (dict(max_new_tokens=5, top_p=0), "top_p must be in .0, 1., got 0"),
    ],
)
def test_bad_sampling_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)


def test_bad_prompts_are_refused():
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        write(tiny(), [[1], []], Sampling(3))
    with pytest.raises(ValueError, match="2 prompts need as many seeds, got 1"):
        write(tiny(), [[1], [2]], Sampling(3), seeds=[1])
    assert tiny().config.vocab_size == VOCAB
