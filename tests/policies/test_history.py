"""What the methods with a memory of past queries remember."""

from functools import partial

import torch

from beaconkv import make_policy, ops
from beaconkv.policies import history
from beaconkv.policies.history import History
from beaconkv.policies.retention import EverySlot, FirstSlots, Reservoir
from beaconkv.types import Rope, Rows
from tests.policies import test_contract

FAR = 10**9


def no_rope(n):
    return Rope(torch.ones(1, n, 4), torch.zeros(1, n, 4), ops.apply_half)


def feed(state, queries, rows=None):
    rows = rows or Rows(list(range(queries.shape[0])))
    state.observe(queries, no_rope(queries.shape[2]), [FAR] * len(rows), rows, None)


def test_history_is_what_came_before_the_recent_queries_whatever_the_chunks(monkeypatch):
    monkeypatch.setattr(history, "GROWTH", 16)  # so that the memory grows several times
    stream = torch.randn(2, 3, 61, 4)
    for chunks in ([61], [1] * 61, [20, 1, 1, 1, 30, 1, 7], [3, 1, 1, 56]):
        state = History(2, n_recent=5, n_beacon=4, rule=EverySlot(), represent=lambda past, count, num: past)
        start = 0
        for n in chunks:
            feed(state, stream[:, :, start : start + n])
            start += n
        everyone = Rows([0, 1])
        torch.testing.assert_close(state.recents(everyone), stream[:, :, -5:])
        torch.testing.assert_close(state.beacons(everyone), stream[:, :, :-5], atol=1e-6, rtol=1e-5)


def test_memory_grows_by_blocks_whatever_the_chunks_and_is_counted():
    state = make_policy("naive_fps", n_recent=4, n_beacon=2).new_state(2)
    assert state.nbytes == 0
    sizes = set()
    for _ in range(300):
        feed(state, torch.randn(2, 3, 1, 4))
        sizes.add(state.past.shape[2] if state.past is not None else 0)
    assert sizes == {0, 256, 512}
    window = 4 * (2 * 3 * 4 * 4 + 2 * (2 * 4 * 4))
    assert state.nbytes == window + 4 * 2 * 3 * 512 * 4
    at_once = make_policy("naive_fps", n_recent=4, n_beacon=2).new_state(2)
    feed(at_once, torch.randn(2, 3, 300, 4))
    assert at_once.nbytes == state.nbytes


def test_bounded_rules_need_bounded_memory():
    for name in ("initial_recent", "random_history"):
        state = make_policy(name, n_recent=4, n_beacon=6).new_state(1)
        feed(state, torch.randn(1, 3, 100, 4))
        size = state.nbytes
        for _ in range(100):
            feed(state, torch.randn(1, 3, 1, 4))
        assert state.nbytes == size == 4 * (3 * 10 * 4 + 2 * 4 * 4)


def test_initial_queries_stay_the_initial_ones():
    state = make_policy("initial_recent", n_recent=4, n_beacon=6).new_state(1)
    stream = torch.randn(1, 2, 80, 4)
    feed(state, stream[:, :, :3])
    for t in range(3, 80):
        feed(state, stream[:, :, t : t + 1])
        expected = stream[:, :, : min(6, max(0, t + 1 - 4))]
        torch.testing.assert_close(state.beacons(Rows([0])), expected, atol=1e-6, rtol=1e-5)


def test_random_queries_are_uniform_and_differ_between_seeds():
    counts = torch.zeros(50)
    for seed in range(600):
        rule, slots = Reservoir(5, seed), {}
        for number in range(50):
            slot = rule.slot(number)
            if slot is not None:
                slots[slot] = number
        assert sorted(slots) == [0, 1, 2, 3, 4]
        counts[list(slots.values())] += 1
    # 600 samples of 5 of 50: 60 each, with a deviation of 7.3
    assert (counts - 60).abs().max() < 4 * 7.4
    assert abs(counts[:25].sum() - 1500) < 4 * 28


def test_rules_answer_for_any_number_at_any_time():
    a, b = Reservoir(3, 7), Reservoir(3, 7)
    later = b.slot(400)
    assert [a.slot(n) for n in range(401)] == [b.slot(n) for n in range(400)] + [later]
    assert [FirstSlots(2).slot(n) for n in range(4)] == [0, 1, None, None]
    assert [EverySlot().slot(n) for n in range(3)] == [0, 1, 2]


def test_rows_of_different_length_do_not_meet():
    """Rows are fed apart, then stepped together, and reordered."""
    state = History(2, n_recent=3, n_beacon=2, rule=EverySlot(), represent=lambda past, count, num: past)
    a, b, both = torch.randn(1, 2, 20, 4), torch.randn(1, 2, 7, 4), torch.randn(2, 2, 9, 4)
    for row, queries in enumerate((a, b)):
        feed(state, queries, Rows([row], torch.tensor([row])))
    for t in range(9):
        feed(state, both[:, :, t : t + 1])
    expected = [torch.cat([x, both[i : i + 1]], 2)[:, :, :-3] for i, x in enumerate((a, b))]
    for row in (0, 1):
        got = state.beacons(Rows([row], torch.tensor([row])))
        torch.testing.assert_close(got, expected[row], atol=1e-6, rtol=1e-5)
    state.select_rows(torch.tensor([1, 1, 0]), [1, 1, 0])
    for row, was in enumerate((1, 1, 0)):
        got = state.beacons(Rows([row], torch.tensor([row])))
        torch.testing.assert_close(got, expected[was], atol=1e-6, rtol=1e-5)


def test_rows_that_fill_up_together_may_have_histories_of_other_length(monkeypatch):
    """One has fewer past queries than representatives; each is scored as it would be alone."""
    for name in ("naive_fps", "kmeans_centroid", "kmeans_nearest", "random_history", "initial_recent"):
        monkeypatch.setitem(test_contract.CLASSES, name, partial(make_policy, name, n_recent=20, n_beacon=40))
        together = test_contract.Run(name, [1, 2], [130, 42], 60)
        for row, length in enumerate((130, 42)):
            assert together.history(row) == test_contract.Run(name, [1 + row], [length], 60).history(0)
