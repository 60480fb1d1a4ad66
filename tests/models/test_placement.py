"""Where models go when nobody says; on a machine without an accelerator, what is refused."""

import pytest
import torch

from beaconkv.models import choose_placement, load
from beaconkv.models.placement import require_device

HAS_ACCELERATOR = torch.accelerator.is_available()


def test_the_default_is_the_accelerator_that_is_there():
    if HAS_ACCELERATOR:
        kind = torch.accelerator.current_accelerator().type
        assert choose_placement() == {"device_map": kind, "dtype": "auto"}
    else:
        assert choose_placement() == {"device_map": "cpu", "dtype": "float32"}


def test_what_is_chosen_stands():
    assert choose_placement("cpu") == {"device_map": "cpu", "dtype": "float32"}
    assert choose_placement("cpu", "auto") == {"device_map": "cpu", "dtype": "auto"}
    assert choose_placement("auto", "bfloat16") == {"device_map": "auto", "dtype": "bfloat16"}
    assert choose_placement("auto") == {"device_map": "auto", "dtype": "auto"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpu",), "unknown device 'gpu'; choose cpu, cuda"),
        (("cpu", "int4"), "unknown dtype 'int4'; choose from float32, bfloat16, float16, auto"),
        (("cuda:99",), "device 'cuda:99': "),
    ],
)
def test_what_is_not_there_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose_placement(*arguments)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch is built with CUDA")
def test_a_torch_without_cuda_is_told_from_a_machine_without_it():
    with pytest.raises(
        ValueError, match=r"device 'cuda': this torch \(.*\) is built without CUDA; choose --device cpu"
    ):
        load("reasoner", device_map="cuda")  # the Python function, too


@pytest.mark.skipif(torch.xpu.is_available(), reason="the device is there")
def test_a_device_that_is_absent():
    with pytest.raises(ValueError, match="device 'xpu': no such device is present"):
        require_device("xpu")


def test_loading_in_python_chooses_nothing():
    """The same script gives the same numbers with and without an accelerator."""
    for loaded in (load("reasoner"), load("reasoner", **choose_placement("cpu"))):
        assert (loaded.model.device.type, loaded.model.dtype) == ("cpu", torch.float32)
    half = load("reasoner", **choose_placement("cpu", "bfloat16")).model
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
