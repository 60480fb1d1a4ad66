"""The decode step is sacred: nothing is allocated that grows, nothing is copied whole, nothing waits for the device."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from beaconkv import EvictionSchedule, make_policy, ops, policies
from beaconkv.cache import BoundedLayer
from beaconkv.policies.history import HistoryPolicy, WholeHistoryPolicy
from beaconkv.types import AttentionParams, Rope

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal"}
"""Operations for which the host must know what the device computed."""
B, H, H_KV, D, BUDGET = 3, 4, 2, 8, 96


class Watch(TorchDispatchMode):
    """Names of the operations run, and the size of the largest tensor that is new."""

    def __enter__(self):
        self.names, self.largest = [], 0
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.names.append(name)
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, t.numel())
        return out


def new_layer(name):
    layer = BoundedLayer(make_policy(name), EvictionSchedule(BUDGET, prefix=4, protect=8))

    def step():
        rope = Rope(torch.ones(1, 1, D), torch.zeros(1, 1, D), ops.apply_half)
        layer.append(torch.randn(B, H_KV, 1, D), torch.randn(B, H_KV, 1, D))
        layer.observe(torch.randn(B, H, 1, D), rope, AttentionParams(1.0))

    return layer, step


@pytest.fixture(autouse=True)
def _as_on_an_accelerator(monkeypatch):
    """There, numbers are checked on the device, and a list of a tensor's values waits."""
    for module in (ops.sampling, ops.selection):
        monkeypatch.setattr(module, "require_finite", lambda tensor, name: None)

    def refuse(self):
        raise AssertionError("tolist() waits for the device")

    monkeypatch.setattr(torch.Tensor, "tolist", refuse)


@pytest.mark.parametrize("name", [name for name, cls in policies().items() if cls.evicts])
def test_no_step_waits_and_ordinary_steps_copy_nothing(name):
    layer, step = new_layer(name)
    for _ in range(60):
        step()
    cls = policies()[name]
    # No more than the new token's own query; or its weights, where a method wants them.
    limit = B * H * (BUDGET if cls.observes_entries else D)
    evictions = ordinary = grown = 0
    for _ in range(200):
        before = layer.num_evictions[0]
        with Watch() as watch:
            step()
        assert not WAITS & set(watch.names), sorted(set(watch.names))
        if layer.num_evictions[0] > before:
            evictions += 1
        elif "argmin" not in watch.names:  # else the query buffer was reduced
            ordinary += 1
            if issubclass(cls, WholeHistoryPolicy) and watch.largest > limit:
                grown += 1
            else:
                assert watch.largest <= limit
            if not issubclass(cls, HistoryPolicy):  # which turn one query back at each step
                assert "cat" not in watch.names
    assert grown <= 2  # 60 to 260 queries: the history was doubled
    assert evictions > 10
    assert ordinary > 150


def test_the_watch_sees_waiting_and_copies():
    with Watch() as watch:
        bool(torch.randn(3).sum() > 0)
        torch.cat([torch.zeros(100), torch.zeros(100)])
    assert watch.names.count("_local_scalar_dense") == 1
    assert watch.largest == 200
