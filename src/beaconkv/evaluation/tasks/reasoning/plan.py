"""A plan, executed item by item, round after round.

    @a+35;...;[ⓐⓒⓑ];(ⓢⓤⓥ);?VU;>7|     rows: item and work; the plan; the rounds; the rounds of the question

The chain comes back to the same plan and the same rows in every round, and to the list of rounds between
them. After each round the register is noted; at the end the notes of three rounds are looked up again.
"""

from __future__ import annotations

import random
from functools import partial

from ....models.alphabet import DIGITS, LOWER, circled, greek, lower, upper
from .chain import Step, Walk, after, recall, work
from .problem import ReasoningProblem, Size, draw_work, lay_out

ROUNDS, ASKED = 4, 3


def draw(rng: random.Random, size: Size) -> ReasoningProblem:
    """Four rounds of ``size.steps / 4`` items out of ``size.rules - 6`` (at least two)."""
    letters = rng.sample(LOWER, max(2, size.rules - 6) + ROUNDS)
    rounds, items = letters[:ROUNDS], letters[ROUNDS:]
    planned = items[: max(2, min(size.steps // ROUNDS, len(items)))]
    rules = {item: draw_work(rng, size) for item in items}
    asked = "".join(upper(name) for name in rng.sample(rounds, ASKED))
    register = rng.choice(DIGITS)
    order = "[" + "".join(map(circled, planned)) + "]"
    turns = "(" + "".join(map(circled, rounds)) + ")"
    parts = [*(item + row for item, row in rules.items()), order, turns, f"?{asked}"]
    prompt = lay_out(rng, "@", parts, register)
    return ReasoningProblem.of("plan", prompt, partial(_walk, rules, order, turns, asked, register))


def _walk(rules: dict[str, str], order: str, turns: str, asked: str, register: str) -> Walk:
    turn, notes = "(", {}
    while True:
        turn = (yield Step("list", turn + after(turns, turn)))[1]
        if turn == ")":
            break
        place = "["
        while True:
            place = (yield Step("list", place + after(order, place)))[1]
            if place == "]":
                break
            item = lower(place)
            operation, operand, count = (yield Step("rule", item + rules.get(item, "   ")))[1:]
            tags, register = yield from work(upper(item) + upper(turn), register, operation, operand, count)
            place, turn = circled(tags[0]), circled(tags[1])
        note = yield Step("note", greek(turn) + register)
        notes[note[0]] = note[1]
    yield from recall(asked, notes)
