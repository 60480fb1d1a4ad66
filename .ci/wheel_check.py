"""Run in an environment that has the wheel and its core dependencies, and nothing else: ``wheel_check.py WHEEL FILES``.

FILES lists what belongs to the package. Ends with an ``AssertionError`` that says what is wrong.
"""

import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "matplotlib": "eval",
    "math_verify": "eval",
    "accelerate": "gguf",
    "gguf": "gguf",
    "triton": "kernels",
    "vllm": None,
    "prometheus_client": None,
}
"""Packages that must be missing, and the extra that installs each; vLLM installs its own."""


def check_contents(wheel, files):
    """The wheel holds all files of the package, and its metadata."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if ".dist-info/" not in name}
    expected = set(Path(files).read_text().split())
    assert package == expected, f"missing {sorted(expected - package)}, too many {sorted(package - expected)}"
    for name in ("py.typed", "models/reasoner_weights/model.safetensors", "analysis/report/static/page.html"):
        assert f"beaconkv/{name}" in package, name
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names), "no license"
    return len(package)


def check_description():
    """What PyPI shows: links by full address only."""
    description = importlib.metadata.metadata("beaconkv").get_payload() or ""
    description = description or importlib.metadata.metadata("beaconkv")["Description"]
    assert "Let open-weight reasoning models" in description, "no README"
    assert "](docs/" not in description, "a relative link"
    assert "![" not in description, "a picture by relative path"


def check_missing():
    """Every extra is really absent: otherwise the checks below would prove nothing."""
    for package in EXTRAS:
        assert importlib.util.find_spec(package) is None, f"{package} is installed: the environment is not bare"


def check_imports():
    """Every module can be imported, or it needs a package that is known to belong to an extra."""
    import beaconkv

    wanted = {}
    for module in pkgutil.walk_packages(beaconkv.__path__, "beaconkv.", onerror=lambda name: None):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            wanted.setdefault(error.name, []).append(module.name)
    assert set(wanted) <= set(EXTRAS), f"no extra installs {wanted}"
    allowed = {"typer": "beaconkv.cli.", "rich": "beaconkv.cli.", "vllm": "beaconkv.integrations.vllm."}
    allowed |= {"triton": "beaconkv.ops.triton.", "prometheus_client": "beaconkv.integrations.vllm."}
    for package, modules in wanted.items():
        for name in modules:
            assert name.startswith(allowed.get(package, "!")), f"{name} cannot be imported without {package}"
    return wanted


def check_commands():
    """The command line names the extra that it needs, in one line."""
    for command in ([Path(sys.executable).with_name("beaconkv")], [sys.executable, "-m", "beaconkv"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert done.returncode == 1, done
        assert "pip install 'beaconkv[cli]'" in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def check_extras():
    """A function that needs a package names the extra that installs it."""
    from beaconkv.evaluation.figures import canvas
    from beaconkv.evaluation.grading import equivalence
    from beaconkv.models import load

    wants = {
        "math-verify: pip install 'beaconkv[eval]'": lambda: equivalence.equivalent("1/2", "0.5"),
        "'matplotlib': pip install 'beaconkv[eval]'": lambda: canvas.looks().__enter__(),
        "pip install 'beaconkv[gguf]'": lambda: load("smollm2-135m"),
    }
    for message, call in wants.items():
        said = "nothing"
        try:
            call()
        except ImportError as error:
            said = str(error)
        assert message in said, f"the message is {said!r} in place of {message!r}"


def check_use():
    """A small model writes with a bounded cache; the bundled reasoner is in the package."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    import beaconkv

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=61, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    cache = beaconkv.BoundedCache(model, policy="beaconkv", budget=64)
    ids = torch.randint(61, (1, 20))
    argument = {"past_key_values": cache}
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=120, do_sample=False, pad_token_id=0, **argument
    )
    assert out.shape == (1, 140)
    assert cache.stats.evictions > 3
    assert cache.stats.kv_bytes == cache.stats.formula_bytes
    assert "beaconkv" in beaconkv.policies()
    assert beaconkv.models.load("reasoner").model.num_parameters() > 1_000_000


def main():
    wheel, files = sys.argv[1:]
    check_missing()
    check_description()
    number = check_contents(wheel, files)
    wanted = check_imports()
    check_commands()
    check_extras()
    check_use()
    without = ", ".join(f"{len(modules)} want {package}" for package, modules in sorted(wanted.items()))
    print(
        f"the wheel: {number} files; every module imports in an empty environment ({without}); a model writes with it"
    )


if __name__ == "__main__":
    main()
