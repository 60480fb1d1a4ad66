"""Every example in a public docstring runs, with the bundled reasoner."""

import doctest
import importlib
import pkgutil
import warnings
from dataclasses import dataclass

import pytest
import torch

import beaconkv
from beaconkv.evaluation import load_tasks
from beaconkv.integrations.transformers import cache_argument
from beaconkv.policies.base import REGISTRY

OUTSIDE = {"vllm", "prometheus_client", "triton", "typer", "rich", "matplotlib", "selenium"}
STARTS = {
    "BoundedCache",
    "CompiledDecoder",
    "EvictionPolicy",
    "EvictionSchedule",
    "Evaluation",
    "PolicySpec.schedule",
    "Progress",
    "ServingSettings",
    "SideBySide",
    "compare_policies",
    "load",
    "load_tasks",
    "make_policy",
    "measure",
    "parse_policy",
    "plan_memory",
    "replay",
}
"""Where a user starts: these have an example."""


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in pkgutil.walk_packages(beaconkv.__path__, "beaconkv.", onerror=lambda name: None):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] in OUTSIDE:
                continue
            raise
        yield from (found for found in finder.find(module, module=module) if found.examples)


EXAMPLES = {example.name: example for example in examples()}


@pytest.fixture(scope="module")
def names():
    """Names that the examples may use."""
    model, tokenizer = beaconkv.models.load("reasoner")
    (task,) = load_tasks("plan@0.33", samples=1)
    inputs = tokenizer(task.problems[0].prompt, return_tensors="pt")
    with torch.no_grad():
        chain = model.generate(**inputs, max_new_tokens=200, do_sample=False)[0].tolist()
    from beaconkv.analysis.recorder import record
    from beaconkv.evaluation.answers.decoding import Sampling
    from beaconkv.evaluation.cells import make_cells
    from beaconkv.evaluation.fidelity.texts import Text
    from beaconkv.models import load

    own = dict(beaconkv=beaconkv, torch=torch, dataclass=dataclass, cache_argument=cache_argument, record=record)
    own |= dict(Sampling=Sampling, make_cells=make_cells, Text=Text, load=load, load_tasks=load_tasks)
    return own | dict(model=model, tokenizer=tokenizer, inputs=inputs, chain=chain, BoundedCache=beaconkv.BoundedCache)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_example_runs(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(REGISTRY)
    example = EXAMPLES[name]
    example.globs = {**names, **example.globs, "folder": tmp_path}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    for own in set(REGISTRY) - before:
        del REGISTRY[own]
    assert tried
    assert failed == 0


def test_the_places_where_a_user_starts_have_an_example():
    assert {name for name in STARTS if not any(found.endswith(f".{name}") for found in EXAMPLES)} == set()
