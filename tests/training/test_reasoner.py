"""The training script: what it grades, and that a stopped training goes on as if it had not been."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

TRAINING = Path(__file__).parents[2] / "training"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(TRAINING))
    import reasoner

    sys.path.remove(str(TRAINING))
    return reasoner


@pytest.fixture
def recipe(script):
    return script.Recipe(
        hidden=32, intermediate=48, layers=1, heads=2, kv_heads=1, head_dim=16, early_tokens=512, batch_tokens=900,
        total_steps=9, decay_steps=4, repeat_until=9.0, lookup_until=9.0, early_window=3, window=2, raise_at=0.0,
        threads=torch.get_num_threads(),
    )  # fmt: skip


def test_a_stopped_training_goes_on_as_if_it_had_not_been(script, recipe, tmp_path):
    whole = script.Training(recipe, tmp_path / "whole")
    whole.run(9)
    assert (whole.stage, whole.step) == ("tasks", 9)
    assert whole.level > 1
    for stop in (1, 4, 8):
        script.Training(recipe, tmp_path / str(stop)).run(stop)
        later = script.Training(recipe, tmp_path / str(stop))
        assert later.step == stop
        later.run(9)
        assert (later.stage, later.level, list(later.recent)) == (whole.stage, whole.level, list(whole.recent))
        for name, weight in whole.model.state_dict().items():
            assert torch.equal(weight, later.model.state_dict()[name]), name
    lines = (tmp_path / "whole" / "log.jsonl").exists()
    assert not lines  # a line every ten steps


def test_another_recipe_is_refused(script, recipe, tmp_path):
    script.Training(recipe, tmp_path).run(1)
    with pytest.raises(SystemExit, match="was made with another recipe: seed, muon_lr"):
        script.Training(replace(recipe, seed=1, muon_lr=0.5), tmp_path)


@pytest.mark.parametrize("stage", ["repeat", "lookup", "tasks"])
def test_what_is_graded_can_be_known(script, stage):
    """Graded characters follow from what stands before; a batch is the same every time, and fits."""
    recipe = script.Recipe()
    tokens, targets = script.draw_batch(recipe, 5, stage, 3)
    again = script.draw_batch(recipe, 5, stage, 3)
    assert torch.equal(tokens, again[0])
    assert torch.equal(targets, again[1])
    assert tokens.numel() <= (recipe.batch_tokens if stage == "tasks" else recipe.early_tokens)
    graded = targets != script.IGNORED
    assert torch.equal(tokens[graded], targets[graded])
    assert not graded[:, 0].any()
    assert (tokens[graded] != script.TOKEN["_"]).all()
    assert 0.1 < graded.float().mean() < 0.99


def test_lookups_are_graded_where_the_key_was_seen(script):
    import random

    for seed in range(50):
        text, graded = script.lookups(random.Random(seed))
        assert len(text) == len(graded)
        for i in range(1, len(text)):
            if graded[i] and not graded[i - 1]:  # the first graded character follows a key that stands earlier
                assert text[i - 1 : i + 1] in text[:i]
