"""Imports go down only, floor by floor, and no files import each other in a circle."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import beaconkv

ROOT = Path(beaconkv.__file__).parent
FLOORS = [
    {"types", "schedule", "units"},
    {"ops"},
    {"policies"},
    {"cache"},
    {"integrations", "memory"},
    {"instruments"},
    {"models", "provenance"},
    {"evaluation"},
    {"analysis"},
    {"cli"},
]
"""From the lowest up. A part imports parts of lower floors; those of one floor do not import each other."""
ALONE = {"models", "provenance"}
"""Parts that import no other part."""
OUTSIDE = {
    "types": {"torch"},
    "schedule": set(),
    "units": set(),
    "ops": {"torch", "triton"},
    "policies": {"torch"},
    "cache": {"torch"},
    "integrations": {"torch", "transformers", "packaging", "vllm", "numpy", "prometheus_client"},
    "instruments": {"torch", "transformers"},
}
HOSTS = {"transformers": {"vllm", "prometheus_client"}, "vllm": {"transformers"}}
"""What the integration of one host never imports: the other host."""
WITHOUT_VLLM = {"__init__", "settings", "requests", "entries", "rotary", "layout", "stats"}
"""Files of the vLLM integration that do without vLLM."""


def floor_of(part):
    return next(i for i, floor in enumerate(FLOORS) if part in floor)


def module_of(path):
    """Dotted name of a file of the package; that of a folder for its ``__init__``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["beaconkv", *(parts[:-1] if parts[-1] == "__init__" else parts)])


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(path):
    """Absolute names imported by a file of the package, wherever the statement stands."""
    package = ("beaconkv", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{module}.{alias.name}"
                yield name if name in MODULES or module == "beaconkv" else module


def imported_files(path):
    """Dotted names of the package's files that a file imports; names of a folder come from its ``__init__``."""
    names = {name if name in MODULES else name.rpartition(".")[0] for name in imports(path)}
    return names & set(MODULES) - {module_of(path)}


def find_circle(graph):
    """Nodes along one circle, the first again at the end; None if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


FILES = [p for p in MODULES.values() if p.parent != ROOT or p.stem not in ("__init__", "__main__")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "beaconkv":
            if rest and rest[0] not in (part, "__version__"):
                assert floor_of(rest[0]) < floor_of(part), f"{path.name} climbs to {name}"
                assert part not in ALONE, f"{path.name} imports {name}"
        elif part in OUTSIDE and head not in sys.stdlib_module_names:
            assert head in OUTSIDE[part], f"{path.name} imports {head}"


def test_no_files_import_each_other_in_a_circle():
    """Imports in functions and for type checkers count. That a file's folder is imported before the file does not."""
    graph = {module: imported_files(path) for module, path in MODULES.items()}
    circle = find_circle(graph)
    assert circle is None, " <- ".join(circle)


@pytest.mark.parametrize("host", HOSTS)
def test_an_integration_knows_its_own_host(host):
    for path in (ROOT / "integrations" / host).rglob("*.py"):
        names = list(imports(path))
        heads = {name.split(".")[0] for name in names}
        others = tuple(f"beaconkv.integrations.{other}" for other in HOSTS if other != host)
        assert not [name for name in names if name.startswith(others)], path.name
        assert not heads & HOSTS[host], path.name
        if host == "vllm" and path.stem in WITHOUT_VLLM:
            assert not heads & {"vllm", "prometheus_client"}, path.name


def test_the_test_sees_relative_imports():
    found = set(imports(ROOT / "policies" / "observation.py"))
    assert {"beaconkv.ops", "beaconkv.types", "beaconkv.policies.base", "torch"} <= found


def test_the_test_sees_files_wherever_they_are_imported():
    in_a_function, for_type_checkers = ROOT / "cli" / "plan.py", ROOT / "evaluation" / "answers" / "progress.py"
    assert {"beaconkv.memory", "beaconkv.models"} <= imported_files(in_a_function)
    assert imported_files(for_type_checkers) == {"beaconkv.evaluation.answers.batch"}
    by_its_folder = ROOT / "evaluation" / "tasks" / "reasoning" / "chain.py"
    assert imported_files(by_its_folder) == {"beaconkv.models.alphabet"}


def test_the_test_sees_circles():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": set()}) is None
    assert set(find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


def test_importing_has_no_effect_and_is_light():
    """Neither transformers nor any extra is imported, and nothing is registered."""
    code = (
        "import sys, beaconkv; beaconkv.make_policy('beaconkv');"
        "heavy = {'transformers', 'typer', 'rich', 'accelerate', 'gguf', 'triton', 'vllm'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
