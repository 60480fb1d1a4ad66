"""Which causal language models of the installed transformers can be bounded, each tried on a small random model.

    python benchmarks/families.py [KIND ...]

A family that runs gives the plain cache's tokens with a budget that is never reached, and continues at a small one.
Each has one line: the outcome, the family, and the reason.
"""

from __future__ import annotations

import inspect
import signal
import sys
import warnings

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES

from beaconkv import BoundedCache

SMALL = dict(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, pad_token_id=0, bos_token_id=None,
    eos_token_id=None, tie_word_embeddings=False, num_experts=4, n_routed_experts=4, num_local_experts=4,
    num_experts_per_tok=2, moe_intermediate_size=32, n_group=1, topk_group=1, n_shared_experts=1,
    linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    first_k_dense_replace=1, num_layers=4, n_layer=4, n_head=4, n_embd=64, d_model=64,
)  # fmt: skip
SECONDS, PARAMETERS = 60, 60_000_000
"""Limits: a family that takes longer, or whose small model is larger, is left out."""


def build(name: str) -> torch.nn.Module:
    """A small random model. Raises the error of its configuration or class where the sizes do not fit."""
    kind = getattr(transformers, name)
    known = set(inspect.signature(kind.config_class.__init__).parameters)
    for source in ("__dataclass_fields__", "attribute_map"):
        known |= set(getattr(kind.config_class, source, {}))
    config = kind.config_class(**{key: value for key, value in SMALL.items() if key in known})
    text = config.get_text_config(decoder=True)
    for key, value in SMALL.items() if text is not config else ():
        if hasattr(text, key):
            setattr(text, key, value)
    for part in (config, text):
        if getattr(part, "layer_types", None) and len(part.layer_types) != SMALL["num_hidden_layers"]:
            part.layer_types = [*part.layer_types[:3], part.layer_types[-1]]
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    if size > PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(0)
    model = kind(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def outcome(model: torch.nn.Module) -> tuple[str, str]:
    """The outcome of a model, and the reason."""
    ids = torch.randint(1, 90, (1, 40), generator=torch.Generator().manual_seed(0))
    call = dict(max_new_tokens=30, do_sample=False, pad_token_id=0, eos_token_id=-1)
    try:
        plain = model.generate(ids, **call)
    except Exception as error:
        return "not built", f"does not run at these sizes: {error}"
    try:
        large = model.generate(ids, past_key_values=BoundedCache(model, budget=400), **call)
        model.generate(ids, past_key_values=BoundedCache(model, budget=46, protect=8), **call)
    except (ValueError, RuntimeError) as error:
        return "refused", str(error)
    return ("runs", "") if torch.equal(plain, large) else ("WRONG", "other tokens than the plain cache")


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    counts: dict[str, int] = {}

    def too_long(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, too_long)
    for family, names in FAMILIES.items():
        if sys.argv[1:] and family not in sys.argv[1:]:
            continue
        signal.alarm(SECONDS)
        try:
            model = build(names if isinstance(names, str) else names[0])
            what, why = outcome(model)
        except Exception as error:
            what, why = "not built", f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        counts[what] = counts.get(what, 0) + 1
        print(f"{what:<10}{family:<24}{' '.join(why.split())[:180]}", flush=True)
    print(f"transformers {transformers.__version__}:", ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
