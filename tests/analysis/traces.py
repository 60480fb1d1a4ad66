"""Traces of tiny models."""

import torch

from beaconkv.analysis.recorder import record
from tests.tiny import VOCAB, tiny


class Letters:
    """A tokenizer of one character a token."""

    def decode(self, ids):
        return "".join(chr(0x100 + i) for i in ids)


def random_ids(length, seed=0):
    return torch.randint(1, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def tiny_trace(folder, family="llama", length=120, prompt=20, seed=0, model=None, **kwargs):
    model = model or tiny(family)
    ids = random_ids(length, seed)
    return record(model, Letters(), ids, prompt, folder / f"{family}-{length}-{seed}.trace", name=family, **kwargs)
