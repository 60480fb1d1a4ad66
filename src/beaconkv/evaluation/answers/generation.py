"""One message, and the answer of a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ...integrations.transformers import BoundedCache, cache_argument
from ...models import LoadedModel
from ...provenance import placed_as, provenance
from ..prompts import chat_text, prompt_ids
from .decoding import Sampling, write_answers


def generate_text(
    loaded: LoadedModel,
    cache: BoundedCache,
    message: str,
    *,
    model: str,
    policy: str,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    chat: bool = True,
    streamer: Any = None,
) -> dict[str, Any]:
    """Let a model answer a message through ``generate``.

    Args:
        cache: a new cache of the model.
        model: name of the model, for the result.
        policy: spec of the policy, for the result.
        max_new_tokens: number of tokens to write at most.
        temperature: 0 takes the likeliest token.
        top_p: share of the probability that sampling chooses from.
        seed: random seed of the sampling.
        chat: apply the chat template, if the tokenizer has one.
        streamer: streamer of transformers; it receives the tokens as they are written.

    Returns:
        The text, its counts and speed, the numbers of the cache, the settings, and the provenance.
    """
    template = chat and loaded.tokenizer.chat_template is not None
    text = chat_text(loaded.tokenizer, message) if template else message
    inputs = loaded.tokenizer(text, return_tensors="pt", add_special_tokens=not template).to(loaded.model.device)
    sampling = dict(do_sample=True, temperature=temperature, top_p=top_p) if temperature else dict(do_sample=False)
    torch.manual_seed(seed)
    start = time.perf_counter()
    out = loaded.model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        **{cache_argument(): cache},
        **sampling,
        max_new_tokens=max_new_tokens,
        pad_token_id=loaded.tokenizer.pad_token_id,
        streamer=streamer,
    )
    seconds = time.perf_counter() - start
    prompt_tokens = inputs["input_ids"].shape[1]
    new_tokens = out.shape[1] - prompt_tokens
    return {
        "text": loaded.tokenizer.decode(out[0, prompt_tokens:], skip_special_tokens=True),
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(new_tokens / seconds, 2),
        "stats": cache.stats.to_dict(),
        "schedule": vars(cache.schedule),
        "policy": {"name": cache.policy.name, "spec": policy, **vars(cache.policy)},
        **provenance(model=model, **placed_as(loaded), seed=seed, sampling=sampling, chat_template=template),
    }


def write_text(
    loaded: LoadedModel,
    prompt: str,
    sampling: Sampling,
    seed: int,
    *,
    chat: bool,
    advance: Callable[[int], None] = lambda tokens: None,
) -> tuple[list[int], int]:
    """Let a model continue a prompt, with the full cache.

    Args:
        seed: Random seed of the sampling.
        chat: Whether to apply the chat template, if the tokenizer has one.
        advance: Function called with the number of tokens that were just written.

    Returns:
        All token ids, and the number of tokens of the prompt.

    Raises:
        ValueError: a prompt without tokens.
    """
    model, tokenizer = loaded
    ids = prompt_ids(tokenizer, prompt, chat)
    if not ids:
        raise ValueError("the prompt is empty")
    stop = model.generation_config.eos_token_id
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    pad = tokenizer.pad_token_id or 0
    written = []
    with BoundedCache(model, "full") as cache:
        write_answers(model, [ids], cache, sampling, [seed], stops, pad, written.append, advance)
    return [*ids, *written[0].tokens], len(ids)
