import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv import ops
from beaconkv.policies.query_buffer import QueryBuffer
from beaconkv.types import Rope, Rows

EVERYONE = Rows([0])
FAR = 10**9


def no_rope(n):
    return Rope(torch.ones(1, n, 4), torch.zeros(1, n, 4), ops.apply_half)


def feed(buffer, queries, until_full):
    buffer.observe(queries, no_rope(queries.shape[2]), [until_full], EVERYONE, None)


def distance(a, b):
    return (a[:, None] - b[None]).abs().amax(-1)


def test_bounded_whatever_the_length():
    buffer = QueryBuffer(1, n_recent=4, n_beacon=6, sample_chunk=16)
    feed(buffer, torch.randn(1, 2, 333, 4), FAR)
    size = buffer.nbytes
    for _ in range(300):
        feed(buffer, torch.randn(1, 2, 1, 4), FAR)
        assert buffer.num_history[0] + buffer.num_fresh[0] < 6 + 4
    assert buffer.nbytes == size == 4 * (2 * (4 + 10) * 4 + 2 * 4 * 4)


def test_beacons_are_real_past_queries_and_recents_the_last_ones():
    buffer = QueryBuffer(1, n_recent=4, n_beacon=6, sample_chunk=16)
    stream = torch.randn(1, 2, 90, 4)
    feed(buffer, stream[:, :, :40], FAR)
    for t in range(40, 90):
        feed(buffer, stream[:, :, t : t + 1], 90 - t - 1)
    torch.testing.assert_close(buffer.recents(EVERYONE), stream[:, :, -4:])
    beacons = buffer.beacons(EVERYONE)
    assert beacons.shape == (1, 2, 6, 4)
    for head in range(2):
        assert (distance(beacons[0, head], stream[0, head, :86]).amin(-1) < 1e-5).all()


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 40), st.data())
def test_steps_at_once_are_steps_one_by_one(n_recent, n_beacon, until_full, data):
    """Evictions between them included; the rotation is part of what is remembered."""
    deals = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
    at_once, one_by_one = (QueryBuffer(1, n_recent, n_beacon, 512) for _ in range(2))
    prompt, angle, left = torch.randn(1, 2, 9, 4), torch.rand(1, 9 + sum(deals), 4), until_full
    rope = Rope(angle.cos(), angle.sin(), ops.apply_half)
    for buffer in (at_once, one_by_one):
        buffer.observe(prompt, rope.steps(0, 9), [until_full], EVERYONE, None)
    start = 9
    for count in deals:
        count = min(count, left)
        queries, own = torch.randn(1, 2, count, 4), rope.steps(start, start + count)
        lefts = list(range(left - 1, left - 1 - count, -1))
        at_once.observe_steps(queries, own, lefts, EVERYONE)
        for step, now in enumerate(lefts):
            one_by_one.observe(queries[:, :, step : step + 1], own.steps(step, step + 1), [now], EVERYONE, None)
        start, left = start + count, left - count
        if left == 0:
            for buffer in (at_once, one_by_one):
                buffer.evicted(torch.zeros(1, 1, 1, dtype=torch.int64), EVERYONE)
            left = until_full
        for name in ("next", "num_recent", "num_fresh", "num_history"):
            assert getattr(at_once, name) == getattr(one_by_one, name)
        pairs = [(b.recent, b.rope.cos, b.rope.sin, b.beacons(EVERYONE)) for b in (at_once, one_by_one)]
        assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


@given(st.integers(1, 6), st.integers(0, 6), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_recent_queries_are_the_last_ones_whatever_the_chunks(n_recent, n_beacon, chunks):
    """With cos and sin of their own; steps between chunks included, which leave the ring out of order."""
    buffer, size = QueryBuffer(1, n_recent, n_beacon, sample_chunk=4), sum(chunks)
    stream, angle = torch.randn(1, 2, size, 4), torch.rand(1, size, 2).repeat(1, 1, 2)
    rope, seen = Rope(angle.cos(), angle.sin(), ops.apply_half), 0
    for count in chunks:
        queries, own = stream[:, :, seen : seen + count], rope.steps(seen, seen + count)
        buffer.observe(queries, own, [FAR], EVERYONE, None)
        seen += count
        first = max(0, seen - n_recent)
        assert torch.equal(buffer.recents(EVERYONE), stream[:, :, first:seen])
        before = buffer.before_rope(seen - first, 0, EVERYONE)
        torch.testing.assert_close(before, ops.unrotate(stream[:, :, first:seen], rope.steps(first, seen)))


@given(st.integers(1, 6), st.integers(1, 30), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_no_query_is_lost_or_counted_twice(n_recent, until_full, chunks):
    """Where there is room for all as beacons, after an eviction they are all that came, in order."""
    buffer, stream = QueryBuffer(1, n_recent, sum(chunks) + 1, sample_chunk=4), torch.randn(1, 2, sum(chunks), 4)
    seen, left = 0, until_full
    for count in chunks:
        left -= count
        feed(buffer, stream[:, :, seen : seen + count], left)
        seen += count
        if left <= 0:
            buffer.evicted(torch.zeros(1, 1, 1, dtype=torch.int64), EVERYONE)
            torch.testing.assert_close(buffer.beacons(EVERYONE), stream[:, :, :seen])
            left = until_full


def test_a_rare_direction_is_remembered():
    """One odd query among thousands of alike ones stays a beacon; that is what beacons are for."""
    buffer = QueryBuffer(1, n_recent=16, n_beacon=16, sample_chunk=64)
    odd = torch.tensor([0.0, 0.0, 0.0, 1.0])
    alike = torch.tensor([1.0, 0.0, 0.0, 0.0]) + 0.05 * torch.randn(1, 1, 3000, 4)
    alike[0, 0, 700] = odd
    feed(buffer, alike[:, :, :500], FAR)
    for t in range(500, 3000):
        feed(buffer, alike[:, :, t : t + 1], FAR)
    assert distance(buffer.beacons(EVERYONE)[0, 0], odd[None]).min() < 1e-6


def test_without_beacons_no_history_is_kept():
    buffer = QueryBuffer(1, n_recent=5, n_beacon=0, sample_chunk=16)
    feed(buffer, torch.randn(1, 2, 40, 4), FAR)
    assert buffer.history is None
    assert buffer.beacons(EVERYONE).shape == (1, 2, 0, 4)
    assert buffer.recents(EVERYONE).shape == (1, 2, 5, 4)


def test_never_more_beacons_than_asked_for_when_the_cache_is_full():
    """Also when the last tokens before the eviction come in one pass, on top of fresh ones."""
    for single, last in ((25, 9), (12, 16), (14, 40), (27, 1), (0, 28)):
        buffer = QueryBuffer(1, n_recent=16, n_beacon=16, sample_chunk=64)
        feed(buffer, torch.randn(1, 2, 100, 4), 28)
        for t in range(single):
            feed(buffer, torch.randn(1, 2, 1, 4), 28 - t - 1)
        feed(buffer, torch.randn(1, 2, last, 4), 28 - single - last)
        assert buffer.beacons(EVERYONE).shape[2] == 16, (single, last)
        assert buffer.recents(EVERYONE).shape[2] == 16
