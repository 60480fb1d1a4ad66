"""For pytest in a run over a mutant: says which test failed, and does not look for the smallest example."""

import os

from hypothesis import Phase, settings


def pytest_configure():
    """After tests/conftest.py has loaded its profile, and before test files are imported."""
    parent = settings.get_profile("beaconkv")
    settings.register_profile("mutation", parent, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutation")


def _note(report):
    if report.failed:
        with open(os.environ["MUTATION_REPORT"], "a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")


pytest_runtest_logreport = pytest_collectreport = _note
