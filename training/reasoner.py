"""Trains the bundled reasoner on the CPU: ``python training/reasoner.py --out training/run``.

The stages exist because a model must learn lookups before anything that is built on them:

    repeat    random strings, repeated: the heads that find an earlier occurrence form
    lookup    tables and lists, and dense lookups in them; which key comes next is not graded
    tasks     whole problems, of the next size when enough of the last ones were right in every character

The first two end when their mean loss is low enough; their batches are small, since they need many steps
rather than many tokens.

Every batch is drawn from (seed, step), and a checkpoint holds all else, so that a training that was stopped resumes
without a difference, and one command gives one model.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import deque
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from beaconkv.evaluation.tasks.reasoning import CHARACTERS, PAD, SIZES, TASKS, Size, draw_problem
from beaconkv.models.alphabet import CIRCLED, DIGITS, GREEK, LOWER, MARKS, OPERATIONS, UPPER

TOKEN = {character: i for i, character in enumerate(CHARACTERS)}
STAGES = ("repeat", "lookup", "tasks")
LEVELS = 20
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    """All settings that the model depends on."""

    seed: int = 0
    hidden: int = 128
    intermediate: int = 384
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 1e6
    qk_norm: float = 1.5
    early_tokens: int = 4096
    batch_tokens: int = 10240
    repeat_until: float = 0.5
    lookup_until: float = 0.1
    total_steps: int = 1650
    decay_steps: int = 450
    polish_steps: int = 350
    polish_rate: float = 0.4
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.01
    raise_at: float = 0.8
    window: int = 30
    late_level: int = 8
    late_raise_at: float = 0.4
    late_window: int = 12
    early_window: int = 20
    bf16: bool = True
    threads: int = 2


def build_model(recipe: Recipe) -> Qwen3ForCausalLM:
    """A fresh model."""
    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=len(CHARACTERS),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=8192,
        rope_theta=recipe.rope_theta,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=TOKEN["\n"],
        pad_token_id=TOKEN[PAD],
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name or "k_norm" in name:  # sharp enough from the start to pick one of many tokens
                parameter.fill_(recipe.qk_norm)
            elif "o_proj" in name or "down_proj" in name:  # at first the token's own embedding dominates
                parameter.zero_()
            elif "embed" in name:
                parameter.normal_()
    return model


def repeated(rng: random.Random) -> tuple[str, list[bool]]:
    """A random string, repeated; all but its first occurrence is graded."""
    letters = LOWER + UPPER + CIRCLED + GREEK + DIGITS + OPERATIONS + MARKS
    word = "".join(rng.sample(letters, rng.randint(2, 40)))  # no letter twice: one earlier place to find
    times = max(2, 120 // len(word))
    return word * times, [False] * len(word) + [True] * (len(word) * (times - 1))


def lookups(rng: random.Random) -> tuple[str, list[bool]]:
    """A table and a list, then lookups of random keys; the keys are not graded."""
    letters = rng.sample(range(24), rng.randint(4, 24))
    kind = rng.randint(0, 2)
    rows = {}
    for i in letters:
        work = rng.choice(OPERATIONS) + rng.choice("123456789") + rng.choice("123456789")
        rows[LOWER[i]] = work + ("".join(UPPER[j] for j in rng.choices(letters, k=2)) if kind else "")
        if kind == 2 and rng.random() < 0.4:
            rows[LOWER[i]] = "<"
    order = "[" + "".join(CIRCLED[i] for i in rng.sample(letters, rng.randint(2, len(letters)))) + "]"
    parts = [
        *(key + row for key, row in rows.items()),
        order,
        "?" + "".join(UPPER[j] for j in rng.choices(letters, k=3)),
    ]
    rng.shuffle(parts)
    text = ";".join(parts) + "|"
    graded = [False] * len(text)
    notes: dict[str, str] = {}
    for _ in range(rng.randint(20, 60)):
        what = rng.random()
        if what < 0.5:
            key = rng.choice(list(rows))
            text, answer = text + key, rows[key]
        elif what < 0.7:
            at = rng.randrange(len(order) - 1)
            text, answer = text + order[at], order[at + 1]
        elif what < 0.85 or not notes:
            note = GREEK[rng.randrange(24)]
            known = note in notes
            notes.setdefault(note, rng.choice(DIGITS))
            text, answer = text + note, notes[note]
            if not known:
                graded += [False, False]
                text, answer = text + answer, ""
                continue
        else:
            note = rng.choice(list(notes))
            text, answer = text + note, notes[note]
        graded += [False] + [True] * len(answer)
        text += answer
    return text, graded


def task(rng: random.Random, kinds: list[str], level: int) -> tuple[str, list[bool]]:
    """A problem of a level up to this one, half of them of this one; its whole chain is graded."""
    kind = rng.choice(kinds)
    at = (level if rng.random() < 0.5 else rng.randint(1, level)) / LEVELS
    full = SIZES[kind]
    most = max(1, round(full.most * min(1, 0.3 + at)))
    least = rng.choice([1, min(full.least, most)])
    rules = rng.choice([full.rules, max(5, round(full.rules * at))])
    problem = draw_problem(kind, rng.getrandbits(64), Size(rules, max(2, round(full.steps * at)), least, most))
    return problem.prompt + problem.chain, [False] * len(problem.prompt) + [True] * len(problem.chain)


def draw_batch(recipe: Recipe, step: int, stage: str, level: int) -> tuple[Tensor, Tensor]:
    """The batch of a step: tokens (B, T), and targets (B, T) with IGNORED where nothing is graded."""
    rng = random.Random(f"{recipe.seed}/{step}")
    rows, longest = [], 0
    most = recipe.batch_tokens if stage == "tasks" else recipe.early_tokens
    while True:
        if stage == "repeat":
            row = repeated(rng)
        elif stage == "lookup" or rng.random() < 0.05:
            row = lookups(rng)
        else:
            # Searches are the hardest: there are more of them after the other tasks are learned.
            row = task(rng, list(TASKS) if step < recipe.total_steps else [*TASKS, "search"], level)
        longest = max(longest, len(row[0]))
        if rows and longest * (len(rows) + 1) > most:
            break
        rows.append(row)
    width = max(len(text) for text, _ in rows)
    tokens = torch.full((len(rows), width), TOKEN[PAD])
    targets = torch.full((len(rows), width), IGNORED)
    for i, (text, graded) in enumerate(rows):
        ids = torch.tensor([TOKEN[character] for character in text])
        tokens[i, : len(ids)] = ids
        targets[i, : len(ids)] = torch.where(torch.tensor(graded), ids, IGNORED)
    return tokens, targets


def optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers" not in n]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.weight_decay, momentum=0.95),
        torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate(recipe: Recipe, step: int) -> float:
    """Factor on the learning rates: warm up, hold, decay to 0; then once more from a lower value."""
    left = recipe.total_steps - step
    if left <= 0:
        return recipe.polish_rate * max(left + recipe.polish_steps, 1) / recipe.polish_steps
    return min(1.0, (step + 1) / 50, left / recipe.decay_steps)


class Training:
    """A training that writes checkpoints and a log, and resumes from them."""

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.model = build_model(recipe)
        self.optimizers = optimizers(self.model, recipe)
        self.step, self.stage, self.level = 0, STAGES[0], 1
        self.recent: deque[float] = deque(maxlen=max(recipe.early_window, recipe.window, recipe.late_window))
        out.mkdir(parents=True, exist_ok=True)
        checkpoint = out / "checkpoint.pt"
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            if state["recipe"] != asdict(recipe):
                changed = [f.name for f in fields(recipe) if state["recipe"].get(f.name) != getattr(recipe, f.name)]
                raise SystemExit(f"{checkpoint} was made with another recipe: {', '.join(changed)}")
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.step, self.stage, self.level = state["step"], state["stage"], state["level"]
            self.recent.extend(state["recent"])

    def save(self) -> None:
        """Write a checkpoint, atomically."""
        state = {
            "recipe": asdict(self.recipe),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "stage": self.stage,
            "level": self.level,
            "recent": list(self.recent),
        }
        torch.save(state, self.out / "checkpoint.new")
        (self.out / "checkpoint.new").replace(self.out / "checkpoint.pt")

    def run(self, until: int, save_every: int = 100) -> None:
        """Train up to a step."""
        start, tokens_seen = time.perf_counter(), 0
        while self.step < until:
            tokens, targets = draw_batch(self.recipe, self.step, self.stage, self.level)
            loss, right = self.learn(tokens, targets)
            tokens_seen += tokens.numel()
            self.step += 1
            self.promote(loss, right)
            if self.step % 10 == 0:
                seconds = time.perf_counter() - start
                line = dict(
                    step=self.step, stage=self.stage, level=self.level, loss=round(loss, 5), right=round(right, 4)
                )
                line |= dict(shape=list(tokens.shape), tokens_per_second=round(tokens_seen / seconds))
                with open(self.out / "log.jsonl", "a") as log:
                    log.write(json.dumps(line) + "\n")
                print(line, flush=True)
                start, tokens_seen = time.perf_counter(), 0
            if self.step % save_every == 0 or self.step == until:
                self.save()

    def promote(self, loss: float, right: float) -> None:
        """Go to the next stage or level, if the last steps were good enough."""
        recipe, early = self.recipe, self.stage != "tasks"
        self.recent.append(loss if early else right)
        # Long chains are rarely right in every character before the rate decays: from some level on, less is enough.
        late = self.level >= recipe.late_level
        window = recipe.early_window if early else recipe.late_window if late else recipe.window
        mean = sum(list(self.recent)[-window:]) / window
        if len(self.recent) < window:
            return
        if early:
            if mean <= (recipe.repeat_until if self.stage == "repeat" else recipe.lookup_until):
                self.stage = STAGES[STAGES.index(self.stage) + 1]
                self.recent.clear()
        elif mean >= (recipe.late_raise_at if late else recipe.raise_at) and self.level < LEVELS:
            self.level += 1
            self.recent.clear()

    def learn(self, tokens: Tensor, targets: Tensor) -> tuple[float, float]:
        """One step; the loss, and the share of sequences right in every graded character."""
        factor = rate(self.recipe, self.step)
        for optimizer, base in zip(self.optimizers, (self.recipe.muon_lr, self.recipe.adam_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * factor
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.bf16):
            logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        wanted = targets[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        wrong = (logits.argmax(-1) != wanted) & (wanted != IGNORED)
        if not math.isfinite(loss.item()):
            raise SystemExit(f"the loss is {loss.item()} at step {self.step}")
        return loss.item(), 1 - wrong.any(dim=1).float().mean().item()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until", type=int, help="Number of the step at which to stop; a later run resumes.")
    for field in fields(Recipe):
        kind = type(field.default)
        convert = (lambda text: text.lower() in ("1", "true", "yes")) if kind is bool else kind
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=convert, default=field.default)
    arguments = vars(parser.parse_args())
    out, until = arguments.pop("out"), arguments.pop("until")
    recipe = Recipe(**arguments)
    torch.set_num_threads(recipe.threads)
    training = Training(recipe, out)
    print(f"{sum(p.numel() for p in training.model.parameters()):,} parameters", flush=True)
    last = recipe.total_steps + recipe.polish_steps
    training.run(min(until or last, last))


if __name__ == "__main__":
    main()
