"""Properties of the installed transformers, and which models can be bounded. The only file that looks at versions."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Hashable
from types import ModuleType

import torch
import transformers
from packaging.version import Version
from torch import nn
from transformers.cache_utils import DynamicCache, DynamicLayer

OLDEST, NEXT = Version("4.57"), Version("6")
KERNELS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
"""Attention implementations that can be wrapped."""


def require_supported_release() -> None:
    """Raise ``ImportError`` unless the installed transformers is supported."""
    installed = Version(transformers.__version__)
    if not OLDEST <= installed < NEXT:
        raise ImportError(f"beaconkv supports transformers >={OLDEST},<{NEXT}; found {installed}")


def cache_argument() -> str:
    """The name under which models and ``generate`` take a cache: "cache" in new releases."""
    parameters = inspect.signature(transformers.LlamaForCausalLM.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def require_decoder(model: nn.Module) -> None:
    """Raise ``ValueError`` unless this is a decoder of transformers: a model with a configuration, without encoder."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if not isinstance(config, transformers.PretrainedConfig):
        raise ValueError(f"{name} is no model of transformers: cannot be bounded")
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder: cannot be bounded, only decoders can")


def model_file(module: nn.Module) -> ModuleType | None:
    """The file of transformers that a module's attention comes from, also where a subclass is defined elsewhere.

    It has the names by which the module finds attention functions: ``ALL_ATTENTION_FUNCTIONS`` and
    ``eager_attention_forward``. None: attention does not go through transformers' AttentionInterface.
    """
    files = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
    return next((file for file in files if hasattr(file, "ALL_ATTENTION_FUNCTIONS")), None)


def attention_modules(model: nn.Module) -> dict[int, nn.Module]:
    """The decoder's self-attention modules by layer index.

    Raises:
        ValueError: a model whose attention cannot be observed, with the reason.
    """
    require_decoder(model)
    name = type(model).__name__
    modules: dict[int, nn.Module] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        parameters = inspect.signature(type(module).forward).parameters
        if not isinstance(index, int) or "position_embeddings" not in parameters or not hasattr(module, "scaling"):
            continue
        kind = type(module).__name__
        if hasattr(module, "kv_b_proj") or hasattr(module, "kv_lora_rank"):
            raise ValueError(
                f"{name}: {kind} is multi-head latent attention (MLA), which cannot be bounded per KV head"
            )
        if getattr(module, "is_kv_shared_layer", False):
            raise ValueError(f"{name}: layer {index} shares the keys and values of another layer: cannot be bounded")
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            raise ValueError(f"{name}: {kind}.forward takes no **kwargs: its attention function cannot be reached")
        if model_file(module) is None:
            raise ValueError(
                f"{name}: {kind} computes attention itself and not through transformers' AttentionInterface: "
                "cannot be bounded"
            )
        if index in modules:
            raise ValueError(f"{name} has two attention modules of layer {index}: cannot be bounded")
        modules[index] = module
    if not modules:
        raise ValueError(
            f"{name} has no attention module that takes cos and sin (position_embeddings), as models without rotary "
            "position embeddings and those that rotate in another way: cannot be bounded"
        )
    return modules


def host_layers(model: nn.Module) -> tuple[list, list[int]]:
    """The cache layers transformers would use, and which of them hold full attention.

    Raises:
        ValueError: no full-attention layer.
    """
    require_decoder(model)
    layers = DynamicCache(config=model.config).layers
    if not layers:
        count = model.config.get_text_config(decoder=True).num_hidden_layers
        layers = [DynamicLayer() for _ in range(count)]
    full = [i for i, layer in enumerate(layers) if type(layer) is DynamicLayer]
    for i, layer in enumerate(layers):
        if isinstance(layer, DynamicLayer) and not getattr(layer, "is_sliding", False) and i not in full:
            raise ValueError(
                f"{type(model).__name__}: layer {i} keeps a {type(layer).__name__}, which cannot be bounded"
            )
    if not full:
        kinds = sorted({type(layer).__name__ for layer in layers})
        raise ValueError(f"{type(model).__name__} has no full-attention layer to bound, only {', '.join(kinds)}")
    return layers, full


def require_uncompiled(module: nn.Module) -> None:
    """Raise ``RuntimeError`` if this module is compiled: the work of a bounded cache in a step cannot be traced."""
    compiled = (
        torch.compiler.is_compiling()
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        or isinstance(module, torch._dynamo.OptimizedModule)
    )
    if compiled:
        raise RuntimeError(
            f"{type(module).__name__} runs through torch.compile, and a BoundedCache counts and evicts on the host: "
            "use the model as it was before torch.compile, and beaconkv.CompiledDecoder for compiled steps"
        )


def likeness(module: nn.Module) -> Hashable:
    """Equal for modules of one kind, with parameters of the same shapes and types in the same place."""
    parameters = [(name, tuple(p.shape), p.dtype, p.device) for name, p in module.named_parameters()]
    return type(module), tuple(parameters)


def warn_of_dropped_cache(model: nn.Module) -> None:
    """Warn where ``generate`` itself drops every cache at some length (Phi-3 with LongRoPE)."""
    config = model.config.get_text_config(decoder=True)
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    threshold = getattr(config, "original_max_position_embeddings", None) or scaling.get(
        "original_max_position_embeddings"
    )
    if config.model_type.startswith("phi") and kind == "longrope" and threshold:
        warnings.warn(
            f"{type(model).__name__} with LongRoPE: generate() of transformers drops every cache, this one too, when "
            f"the text passes {threshold} tokens, and goes on with one that grows. Stay below, or call the model in a "
            "loop of your own",
            stacklevel=3,
        )
