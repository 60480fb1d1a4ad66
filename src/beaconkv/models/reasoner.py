"""The bundled reasoner: a small Qwen3 that solves the reasoning tasks in long chains, one token per character."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .alphabet import CHARACTERS, END, PAD


def folder(report: Callable[[str], None] = lambda message: None) -> Path:
    """The model in this package, with its card (README.md)."""
    return Path(__file__).parent / "reasoner_weights"


def save(model: Any, into: Path) -> None:
    """Write model, configuration and tokenizer so that every supported release of transformers reads them.

    Args:
        model: Qwen3ForCausalLM over the characters of :mod:`beaconkv.models.alphabet`.
        into: Folder, made if missing.
    """
    import json

    into.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(into)
    (into / "generation_config.json").unlink(missing_ok=True)
    path = into / "config.json"
    config = json.loads(path.read_text())
    # 4.x reads rope_theta, 5.x rope_parameters: both are written.
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    config["rope_theta"], config["rope_parameters"] = theta, {"rope_type": "default", "rope_theta": theta}
    config["architectures"] = ["Qwen3ForCausalLM"]
    config.pop("transformers_version", None)
    path.write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
    make_tokenizer().save_pretrained(into)
    path = into / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # 5.x writes a class that 4.x does not have
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_tokenizer() -> Any:
    """One token per character; the line break ends an answer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(CHARACTERS)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
