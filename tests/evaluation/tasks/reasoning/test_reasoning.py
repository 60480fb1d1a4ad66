import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv.evaluation.tasks.load import grade_chain
from beaconkv.evaluation.tasks.reasoning import CHARACTERS, END, KINDS, SIZES, TASKS, Size, draw_problem
from beaconkv.models.alphabet import CLASSES, LOWER

from .solvers import SOLVERS, parse

KIND = st.sampled_from(list(TASKS))
SEED = st.integers(0, 10**6)
SIZE = st.builds(
    lambda rules, steps, least, more: Size(rules, steps, least, min(9, least + more)),
    st.integers(6, 24),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 4),
)


@given(KIND, SEED, SIZE)
@settings(max_examples=300, deadline=None)
def test_the_chain_is_right(kind, seed, size):
    """A solver that knows nothing of the chain finds the same answer in the prompt."""
    problem = draw_problem(kind, seed, size)
    answer, _ = SOLVERS[kind](problem.prompt)
    assert problem.answer == answer
    assert problem.chain.endswith(f"={answer}{END}")
    assert problem.chain.count(END) == 1
    assert set(problem.prompt + problem.chain) <= set(CHARACTERS)
    steps = problem.check(problem.chain)
    assert all(step.right for step in steps)
    assert "".join(step.written for step in steps) == problem.chain
    assert {step.kind for step in steps} <= set(KINDS)


@pytest.mark.parametrize("kind", TASKS)
def test_full_size(kind):
    """About 1,500 characters, prompts of one length, nothing drawn twice, the same every time."""
    problems = [draw_problem(kind, seed) for seed in range(60)]
    lengths = [len(problem.chain) for problem in problems]
    assert 1400 < sum(lengths) / 60 < 1650
    assert max(lengths) > 1500
    assert len({len(problem.prompt) for problem in problems}) == 1
    assert len({problem.prompt for problem in problems}) == 60
    assert [draw_problem(kind, seed).chain for seed in range(60)] == [problem.chain for problem in problems]


@pytest.mark.parametrize("kind", TASKS)
def test_a_key_stands_in_the_prompt_once(kind):
    for seed in range(30):
        prompt = draw_problem(kind, seed).prompt
        keys = [letter for letter in prompt if letter in LOWER]
        assert sorted(keys) == sorted(set(keys)) == sorted(parse(prompt)[0])


