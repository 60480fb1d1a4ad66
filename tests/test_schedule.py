import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beaconkv import EvictionSchedule


def test_defaults_are_the_papers():
    schedule = EvictionSchedule(2048)
    assert (schedule.budget_min, schedule.prefix, schedule.protect) == (1792, 4, 32)
    assert schedule.full_at(300) == 2048


def test_output_scope_does_not_count_the_prompt():
    schedule = EvictionSchedule(256, scope="output", prefix=7)
    assert schedule.full_at(130) == 386
    assert schedule.kept_for(130) == 224 + 130
    assert schedule.prefix_for(130) == 130


def test_prompt_as_prefix():
    schedule = EvictionSchedule(256, prefix="prompt")
    assert schedule.prefix_for(130) == 130
    assert schedule.kept_for(192) == 224
    with pytest.raises(ValueError, match="prompt of 193 tokens as prefix"):
        schedule.kept_for(193)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(budget=0), "budget must be an integer >= 1 or None, got 0"),
        (dict(budget=2.5), "budget must be an integer"),
        (dict(budget=True), "budget must be an integer"),
        (dict(budget="2048"), "budget must be an integer"),
        (dict(budget=1, prefix=0, protect=0), "budget of at least 2"),
        (dict(budget=40), "budget of at least 42"),
        (dict(budget=64, budget_min=64), "budget_min < budget"),
        (dict(budget=64, budget_min=35), "leave no room"),
        (dict(budget=64, prefix=-1), 'prefix must be an integer >= 0 or "prompt", got -1'),
        (dict(budget=64, prefix="all"), "prefix must be"),
        (dict(budget=64, protect=-1), "protect must be"),
        (dict(budget=64, protect="all"), "protect must be an integer >= 0 or \"half\", got 'all'"),
        (dict(budget=7, protect="half"), "budget of at least 8,"),
        (dict(budget=64, scope="everything"), "total, output; got 'everything'"),
        (dict(budget=64, prefill_chunk=0), "prefill_chunk must be an integer >= 1 or None, got 0"),
        (dict(budget=None, budget_min=3), "no meaning without a budget"),
    ],
)
def test_refusals_name_the_offender(settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        EvictionSchedule(**settings)


@given(prefix=st.integers(0, 300), protect=st.integers(0, 300) | st.just("half"))
def test_the_budget_that_the_error_names_works_and_one_less_does_not(prefix, protect):
    with pytest.raises(ValueError, match="at least") as error:
        EvictionSchedule(1, prefix=prefix, protect=protect)
    least = int(str(error.value).split("at least ")[1].split(",")[0])
    EvictionSchedule(least, prefix=prefix, protect=protect)
    with pytest.raises(ValueError, match="leave no room"):
        EvictionSchedule(least - 1, prefix=prefix, protect=protect)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EvictionSchedule(64).budget = 3
