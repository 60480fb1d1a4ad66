"""A ledger: items taken in the order of a list, a running total, and a question about some totals at the end.

    $a+35;b-42;...;[ⓐⓒⓑ];?GKB;>7|     rows: item and work; the order; the items of the question

After each item the total is noted; at the end the notes of three items, given once in the prompt, are looked
up again, hundreds of tokens after they were written.
"""

from __future__ import annotations

import random
from functools import partial

from ....models.alphabet import DIGITS, LOWER, circled, greek, lower, upper
from .chain import Step, Walk, after, recall, work
from .problem import ReasoningProblem, Size, draw_work, lay_out

ASKED = 3


def draw(rng: random.Random, size: Size) -> ReasoningProblem:
    """A list of ``size.steps`` items out of ``size.rules``."""
    items = rng.sample(LOWER, size.rules)
    listed = items[: max(ASKED, min(size.steps, size.rules))]
    rules = {item: draw_work(rng, size) for item in items}
    asked = "".join(upper(item) for item in rng.sample(listed, ASKED))
    register = rng.choice(DIGITS)
    order = "[" + "".join(map(circled, listed)) + "]"
    prompt = lay_out(rng, "$", [*(item + row for item, row in rules.items()), order, f"?{asked}"], register)
    return ReasoningProblem.of("ledger", prompt, partial(_walk, rules, order, asked, register))


def _walk(rules: dict[str, str], order: str, asked: str, register: str) -> Walk:
    place, notes = "[", {}
    while True:
        place = (yield Step("list", place + after(order, place)))[1]
        if place == "]":
            break
        item = lower(place)
        operation, operand, count = (yield Step("rule", item + rules.get(item, "   ")))[1:]
        tags, register = yield from work(upper(item) + ".", register, operation, operand, count)
        note = yield Step("note", greek(tags[0]) + register)
        notes[note[0]] = note[1]
        place = circled(tags[0])
    yield from recall(asked, notes)
