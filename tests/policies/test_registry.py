from dataclasses import dataclass

import pytest
import torch

import beaconkv


def test_names():
    assert {"beaconkv", "full", "recent", "streaming_llm"} <= set(beaconkv.policies())
    assert list(beaconkv.policies()) == sorted(beaconkv.policies())


def test_make_policy():
    policy = beaconkv.make_policy("beaconkv", n_recent=4, n_beacon=28, query_pool="mean", group_pool="max")
    assert (policy.n_recent, policy.n_beacon, policy.query_pool, policy.group_pool) == (4, 28, "mean", "max")
    assert beaconkv.make_policy("beaconkv") == beaconkv.make_policy("beaconkv", n_recent=16, n_beacon=16)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("beacon", {}, "unknown policy 'beacon'; choose from beaconkv, full"),
        ("beaconkv", dict(n_beacons=3), "no setting 'n_beacons'; it has n_recent, .*, n_beacon, sample_chunk"),
        ("full", dict(n_recent=3), "no setting 'n_recent'; it has none"),
        ("beaconkv", dict(n_recent=0), "beaconkv: n_recent must be an integer >= 1, got 0"),
        ("beaconkv", dict(n_beacon=-1), "beaconkv: n_beacon must be an integer >= 0, got -1"),
        ("beaconkv", dict(n_beacon=True), "n_beacon must be an integer"),
        ("beaconkv", dict(query_pool="sum"), "query_pool must be one of max, mean; got 'sum'"),
        ("recent", dict(group_pool=""), "recent: group_pool must be one of max, mean; got ''"),
    ],
)
def test_refusals_name_the_offender(name, settings, message):
    with pytest.raises(ValueError, match=message):
        beaconkv.make_policy(name, **settings)


@pytest.mark.usefixtures("_own_registry")
def test_a_policy_is_one_class():

    @dataclass(frozen=True)
    class Oldest(beaconkv.EvictionPolicy, name="oldest"):
        """Keep the oldest entries."""

        def score(self, view, state):
            return -view.positions.float()

    assert beaconkv.policies()["oldest"] is Oldest
    assert beaconkv.make_policy("oldest").score(type("V", (), {"positions": torch.arange(3)}), None)[0] == 0

    with pytest.raises(ValueError, match="policy name 'oldest' is taken by"):

        @dataclass(frozen=True)
        class Other(beaconkv.EvictionPolicy, name="oldest"):
            """Another."""

            def score(self, view, state):
                return view.positions.float()


@pytest.mark.parametrize("scale", [0, -1.0, float("inf"), float("nan"), True, "soft"])
@pytest.mark.parametrize("name", ["recent_scale", "beacon_scale"])
def test_a_scale_of_logits_is_a_number_above_0(name, scale):
    with pytest.raises(ValueError, match=f"beaconkv: {name} must be a number above 0, got"):
        beaconkv.make_policy("beaconkv", **{name: scale})


def test_rkv_joins_logits_before_they_could_be_scaled():
    with pytest.raises(ValueError, match="rkv: recent_scale=0.5 is unsupported with group_pool='logits'"):
        beaconkv.make_policy("rkv", recent_scale=0.5)
    assert beaconkv.make_policy("rkv", recent_scale=0.5, group_pool="max").recent_scale == 0.5