@pytest.mark.parametrize("kind", TASKS)
def test_most_of_a_chain_is_local_and_returns_are_far(kind):
    distances = []
    for seed in range(20):
        problem = draw_problem(kind, seed)
        steps = problem.check(problem.chain)
        local = sum(len(step.expected) for step in steps if step.kind == "line")
        assert local > 0.75 * len(problem.chain)
        last = {}
        for step in steps:
            if step.kind == "rule":
                if step.written in last:
                    distances.append(step.start - last[step.written])
                last[step.written] = step.start
    if kind == "ledger":
        assert not distances
    elif kind == "search":  # a fork whose first way is a dead end is read again soon, others after whole subtrees
        assert sorted(distances)[-len(distances) // 3] > 200
    else:
        assert sorted(distances)[len(distances) // 10] > 200


def test_a_state_does_not_come_back_soon():
    for seed in range(40):
        _, path = SOLVERS["machine"](draw_problem("machine", seed).prompt)
        assert len(path) > 15
        for i, state in enumerate(path):
            assert state not in path[max(0, i - 8) : i]


def test_some_ways_of_a_search_stay_unvisited_and_some_rules_are_distractors():
    unvisited = distractors = 0
    for seed in range(40):
        prompt = draw_problem("search", seed).prompt
        unvisited += len(parse(prompt)[0]) - len(SOLVERS["search"](prompt)[1])
        rows, order, *_ = parse(draw_problem("plan", seed).prompt)
        distractors += len(rows) - len(order)
    assert unvisited > 20
    assert distractors > 100


@given(KIND, SEED, SEED)
@settings(max_examples=200, deadline=None)
def test_one_wrong_character_is_found_where_it_is(kind, seed, noise):
    problem, rng = draw_problem(kind, seed, Size(12, 10, 1, 4)), random.Random(noise)
    at = rng.randrange(len(problem.chain) - 1)
    other = rng.choice([c for c in CHARACTERS if c != problem.chain[at]])
    chain = problem.chain[:at] + other + problem.chain[at + 1 :]
    wrong = [step for step in problem.check(chain) if not step.right]
    assert wrong[0].start <= at < wrong[0].start + len(wrong[0].expected)
    assert grade_chain(problem, chain.rstrip(END), capped=False)["steps_right"] < 1


def test_later_steps_are_judged_by_what_was_written():
    """One slip in arithmetic, carried on faithfully, is one wrong step and a wrong answer."""
    problem = draw_problem("ledger", 3, Size(8, 4, 2, 2))
    steps = problem.check(problem.chain)
    first = next(i for i, step in enumerate(steps) if step.kind == "line")
    walk = problem.walk()
    step, chain = next(walk), ""
    try:
        for i in range(10**6):
            text = step.text
            if i == first:
                text = text[:-2] + str((int(text[-2]) + 1) % 10) + ";"
            chain += text
            step = walk.send(text)
    except StopIteration:
        pass
    grade = grade_chain(problem, chain.rstrip(END), capped=False)
    assert [s.right for s in problem.check(chain)].count(False) == 1
    assert grade["steps_right"] == pytest.approx(1 - 1 / len(steps), abs=1e-4)
    assert grade["first_wrong"]["kind"] == "line"
    assert not grade["correct"]


@given(KIND, SEED, st.text(alphabet=CHARACTERS, max_size=300), st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_checker_fail(kind, seed, garbage, start):
    problem = draw_problem(kind, seed, Size(8, 6, 1, 3))
    text = problem.chain[:start].rstrip(END) + garbage
    grade = grade_chain(problem, text, capped=False)
    assert 0 <= grade["steps_right"] <= 1
    assert grade["correct"] is False or grade["answer"] == problem.answer


@given(KIND, SEED, SEED)
@settings(max_examples=500, deadline=None)
def test_readable_nonsense_is_read_to_its_end(kind, seed, noise):
    """Letters for letters, digits for digits: the checker follows wherever it leads, and does not fail."""
    problem, rng = draw_problem(kind, seed, Size(10, 8, 1, 4)), random.Random(noise)
    share = rng.choice([0.01, 0.05, 0.2, 1.0])
    chain = "".join(
        rng.choice(next((form for form in CLASSES if c in form), c)) if rng.random() < share else c
        for c in problem.chain
    )
    assert all(step.written for step in problem.check(chain))


def test_grades():
    problem = draw_problem("plan", 1, Size(10, 8, 1, 3))
    text = problem.chain.rstrip(END)
    right = {"correct": True, "answer": problem.answer, "steps_right": 1.0, "first_wrong": None}
    assert grade_chain(problem, text, capped=False) == right
    capped = grade_chain(problem, text, capped=True)  # the end was never written
    assert (capped["correct"], capped["first_wrong"]["kind"]) == (False, "answer")
    half = grade_chain(problem, text[: len(text) // 2], capped=True)
    assert 0.3 < half["steps_right"] < 0.7
    assert not half["correct"]
    assert grade_chain(problem, "", capped=False)["steps_right"] == 0
    assert not grade_chain(problem, text + "7", capped=False)["correct"]
    lucky = grade_chain(problem, "=" + problem.answer, capped=False)
    assert lucky["correct"] is False


def test_an_unknown_task_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown reasoning task 'maze'; choose from machine, ledger, plan, search"):
        draw_problem("maze", 0)
    assert SIZES.keys() == TASKS.keys()
