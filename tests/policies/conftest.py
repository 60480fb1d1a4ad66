import pytest

from beaconkv.policies.base import REGISTRY


@pytest.fixture
def _own_registry():
    """What a test registers is forgotten after it."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)
