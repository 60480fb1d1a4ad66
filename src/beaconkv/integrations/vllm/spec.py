"""The number of blocks of a request, in vLLM's scheduler. Importing this module registers both classes with vLLM."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, replace_as
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from ...cache import EvictionSchedule, Progress, most_slots


@dataclass(frozen=True, kw_only=True)
class BoundedSpec(FullAttentionSpec):
    """Full attention over a bounded number of entries.

    Attributes:
        schedule: Schedule of every request.
        chunk: Minimum number of prompt tokens between two evictions.
        step_tokens: Maximum number of a request's tokens in one step.
    """

    schedule: EvictionSchedule | None = None
    chunk: int = 1
    step_tokens: int = 1

    @property
    def prefix_cacheable(self) -> bool:
        """Blocks are rewritten, so none can stand for a prefix."""
        return False

    def slots(self, tokens: int) -> int:
        """Maximum number of slots for ``tokens`` tokens of one request."""
        bound = most_slots(self.schedule, self.chunk, self.step_tokens)
        return tokens if bound is None else min(tokens, bound)

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """Bytes of the blocks that a request of the greatest length needs."""
        return cdiv(self.slots(vllm_config.model_config.max_model_len), self.block_size) * self.page_size_bytes

    @classmethod
    def merge(cls, specs: list[BoundedSpec]) -> BoundedSpec:
        """The spec of a group of layers, whose specs must be equal."""
        if any(spec != specs[0] for spec in specs):
            raise ValueError("the specs of bounded layers of one group must be equal")
        return deepcopy(specs[0])


def bounded(spec: Any, schedule: EvictionSchedule, chunk: int, step_tokens: int) -> Any:
    """The bounded form of a layer's spec; layers without full attention keep their own."""
    if type(spec) is not FullAttentionSpec or spec.sliding_window or spec.attention_chunk_size or spec.non_causal:
        return spec
    return replace_as(spec, BoundedSpec, schedule=schedule, chunk=chunk, step_tokens=step_tokens)


@dataclass
class Holding:
    """The scheduler's state of one request.

    Attributes:
        progress: Progress up to the tokens that are scheduled.
        done: Progress up to the tokens that the worker has completed.
        prefill: Number of tokens that may come several at a time; the first step after them is a decode step, and so
            are all that follow. None while it is not known.
        steps: Tokens after, and slots for, each step that the worker has not completed.
    """

    progress: Progress
    done: Progress
    prefill: int | None
    steps: deque[tuple[int, int]] = field(default_factory=deque)


class BoundedManager(FullAttentionManager):
    """Blocks of requests whose number of entries is bounded.

    The worker evicts by count, so the entries of a request follow from its prompt and its tokens (:class:`Progress`).
    Scheduler and worker therefore exchange no messages.
    """

    supports_fine_grained_hash_lookup = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: dict[str, Holding] = {}
        self._lengths: dict[str, int] = {}  # tokens of a request when it was admitted
        self._wanted: dict[str, tuple[int, int]] = {}  # (tokens, slots) of the last request for blocks

    def _slots(self, request_id: str, num_tokens: int, computed: int) -> int:
        """Slots that the step from ``computed`` to ``num_tokens`` tokens needs."""
        held = self._held.get(request_id)
        if held is None:
            return self.kv_cache_spec.slots(num_tokens)
        if computed > held.progress.seen:
            held.progress.advance(computed - held.progress.seen)
        return held.progress.settled + num_tokens - computed

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence,
        total_computed_tokens: int,
        *args: Any,
        apply_admission_cap: bool = False,
        **kwargs: Any,
    ) -> int:
        if apply_admission_cap:
            self._lengths[request_id] = num_tokens
            slots = self.kv_cache_spec.slots(num_tokens)
        else:
            slots = self._slots(request_id, num_tokens, total_computed_tokens)
            self._wanted[request_id] = num_tokens, slots
        return super().get_num_blocks_to_allocate(
            request_id, slots, new_computed_blocks, total_computed_tokens, *args, **kwargs
        )

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list:
        asked, slots = self._wanted.get(request_id, (None, None))
        if asked != num_tokens:
            raise RuntimeError(f"request {request_id}: blocks for {num_tokens} tokens, but {asked} were requested")
        if (held := self._held.get(request_id)) is not None:
            held.steps.append((num_tokens, slots))
        return super().allocate_new_blocks(request_id, slots, slots)

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Free the blocks of a long prompt, once the worker has evicted its last chunk."""
        held = self._held.get(request_id)
        if held is None:
            if num_prompt_tokens is None or processed_computed_tokens:
                return
            spec = self.kv_cache_spec
            progress, done = (Progress(spec.schedule, num_prompt_tokens, spec.chunk) for _ in range(2))
            held = self._held[request_id] = Holding(progress, done, self._lengths.pop(request_id, None))
        if processed_computed_tokens > held.done.seen:
            held.done.advance(processed_computed_tokens - held.done.seen)
        while held.steps and held.steps[0][0] <= processed_computed_tokens:
            held.steps.popleft()
        if held.prefill is None or processed_computed_tokens <= held.prefill:
            return  # more than one token may come at a time; and blocks are only ever added at the end
        blocks = self.req_to_blocks.get(request_id)
        needed = max([held.done.stored, self._decode_slots(held), *(slots for _, slots in held.steps)])
        keep = cdiv(needed, self.block_size)
        if blocks and len(blocks) > keep:
            surplus = blocks[keep:]
            del blocks[keep:]
            self.block_pool.free_blocks(reversed(surplus))

    def _decode_slots(self, held: Holding) -> int:
        """Number of slots for the decode steps of the request: a table that was shortened never grows again."""
        return self.kv_cache_spec.schedule.full_at(held.progress.prompt)

    def pop_blocks_for_free(self, request_id: str) -> list:
        """Free all blocks: the request ended, or starts again."""
        for table in (self._held, self._lengths, self._wanted):
            table.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)

    def cache_blocks(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: no block is cached for a prefix."""

    @classmethod
    def find_longest_cache_hit(cls, block_hashes: Any, max_length: int, kv_cache_group_ids: list[int], *args, **kwargs):
        """No blocks: a prefix is never found."""
        return tuple([] for _ in kv_cache_group_ids), 0


KVCacheSpecRegistry._ensure_registered()  # otherwise vLLM would find this entry and never add its own
KVCacheSpecRegistry.register(BoundedSpec, BoundedManager, BoundedSpec)
