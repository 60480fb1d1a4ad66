import torch

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
