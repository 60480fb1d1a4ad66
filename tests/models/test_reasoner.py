"""The bundled reasoner: what its card says, and that it reasons."""

import hashlib
import json
import re

import pytest

from beaconkv import BoundedCache
from beaconkv.evaluation import load_tasks
from beaconkv.evaluation.answers.decoding import Sampling, write_answers
from beaconkv.evaluation.tasks.reasoning import CHARACTERS, TASKS, draw_problem
from beaconkv.models import load, reasoner


@pytest.fixture(scope="module")
def loaded():
    return load("reasoner")


def test_size_and_hash():
    weights = reasoner.folder() / "model.safetensors"
    assert sum(path.stat().st_size for path in reasoner.folder().iterdir()) < 10_000_000
    card = (reasoner.folder() / "README.md").read_text()
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in card


def test_architecture(loaded):
    model, _ = loaded
    number = sum(p.numel() for p in model.parameters())
    assert 1_000_000 <= number <= 4_000_000
    assert f"{number:,}" in (reasoner.folder() / "README.md").read_text()
    assert type(model).__name__ == "Qwen3ForCausalLM"
    recipe = json.loads((reasoner.folder() / "recipe.json").read_text())
    rope = model.model.rotary_emb.inv_freq
    assert rope[1].item() == pytest.approx(recipe["rope_theta"] ** (-2 / recipe["head_dim"]))


def test_the_card_claims_98_percent():
    card = (reasoner.folder() / "README.md").read_text()
    shares = {task: float(re.search(rf"\| {task} \| ([\d.]+)%", card)[1]) for task in TASKS}
    assert min(shares.values()) >= 98, shares
    assert all(int(longest) >= 1500 for longest in re.findall(r"\| (\d+) \|$", card, flags=re.M))


def test_tokens_are_characters(loaded):
    _, tokenizer = loaded
    ids = tokenizer(CHARACTERS)["input_ids"]
    assert ids == list(range(len(CHARACTERS)))
    assert tokenizer.decode(ids) == CHARACTERS
    for kind in TASKS:
        problem = draw_problem(kind, 1)
        text = problem.prompt + problem.chain
        assert len(tokenizer(text)["input_ids"]) == len(text)
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("kind", TASKS)
def test_it_reasons(loaded, kind):
    """Exact answers with the full cache, and a small cache of recent entries loses them."""
    (task,) = load_tasks(f"{kind}@0.4", 6, seed=77)

    def right(policy, budget):
        texts = {}
        prompts = [loaded.tokenizer(p.prompt)["input_ids"] for p in task.problems]
        write_answers(
            loaded.model, prompts, BoundedCache(loaded.model, policy, budget), Sampling(task.max_new_tokens),
            range(6), [1], 0, lambda w: texts.update({w.row: (loaded.tokenizer.decode(w.tokens), w.capped)}),
        )  # fmt: skip
        return sum(task.grade(p, *texts[i])["correct"] for i, p in enumerate(task.problems))

    assert right("full", None) >= 5
    assert right("streaming_llm", 64) <= 1
