"""Imports go down only: types, ops, policies, cache, integrations, {models, ...}, cli."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import beaconkv

ROOT = Path(beaconkv.__file__).parent
FLOORS = [
    {"types", "schedule", "units"},
    {"ops"},
    {"policies"},
    {"cache"},
    {"integrations"},
    {"models", "memory", "provenance", "evaluation", "analysis"},
    {"cli"},
]
OUTSIDE = {
    "types": {"torch"},
    "schedule": set(),
    "units": set(),
    "ops": {"torch", "triton"},
    "policies": {"torch"},
    "cache": {"torch"},
    "integrations": {"torch", "transformers", "packaging", "vllm", "numpy", "prometheus_client"},
}
HOSTS = {"transformers": {"vllm", "prometheus_client"}, "vllm": {"transformers"}}
"""What the integration of one host never imports: the other host."""
WITHOUT_VLLM = {"__init__", "settings", "requests", "entries", "rotary"}
"""Files of the vLLM integration that do without vLLM."""
NOT_YET = {"evaluation"}
"""Where two files still import each other."""


def floor_of(part):
    return next(i for i, floor in enumerate(FLOORS) if part in floor)


def imports(path):
    """Absolute module names imported by a file of the package, wherever the statement stands."""
    package = ("beaconkv", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if node.module is None or module == "beaconkv":
                yield from (f"{module}.{alias.name}" for alias in node.names)
            else:
                yield module


FILES = [p for p in sorted(ROOT.rglob("*.py")) if p.parent != ROOT or p.stem not in ("__init__", "__main__")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "beaconkv":
            if rest and rest[0] not in ("__version__",):
                assert floor_of(rest[0]) <= floor_of(part), f"{path.name} climbs to {name}"
        elif part in OUTSIDE and head not in sys.stdlib_module_names:
            assert head in OUTSIDE[part], f"{path.name} imports {head}"


def module_of(path):
    return ".".join(("beaconkv", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def imported_modules(path, modules):
    """Files of the package that a file imports, for type checkers alone or not; a name may be a file of its own."""
    package = ("beaconkv", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            yield from names & modules or {module} & modules


def test_no_files_import_each_other():
    """Files that import nothing, or only what is sorted already, are taken away until none is left."""
    paths = {module_of(path): path for path in FILES if path.relative_to(ROOT).parts[0] not in NOT_YET}
    left = {name: set(imported_modules(path, paths.keys())) - {name} for name, path in paths.items()}
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left


@pytest.mark.parametrize("host", HOSTS)
def test_an_integration_knows_its_own_host(host):
    for path in (ROOT / "integrations" / host).rglob("*.py"):
        heads = {name.split(".")[0] for name in imports(path)}
        assert not heads & HOSTS[host], path.name
        if host == "vllm" and path.stem in WITHOUT_VLLM:
            assert not heads & {"vllm", "prometheus_client"}, path.name


def test_the_test_sees_relative_imports(tmp_path):
    found = set(imports(ROOT / "policies" / "observation.py"))
    assert {"beaconkv.ops", "beaconkv.types", "beaconkv.policies.base", "torch"} <= found


def test_importing_has_no_effect_and_is_light():
    """Neither transformers nor any extra is imported, and nothing is registered."""
    code = (
        "import sys, beaconkv; beaconkv.make_policy('beaconkv');"
        "heavy = {'transformers', 'typer', 'rich', 'accelerate', 'gguf', 'triton', 'vllm'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
