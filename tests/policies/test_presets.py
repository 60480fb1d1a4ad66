"""Specs: what a text like "rkv:code:redundancy_weight=0.8" means, and what it recommends for the schedule."""

from dataclasses import dataclass

import pytest

from beaconkv import EvictionPolicy, EvictionSchedule, Preset, make_policy, parse_policy, policies
from beaconkv.policies.spec import parse_settings


@pytest.fixture
def _probe(_own_registry):
    @dataclass(frozen=True)
    class Probe(EvictionPolicy, name="probe"):
        """For tests."""

        presets = {
            "often": Preset({"weight": 0.25}, "here", prefix=2, protect=3, every=16),
            "own": Preset({}, "here", budget=100, budget_min=20, growth=5, scope="output"),
            "prompt": Preset({}, "here", prefix="prompt", protect="half"),
        }

        weight: float = 0.5
        mode: str = "a"
        flag: bool = False

        def score(self, view, state):
            return view.positions.float()


@pytest.mark.usefixtures("_probe")
class TestSpecs:
    def test_settings_and_presets(self):
        assert parse_policy("probe").policy.weight == 0.5
        assert parse_policy("probe:often").policy.weight == 0.25
        policy = parse_policy("probe:often:mode=b:flag=true:weight=2e-1").policy
        assert (policy.mode, policy.flag, policy.weight) == ("b", True, 0.2)
        assert parse_policy("probe:weight=1", mode="x").policy == make_policy("probe", weight=1, mode="x")
        assert parse_policy("probe:weight=1", weight=3).policy.weight == 3
        assert make_policy("probe:often") == make_policy("probe", weight=0.25)

    def test_a_plain_name_is_the_common_schedule(self):
        assert parse_policy("probe").schedule(64) == EvictionSchedule(64, prefix=4, protect=32, budget_min=56)
        assert parse_policy("probe").schedule() == EvictionSchedule(None, prefix=4, protect=32)

    def test_a_preset_brings_its_schedule(self):
        assert parse_policy("probe:often").schedule(64) == EvictionSchedule(64, prefix=2, protect=3, budget_min=48)

    def test_what_is_chosen_wins(self):
        chosen = parse_policy("probe:often").schedule(64, budget_min=30, prefix=0, protect=None, prefill_chunk=8)
        assert chosen == EvictionSchedule(64, prefix=0, protect=3, budget_min=30, prefill_chunk=8)

    def test_an_interval_that_does_not_fit(self):
        spec = parse_policy("probe:often")
        with pytest.raises(ValueError, match="every=16 steps, which budget=20 does not allow") as error:
            spec.schedule(20)
        least = int(str(error.value).split("at least ")[1].split(",")[0])
        assert spec.schedule(least).budget == least
        with pytest.raises(ValueError, match="does not allow"):
            spec.schedule(least - 1)
        # The prompt is the prefix then, and does not count.
        assert spec.schedule(least - 2, scope="output").budget_min == 3

    def test_a_schedule_of_its_own(self):
        spec = parse_policy("probe:own")
        assert spec.budget == 100
        assert spec.schedule(protect=8) == spec.schedule(100, protect=8)
        assert spec.schedule(protect=8) == EvictionSchedule(100, 20, prefix=4, protect=8, growth=5, scope="output")
        with pytest.raises(ValueError, match="budget must be None or 100, got 64"):
            spec.schedule(64)

    def test_half_is_half_of_what_stays(self):
        schedule = EvictionSchedule(64, prefix=4, protect="half")
        assert (schedule.budget_min, schedule.protect) == (56, 28)
        assert parse_policy("probe:prompt").schedule(64, scope="output").protect == 28
        assert EvictionSchedule(None, protect="half").protect == 0

    def test_a_policy_object_is_taken_as_it_is(self):
        policy = make_policy("probe:often")
        spec = parse_policy(policy)
        assert spec.policy is policy
        assert (spec.spec, spec.prefix, spec.protect, spec.every) == ("probe", 4, 32, None)
        assert parse_policy(policy, mode="z").policy == make_policy("probe:often", mode="z")

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("prob", "unknown policy 'prob'; choose from beaconkv"),
            ("probe:usual", "policy 'probe' has no preset 'usual'; it has often, own, prompt"),
            ("probe:often:own", "'own' is no setting=value"),
            ("probe:weight=1:own", "'own' is no setting=value"),
            ("probe:", "has no preset ''"),
            ("probe:=3", "'=3' is no setting=value"),
            ("probe:size=3", "policy 'probe' has no setting 'size'; it has weight, mode, flag"),
            ("full:paper", "policy 'full' has no preset 'paper'; it has none"),
            (3, "policy must be a name or an EvictionPolicy, got 3"),
        ],
    )
    def test_refusals_name_the_offender(self, spec, message):
        with pytest.raises(ValueError, match=message):
            parse_policy(spec)

    def test_a_subclass_does_not_inherit_presets(self):
        @dataclass(frozen=True)
        class Deeper(type(make_policy("probe")), name="deeper"):
            """For tests."""

        assert Deeper.presets == {}


def test_settings_are_read_in_one_way():
    texts = ["a=1", "b=mean", "c=0.5", "d=true", "e=x=y"]
    assert parse_settings(texts, "", "") == {"a": 1, "b": "mean", "c": 0.5, "d": True, "e": "x=y"}
    for wrong in ("a", "=1", ""):
        with pytest.raises(ValueError, match=f"^--set: '{wrong}' is no setting=value; write a=1$"):
            parse_settings([wrong], "--set", "a=1")


@pytest.mark.parametrize("name", list(policies()))
def test_every_preset_works_and_says_where_it_comes_from(name):
    cls = policies()[name]
    for preset, form in cls.presets.items():
        assert "=" not in preset
        assert ":" not in preset
        assert form.source
        spec = parse_policy(f"{name}:{preset}")
        for setting, value in form.settings.items():
            assert getattr(spec.policy, setting) == value
        budget = spec.budget or 512
        schedule = spec.schedule(budget)
        if form.every is not None:
            assert schedule.budget_min == budget - form.every
        if isinstance(form.protect, int):
            assert schedule.protect == form.protect


def test_the_papers_ablations_are_presets():
    for split in ((32, 0), (31, 1), (16, 16), (4, 28), (1, 31)):
        policy = make_policy(f"beaconkv:{split[0]}-{split[1]}")
        assert (policy.n_recent, policy.n_beacon) == split
    assert make_policy("beaconkv:max-max") == make_policy("beaconkv:16-16") == make_policy("beaconkv")
    policy = make_policy("beaconkv:mean-max")
    assert (policy.query_pool, policy.group_pool) == ("mean", "max")
    assert make_policy("recent:16").n_recent == 16
    assert make_policy("recent:32") == make_policy("recent")


def test_our_own_preset_is_kept_apart_from_the_papers():
    plus = make_policy("beaconkv:plus")
    assert (plus.n_recent, plus.n_beacon, plus.query_pool, plus.group_pool) == (4, 12, "mean", "max")
    assert plus.redundancy_weight == 0.1
    soft = make_policy("beaconkv:soft")
    assert (soft.n_recent, soft.n_beacon, soft.query_pool, soft.group_pool) == (1, 31, "max", "max")
    assert (soft.beacon_scale, soft.recent_scale, soft.redundancy_weight) == (0.25, 1.0, 0.5)
    presets, ours = type(plus).presets, {"plus", "soft"}
    assert all("this project" in presets[name].source for name in ours)
    assert all("not the paper's" in presets[name].note for name in ours)
    assert all("arXiv 2609.04971" in preset.source for name, preset in presets.items() if name not in ours)
