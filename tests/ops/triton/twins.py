"""What the tests of all twins share."""

from importlib import import_module

import pytest

from beaconkv import ops


def twin(name, module):
    """The Triton twin itself, whatever the backend; loaded when called, since Triton may be missing."""

    def call(*args, **kwargs):
        return getattr(import_module(f"beaconkv.ops.triton.{module}"), name)(*args, **kwargs)

    return call


def reference(name):
    return getattr(ops, name).implementations["reference"]


def assert_refused_alike(name, twin, error, *args):
    """Twin and reference raise the same error with the same words."""
    said = []
    for function in (reference(name), twin):
        with pytest.raises(error) as caught:
            function(*args)
        said.append(str(caught.value))
    assert said[0] == said[1]
