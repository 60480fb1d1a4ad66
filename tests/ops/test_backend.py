import os
import subprocess
import sys
from importlib import import_module
from inspect import signature

import pytest
import torch

from beaconkv import ops
from beaconkv.ops import backend
from beaconkv.ops.backend import dispatched, use_backend


@pytest.fixture(autouse=True)
def _as_if_nothing_was_chosen(monkeypatch):
    monkeypatch.setattr(backend, "_choice", "auto")


def double(x, by=2):
    """Twice x."""
    return "reference", x * by


def double_fused(x, by=2):
    return "fused", x * by


class OnCuda:
    """What the dispatch asks of a tensor."""

    is_cuda, requires_grad = True, False

    def __mul__(self, factor):
        return factor


@pytest.fixture
def on_triton(monkeypatch):
    """A twin in ``ops/triton`` for ``double``, on a machine where Triton works."""
    module = type(sys)("beaconkv.ops.triton.doubling")
    module.double = lambda x, by=2: ("triton", x * by)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(backend, "why_not_triton", lambda: None)
    monkeypatch.setattr(backend, "_triton_works", lambda: True)
    monkeypatch.setattr(backend, "interpreted", lambda: True)


def test_auto_takes_the_best_that_applies(on_triton):
    all_three = dispatched(double, fused=double_fused, triton="doubling")
    two = dispatched(double, triton="doubling")
    one = dispatched(double)
    assert [op(torch.ones(()))[0] for op in (all_three, two, one)] == ["fused", "reference", "reference"]
    assert [op(OnCuda())[0] for op in (all_three, two, one)] == ["triton", "triton", "reference"]
    assert list(all_three.implementations) == ["reference", "fused", "triton"]
    assert list(one.implementations) == ["reference"]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("reference", ["reference", "reference", "reference"]),
        ("fused", ["fused", "reference", "reference"]),
        ("triton", ["triton", "triton", "reference"]),
    ],
)
def test_a_choice_is_taken_as_said(on_triton, name, taken):
    operations = [
        dispatched(double, fused=double_fused, triton="doubling"),
        dispatched(double, triton="doubling"),
        dispatched(double),
    ]
    with use_backend(name):
        assert [op(torch.ones(()))[0] for op in operations] == taken
        assert [op(OnCuda())[0] for op in operations] == taken
    assert backend.current_backend() == "auto"


def test_gradients_are_left_to_plain_torch(on_triton):
    op = dispatched(double, triton="doubling")
    tensor = OnCuda()
    tensor.requires_grad = True
    assert op(tensor)[0] == "reference"
    with torch.no_grad():
        assert op(tensor)[0] == "triton"


def test_arguments_by_name_and_another_that_decides(on_triton):
    first = dispatched(double, fused=double_fused, triton="doubling")
    assert first(x=OnCuda(), by=4) == ("triton", 4)
    second = dispatched(double, triton="doubling", by="by")
    ones = torch.ones(())
    assert second(OnCuda(), ones)[0] == "reference"
    assert second(OnCuda(), by=ones)[0] == "reference"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        first(by=4)


def test_the_operation_reads_as_its_reference():
    op = dispatched(double, fused=double_fused)
    assert (op.__name__, op.__doc__) == ("double", "Twice x.")
    assert ops.farthest_point_sampling.__doc__ == ops.sampling.farthest_point_sampling.__doc__
    assert ops.farthest_point_sampling.implementations["reference"] is ops.sampling.farthest_point_sampling


def test_use_backend_nests_and_ends_with_an_exception():
    use_backend("fused")
    with use_backend("reference"):
        assert backend.current_backend() == "reference"
        with pytest.raises(KeyError), use_backend("auto"):
            raise KeyError(backend.current_backend())
        assert backend.current_backend() == "reference"
    assert backend.current_backend() == "fused"


def test_a_wrong_name_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="backend must be one of auto, reference, fused, triton; got 'cuda'"):
        use_backend("cuda")
    assert backend.current_backend() == "auto"


def test_triton_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(backend, "why_not_triton", lambda: "triton cannot be imported (broken)")
    with pytest.raises(RuntimeError, match=r"backend is 'triton', but triton cannot be imported \(broken\)"):
        use_backend("triton")
    assert backend.current_backend() == "auto"


def test_reasons(monkeypatch):
    why = backend.why_not_triton.__wrapped__
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "triton cannot be imported (ModuleNotFoundError" in why()
    monkeypatch.setitem(sys.modules, "triton", type(sys)("triton"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert why() is None
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why() == "there is no CUDA device, and TRITON_INTERPRET=1 is not set"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [(9, 0), (7, 5)][index])
    assert why() == "device 1 has compute capability (7, 5), Triton needs (8, 0)"


def test_a_first_kernel_that_fails_is_a_reason(monkeypatch):
    def fail():
        raise RuntimeError("Failed to find C compiler")

    launch = type(sys)("beaconkv.ops.triton.launch")
    launch.probe = fail
    for name, module in {"triton": type(sys)("triton"), launch.__name__: launch}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert backend.why_not_triton.__wrapped__() == "its first kernel failed (RuntimeError: Failed to find C compiler)"


def test_auto_says_once_why_it_leaves_triton_out(monkeypatch):
    monkeypatch.setattr(backend, "why_not_triton", lambda: "its first kernel failed (no compiler)")
    op = dispatched(double, triton="doubling")
    backend._triton_works.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="plain operations run on CUDA tensors, since its first kernel") as seen:
            assert op(OnCuda())[0] == op(OnCuda())[0] == "reference"
        assert len(seen) == 1
        assert seen[0].filename == __file__
    finally:
        backend._triton_works.cache_clear()


def test_a_tensor_triton_cannot_reach_is_named(on_triton, monkeypatch):
    op = dispatched(double, triton="doubling")
    with use_backend("triton"):
        monkeypatch.setattr(backend, "interpreted", lambda: False)
        with pytest.raises(RuntimeError, match="double: the backend is 'triton', but x is on cpu"):
            op(torch.ones(()))


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ("reference", "print(ops.current_backend())", "reference"),
        ("", "print(ops.current_backend())", "auto"),
        ("fast", "ops.current_backend()", "BEACONKV_OPS must be one of auto, reference, fused, triton; got 'fast'"),
        (
            "fast",
            "import torch; ops.farthest_point_sampling(torch.ones(2, 2), 1)",
            "BEACONKV_OPS must be one of auto, reference, fused, triton; got 'fast'",
        ),
    ],
)
def test_the_environment_is_read_when_first_needed(value, code, said):
    run = subprocess.run(
        [sys.executable, "-c", f"from beaconkv import ops; {code}"],
        env={**os.environ, "BEACONKV_OPS": value},
        capture_output=True,
        text=True,
    )
    assert said in run.stdout + run.stderr


@pytest.mark.parametrize("name", [n for n in ops.__all__ if hasattr(getattr(ops, n), "implementations")])
def test_every_twin_takes_what_its_reference_takes(name):
    """Names, order and defaults of the parameters."""
    operation = getattr(ops, name)
    expected = signature(operation.implementations["reference"])
    twins = [operation.implementations["fused"]] if "fused" in operation.implementations else []
    if "triton" in operation.implementations and backend.why_not_triton() is None:
        twins.append(getattr(import_module(operation.implementations["triton"].module), name))
    for twin in twins:
        assert signature(twin) == expected
