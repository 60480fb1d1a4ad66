"""A message of the user as a model gets it: in its chat template, if it has one, and as token ids."""

from __future__ import annotations

from typing import Any


def chat_text(tokenizer: Any, message: str) -> str:
    """A message of the user in the tokenizer's chat template, up to the beginning of the answer."""
    chat = [{"role": "user", "content": message}]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def prompt_ids(tokenizer: Any, message: str, chat: bool = True) -> list[int]:
    """Token ids of a message.

    Args:
        tokenizer: Tokenizer of transformers.
        message: Text of the user.
        chat: Whether to apply the chat template, if the tokenizer has one.
    """
    if chat and tokenizer.chat_template is not None:
        return tokenizer(chat_text(tokenizer, message), add_special_tokens=False)["input_ids"]
    return tokenizer(message)["input_ids"]
