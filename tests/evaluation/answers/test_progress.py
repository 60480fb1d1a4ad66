from types import SimpleNamespace

import pytest

from beaconkv.evaluation.answers.progress import Progress

BATCH = SimpleNamespace(limit=100)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_tokens_are_counted_inside_a_batch(clock):
    progress = Progress(10, clock)
    assert (progress.share, progress.speed, progress.seconds_left) == (0.0, None, None)
    progress.found(2)
    assert progress.share == 0.2
    progress.started(BATCH)
    shares = []
    for _ in range(50):
        clock.now += 0.5
        progress.wrote(4)
        shares.append(progress.share)
    assert shares == sorted(set(shares))
    assert progress.speed == 8.0
    assert progress.is_bounded
    assert progress.seconds_left == (8 * 100 - 200) / 8.0  # by the longest answer there may be
    assert progress.share == 1 - 600 / 1000


def test_answers_tell_how_long_answers_are(clock):
    progress = Progress(4, clock)
    progress.started(BATCH)
    clock.now = 10.0
    for _ in range(20):
        progress.wrote(2)
    for _ in range(2):
        progress.answered(20)
    assert not progress.is_bounded
    assert progress.seconds_left == 2 * 20 / 4.0
    assert progress.share == 0.5
    progress.started(BATCH)
    for _ in range(30):  # longer than those before, and none has ended: so may the others be
        progress.wrote(2)
    assert progress.seconds_left == pytest.approx((2 * 50 - 60) / progress.speed)
    assert progress.share == 1 - 40 / 200
    for _ in range(2):
        progress.answered(30)
    assert (progress.done, progress.share, progress.seconds_left) == (4, 1.0, 0.0)


def test_what_a_batch_that_broke_off_had_written_is_not_counted_as_nearer(clock):
    progress = Progress(4, clock)
    progress.started(BATCH)
    clock.now = 1.0
    progress.wrote(4)
    progress.started(BATCH)
    assert progress.share == 0.0
    assert progress.tokens == 4
