"""Tiny random models of every family the library claims, built in code."""

from functools import cache

import torch
import transformers

VOCAB = 61
_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
    tie_word_embeddings=False,
)
_FAMILIES = {
    "llama": ("Llama", dict(head_dim=8)),
    "llama3-rope": (
        "Llama",
        dict(
            head_dim=8,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ),
    "qwen2": ("Qwen2", dict()),
    "qwen3": ("Qwen3", dict(head_dim=16)),
    "qwen3-yarn": (
        "Qwen3",
        dict(
            head_dim=16,
            rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1),
    ),
    "mistral": ("Mistral", dict(head_dim=8, sliding_window=None)),
    "phi3": ("Phi3", dict(partial_rotary_factor=0.5)),
    "gemma3": ("Gemma3", dict(head_dim=16, sliding_window=16, num_hidden_layers=6)),
    "gpt-oss": (
        "GptOss",
        dict(head_dim=16, sliding_window=16, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=4),
    ),
    "smollm3": ("SmolLM3", dict(no_rope_layers=[1, 0, 1], num_hidden_layers=3)),
    "glm4": ("Glm4", dict(head_dim=16, partial_rotary_factor=0.5)),
}
FAMILIES = list(_FAMILIES)
_LINEAR = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
_MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
_FAMILIES |= {
    "qwen3-next": (
        "Qwen3Next",
        dict(head_dim=16, num_hidden_layers=4, shared_expert_intermediate_size=16, **_LINEAR, **_MOE),
    ),
    "qwen3.5": ("Qwen3_5", dict(head_dim=16, num_hidden_layers=4, **_LINEAR)),
    "olmo-hybrid": ("OlmoHybrid", dict(head_dim=8, num_hidden_layers=4, **_LINEAR)),
    "stablelm": ("StableLm", dict()),
    "phi": ("Phi", dict()),
    "persimmon": ("Persimmon", dict(num_key_value_heads=6)),
    "gemma4": (
        "Gemma4",
        dict(
            head_dim=8,
            global_head_dim=16,
            num_hidden_layers=6,
            sliding_window=16,
            hidden_size_per_layer_input=0,
            num_kv_shared_layers=0,
            vocab_size_per_layer_input=VOCAB,
        ),
    ),
    "nanochat": ("NanoChat", dict()),
    "qwen2-moe": ("Qwen2Moe", dict(shared_expert_intermediate_size=16, **_MOE)),
    "ernie": ("Ernie4_5", dict(head_dim=8)),
    "helium": ("Helium", dict(head_dim=8)),
    "cohere": ("Cohere", dict()),
    "gemma2": (
        "Gemma2",
        dict(head_dim=16, sliding_window=16, num_hidden_layers=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=16),
    ),
}
IS_NEW = int(transformers.__version__.split(".")[0]) >= 5
FURTHER = [
    name
    for name in _FAMILIES
    if name not in FAMILIES and (IS_NEW or name in ("phi", "ernie", "helium", "cohere", "gemma2"))
]
"""Families that are compared with the plain cache only; transformers 4.x lacks some, and gives others other modules."""
FULL_ATTENTION = [f for f in FAMILIES if f not in ("gemma3", "gpt-oss")]
"""Families whose layers are all bounded."""


def kernels(family: str) -> list[str]:
    """Attention implementations that transformers offers this family on the CPU."""
    return ["eager"] if family in ("gpt-oss", "gemma2") else ["sdpa", "eager"]


@cache
def _build(family: str, kernel: str, dtype: torch.dtype, shape: tuple = ()):
    name, extra = _FAMILIES[family]
    text_config = f"{name}TextConfig"  # of models that read pictures too
    config_class = getattr(transformers, text_config if hasattr(transformers, text_config) else f"{name}Config")
    model_class = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(1)
    shape = {key: list(value) if isinstance(value, tuple) else value for key, value in shape}
    config = config_class(**{**_COMMON, **extra, **shape}, attn_implementation=kernel)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:  # sharp attention and lively text: what is kept must matter
                parameter.normal_(std=1.0 if "embed" in name else 1.4 / parameter.shape[-1] ** 0.5)
            elif "q_norm" in name or "k_norm" in name:
                parameter.fill_(0.6 if "Gemma" in type(model).__name__ else 1.6)
            elif "sinks" in name or "bias" in name:
                parameter.normal_(std=0.5)
    return model.to(dtype)


def tiny(family: str = "llama", kernel: str | None = None, dtype: torch.dtype = torch.float32, **shape):
    """A random model, the same weights at every call. Shared: tests must leave it clean. ``shape``: of its config."""
    return _build(family, kernel or kernels(family)[0], dtype, tuple(shape.items()))


def prompt(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """A left-padded batch of random tokens (none of them the padding token)."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = torch.randint(1, VOCAB, (length,), generator=generator)
        mask[row, longest - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def greedy(model, inputs, cache=None, new_tokens=40, **kwargs) -> torch.Tensor:
    """Generated tokens only, (rows, new_tokens)."""
    out = model.generate(
        **inputs, past_key_values=cache, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, **kwargs
    )
    return out[:, inputs["input_ids"].shape[1] :]
