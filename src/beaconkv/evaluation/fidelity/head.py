"""A model's output head without its decoder: logits of many tokens at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class OutputHead:
    """Computes logits from last hidden states.

    A decode step that stops at the hidden state saves the product with the vocabulary, which costs several times
    more per token than for many tokens at once; and hidden states are small enough to keep (576 numbers per token,
    where the logits of SmolLM2-135M have 49,152).

    Args:
        model: Decoder of transformers.
        ids: Token ids (1, n) int64, a few for a test.

    Raises:
        ValueError: the model computes its logits in a way that is not supported.
    """

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        config = model.config.get_text_config(decoder=True)
        self.decoder, self.module = model.get_decoder(), model.get_output_embeddings()
        self.softcap = getattr(config, "final_logit_softcapping", None)  # Gemma
        # Cohere multiplies, Granite divides.
        self.factor = (getattr(config, "logit_scale", None) or 1) / (getattr(config, "logits_scaling", None) or 1)
        with torch.inference_mode():
            expected = model(ids, use_cache=False).logits
            found = self.logits(self.decoder(ids, use_cache=False).last_hidden_state)
        tolerance = 4 * torch.finfo(expected.dtype).eps * expected.abs().max()  # rounding only
        if found.shape != expected.shape or (found - expected).abs().max() > tolerance:
            raise ValueError(f"{type(model).__name__} computes its logits in a way that is not supported")

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) -> (..., V) float32."""
        logits = self.module(hidden)
        if self.factor != 1:
            logits = logits * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits.float()
