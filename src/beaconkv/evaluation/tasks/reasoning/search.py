"""A search with backtracking to an earlier state.

    ^a+35KM;x<;g!;?+4;...;>B7|     rows: place, work, first way, second way; a dead end; the goal

At each fork the chain notes the register and the previous open fork. At a dead end it looks up the note of the
last open fork, takes the register from it, reads the fork's row again and takes the second way: the notes, each
of which names the previous one, are a stack.
"""

from __future__ import annotations

import random
from functools import partial

from ....models.alphabet import DIGITS, LOWER, greek, lower, upper
from .chain import Step, Walk, conclude, work
from .problem import ReasoningProblem, Size, draw_work, lay_out


def draw(rng: random.Random, size: Size) -> ReasoningProblem:
    """A binary tree of ``size.steps / 2`` forks (at most 11); the goal is among its last third of ends."""
    forks = max(1, min(size.steps // 2, (size.rules - 1) // 2))
    letters = rng.sample(LOWER, 2 * forks + 1)
    children: dict[str, tuple[str, str]] = {}
    ends, unused = [letters[0]], letters[1:]
    while unused:
        fork = ends.pop(rng.randrange(len(ends)))
        children[fork] = unused.pop(), unused.pop()
        ends += children[fork]
    visited = [end for end in _depth_first(children, letters[0]) if end not in children]
    goal = rng.choice(visited[-max(1, len(visited) // 3) :])
    rules = {fork: draw_work(rng, size) + upper(first) + upper(second) for fork, (first, second) in children.items()}
    rules |= {end: "!" if end == goal else "<" for end in ends}
    condition = f"+{rng.choice('123456789')}"
    register = rng.choice(DIGITS)
    parts = [*(place + row for place, row in rules.items()), f"?{condition}"]
    prompt = lay_out(rng, "^", parts, upper(letters[0]) + register)
    return ReasoningProblem.of("search", prompt, partial(_walk, rules, condition, letters[0], register))


def _depth_first(children: dict[str, tuple[str, str]], root: str) -> list[str]:
    stack, order = [root], []
    while stack:
        order.append(place := stack.pop())
        stack += reversed(children.get(place, ()))
    return order


def _walk(rules: dict[str, str], condition: str, place: str, register: str) -> Walk:
    tags, notes = "..", {}
    while True:
        row = (yield Step("rule", place + rules.get(place, "<")))[1:]
        if row == "!":
            break
        if row == "<":
            if (fork := tags[1]) == ".":
                return
            note = yield Step("recall", greek(fork) + notes.get(greek(fork), "0."))
            register, above = note[1:]
            if len(rule := rules.get(lower(fork), "")) < 5:  # no fork: no further step can be right
                return
            operation, operand, count, _, way = (yield Step("rule", lower(fork) + rule))[1:]
        else:
            operation, operand, count, way, _ = row
            note = yield Step("note", greek(place) + register + tags[1])
            notes[note[0]], above = note[1:], upper(place)
        tags, register = yield from work(way + above, register, operation, operand, count)
        place = lower(tags[0])
    yield from conclude(tags, register, condition)
