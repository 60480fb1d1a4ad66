"""A machine of rules, followed until it halts.

    %a+35KM;q!;?+4;...;>B7|     rows: state, work, exit when the register is even, exit when it is odd

The chain looks up the rule of each state, does its work, and takes the exit that the register
selects. Rules come back after many steps, never within the last few. At the end the condition ``?+4``,
given once, is applied.
"""

from __future__ import annotations

import random
from functools import partial

from ....models.alphabet import DIGITS, LOWER, lower, upper
from .chain import Step, Walk, apply, conclude, work
from .problem import ReasoningProblem, Size, draw_work, lay_out

GAP = 8
"""Number of steps within which no state comes back."""


def draw(rng: random.Random, size: Size) -> ReasoningProblem:
    """A machine of ``size.rules`` states that halts after about ``size.steps`` steps."""
    states = rng.sample(LOWER, size.rules)
    halt = states.pop()
    work_of = {state: draw_work(rng, size) for state in states}
    register = rng.choice(DIGITS)
    gap = min(GAP, len(states) // 2)
    steps = min(size.steps, 2 * len(states))
    while (exits := _exits(rng, states, halt, work_of, register, steps, gap)) is None:
        steps = max(1, steps - rng.randint(0, 1))  # parity may leave no free exit: then the chain is a little shorter
    rules = {s: work_of[s] + "".join(upper(e or rng.choice(states)) for e in exits[s]) for s in states}
    rules[halt] = "!"
    condition = f"+{rng.choice('123456789')}"
    parts = [state + row for state, row in rules.items()] + [f"?{condition}"]
    prompt = lay_out(rng, "%", parts, upper(states[0]) + register)
    return ReasoningProblem.of("machine", prompt, partial(_walk, rules, condition, states[0], register))


def _exits(
    rng: random.Random, states: list[str], halt: str, work_of: dict[str, str], register: str, steps: int, gap: int
) -> dict[str, list[str | None]] | None:
    """Exits drawn step by step: no state comes back within ``gap`` steps, and no exit is taken twice."""
    exits: dict[str, list[str | None]] = {state: [None, None] for state in states}
    path = [states[0]]
    while True:
        register = _leave(work_of[path[-1]], register)
        odd = int(register) % 2
        if len(path) == steps:
            exits[path[-1]][odd] = halt
            return exits
        fresh = [s for s in states if s not in path[-gap:] and exits[s][int(_leave(work_of[s], register)) % 2] is None]
        if not fresh:
            return None
        exits[path[-1]][odd] = rng.choice(fresh)
        path.append(exits[path[-1]][odd])


def _leave(work: str, register: str) -> str:
    """The register after the work of a rule."""
    operation, operand, count = work
    for _ in range(int(count)):
        register = apply(operation, register, operand)
    return register


def _walk(rules: dict[str, str], condition: str, state: str, register: str) -> Walk:
    tags = ".."
    while True:
        row = (yield Step("rule", state + rules.get(state, "!")))[1:]  # a state without a rule has no exit
        if row == "!":
            break
        operation, operand, count, *exits = row
        tags, register = yield from work("".join(exits), register, operation, operand, count)
        state = lower(tags[int(register) % 2])
    yield from conclude(tags, register, condition)
