"""What this release of transformers is like, and which models can be bounded. All version questions end here."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Hashable
from functools import lru_cache

import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer

from ...ops import apply_half, apply_identity, apply_interleaved, unrotate
from ...types import Rope, RotaryFn

OLDEST, NEXT = Version("4.57"), Version("6")
KERNELS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
"""Attention implementations that can be wrapped."""
REFUSALS = (TypeError, ValueError, LookupError, AttributeError, RuntimeError)
"""What a module raises that takes its arguments in another form."""


def require_supported_release() -> None:
    """Raise ``ImportError`` unless the installed transformers is one this integration was written for."""
    installed = Version(transformers.__version__)
    if not OLDEST <= installed < NEXT:
        raise ImportError(f"beaconkv supports transformers >={OLDEST},<{NEXT}; found {installed}")


def cache_argument() -> str:
    """The name under which models and ``generate`` take a cache: "cache" in new releases."""
    parameters = inspect.signature(transformers.LlamaForCausalLM.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def require_attention_interface(model: nn.Module) -> None:
    """Raise ``ValueError`` unless the model's attention function can be chosen by name."""
    if not getattr(model, "_supports_attention_backend", False):
        name = type(model).__name__
        raise ValueError(f"{name} does not route attention through transformers' AttentionInterface: cannot be bounded")


def attention_modules(model: nn.Module) -> dict[int, nn.Module]:
    """The decoder's self-attention modules by layer index.

    Raises:
        ValueError: a model whose attention cannot be observed, with the reason.
    """
    require_attention_interface(model)
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
        if index in modules:
            raise ValueError(f"{name} has two attention modules of layer {index}: encoder-decoders cannot be bounded")
        modules[index] = module
    if not modules:
        raise ValueError(f"{name} has no attention module with rotary position embeddings: cannot be bounded")
    return modules


def host_layers(model: nn.Module) -> tuple[list, list[int]]:
    """The cache layers transformers would use, and which of them hold full attention.

    Raises:
        ValueError: no full-attention layer.
    """
    require_attention_interface(model)
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


def rotary_function(module: nn.Module) -> RotaryFn:
    """The model's own rotary function, of one tensor.

    Raises:
        ValueError: the module's file has none.
    """
    own = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if own is None:
        raise ValueError(f"{type(module).__name__}: no apply_rotary_pos_emb in its file: queries cannot be turned back")
    return _of_one_tensor(own)


@lru_cache
def _of_one_tensor(own: Callable) -> RotaryFn:
    """One and the same for all modules of a file: layers that are turned alike are known by it."""

    def apply(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return own(x, x[:, :0], cos, sin)[0]

    return apply


LAYOUTS = (apply_half, apply_interleaved)


def known_layout(apply: RotaryFn, dim: int, cos: Tensor) -> RotaryFn:
    """The library's own function that does exactly what ``apply`` does, or else ``apply``.

    Layers with one and the same function take decode steps together, and kernels know these layouts.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 3, dim, generator=generator)
    angles = [torch.randn(1, 3, cos.shape[-1], generator=generator) for _ in range(2)]
    for own in LAYOUTS:
        try:
            if torch.equal(own(x, *angles), apply(x, *angles)):
                return own
        except REFUSALS:
            continue
    return apply


class QueryProbe:
    """Stands in for a cache layer to see the query that a module hands to its attention function."""

    query: Tensor | None = None

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs):
        self.query = query
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def verified_rotary(
    module: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, call_kwarg: str, kwargs: dict
) -> RotaryFn:
    """The rotary function of this module, checked on the module itself.

    One random hidden state is sent through the module twice, with the identity as rotation and with a
    real one. Turned back, both queries must be equal; a module that never turns its queries
    (a layer without positional encoding) is recognised too.

    Args:
        hidden: any hidden states of the model, for size, dtype and device. Their values are not used:
            those of a padding token may be all zero, and zero passes every check.
        cos, sin: shapes (…, D_rot), dtype and device of the model's own.
        call_kwarg: name under which the attention function finds its :class:`QueryProbe`.
        kwargs: other arguments of the module's forward.

    Raises:
        ValueError: neither, so the query before RoPE cannot be recovered.
    """
    name = f"{type(module).__name__} (layer {module.layer_idx})"
    apply = rotary_function(module)
    # One angle for all pairs: valid whichever dimensions the layout pairs.
    angle = torch.full((1, 1, cos.shape[-1]), 0.83, device=cos.device)
    generator = torch.Generator().manual_seed(0)  # its own: the caller's random numbers must not change
    hidden = torch.randn(1, 1, hidden.shape[-1], generator=generator).to(hidden)
    seen = []
    for c, s in ((torch.ones_like(angle), torch.zeros_like(angle)), (angle.cos(), angle.sin())):
        probe = QueryProbe()
        embeddings = (c.to(cos.dtype), s.to(sin.dtype))
        try:
            with torch.no_grad():
                module.forward(hidden, **{**kwargs, "position_embeddings": embeddings, call_kwarg: probe})
        except torch.OutOfMemoryError:
            raise
        except REFUSALS as error:
            raise ValueError(f"{name} cannot be bounded: trying it on one token failed with: {error}") from error
        if probe.query is None:
            raise ValueError(f"{name} does not call its attention function: cannot be bounded")
        seen.append((probe.query.float(), Rope(*embeddings, apply)))
    (plain, _), (turned, rope) = seen
    tolerance = 1e-4 if cos.dtype == torch.float32 else 5e-2
    scale = plain.abs().max()
    if torch.equal(turned, plain) and scale > 0:
        return apply_identity
    try:
        difference = (unrotate(turned, rope) - plain).abs().max()
    except REFUSALS as error:
        raise ValueError(f"{name} cannot be bounded: its rotary function failed with: {error}") from error
    if scale > 0 and difference <= tolerance * scale:
        return known_layout(apply, plain.shape[-1], cos)
    raise ValueError(
        f"{name}: its query before RoPE cannot be recovered from the one its attention function receives; "
        "this kind of model is not supported"
    )


def likeness(module: nn.Module) -> Hashable:
    """Equal for modules of one kind, with parameters of the same shapes and types in the same place."""
    parameters = [(name, tuple(p.shape), p.dtype, p.device) for name, p in module.named_parameters()]
    return type(module), tuple(parameters)


def warn_of_dropped_cache(model: nn.Module) -> None:
    """Warn where ``generate`` itself throws any cache away at some length (Phi-3 with LongRoPE)."""
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
