"""The requests of a worker: the scheduler's output updates them before each step, the attention layers read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .requests import LayerGroup
from .settings import ServingSettings
from .spec import BoundedSpec
from .stats import RequestStats, ServerStats, request_stats

REMEMBERED = 4096
"""Maximum number of ended requests that are kept until they are reported."""


class RequestRegistry:
    """The requests of one worker.

    Args:
        settings: Settings of the server.
        runner: Function that returns the model runner, which holds the order of the requests in a batch.

    Attributes:
        groups: Groups of layers, each with the requests' states.
    """

    def __init__(self, settings: ServingSettings, runner: Callable[[], Any]) -> None:
        self.settings, self._runner = settings, runner
        self.groups: list[LayerGroup] = []
        self.specs: list[BoundedSpec] = []
        self._finished: deque[RequestStats] = deque(maxlen=REMEMBERED)
        self._prompts: dict[str, int] = {}
        self._in_step = False

    def add(self, group: LayerGroup, spec: BoundedSpec) -> None:
        """Add a group of layers."""
        self.groups.append(group)
        self.specs.append(spec)

    def begin_step(self, output: Any) -> None:
        """Update the requests from vLLM's ``SchedulerOutput`` of a step."""
        for name in output.finished_req_ids:
            self._finish(name)
        for name in output.preempted_req_ids or ():
            for group in self.groups:
                group.drop(name)
        for new in output.scheduled_new_reqs:
            if new.num_computed_tokens:
                raise RuntimeError(
                    f"request {new.req_id} begins at token {new.num_computed_tokens}: a bounded cache has to process "
                    "every token (no prefix cache, no continued sessions)"
                )
            self._prompts[new.req_id] = new.prompt_len
            self._begin(new.req_id)
        again = output.scheduled_cached_reqs
        for name, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
            if name in again.resumed_req_ids and computed == 0:
                self._begin(name)
        self._in_step = True

    def end_step(self) -> None:
        """End the step: metadata built from now on belong to no request."""
        self._in_step = False

    def _begin(self, name: str) -> None:
        for group in self.groups:
            group.begin(name, self._prompts[name])

    def _finish(self, name: str) -> None:
        if self.groups and name in self.groups[0].requests:
            self._finished.append(request_stats(name, self.groups[0], self.bytes_per_token))
        self._prompts.pop(name, None)
        for group in self.groups:
            group.drop(name)

    def rows(self, common: Any) -> list[str] | None:
        """The requests in the order of a batch; None outside of a step.

        Args:
            common: Metadata of vLLM (``CommonAttentionMetadata``).
        """
        if not self._in_step:
            return None
        runner = self._runner()
        if common.req_idx is not None:  # the newer of vLLM's model runners
            table = runner.req_states.index_to_req_id
            return [table[index] for index in common.req_idx.tolist()]
        return list(runner.input_batch.req_ids)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's entries in all bounded layers, of this rank."""
        pages = zip(self.groups, self.specs, strict=True)
        return sum(len(group.layers) * spec.page_size_bytes // spec.block_size for group, spec in pages)

    def take_finished(self) -> list[RequestStats]:
        """The requests that ended since the last call; of more than :data:`REMEMBERED` the oldest are forgotten."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    def state_bytes(self) -> int:
        """Bytes outside the blocks, on this rank."""
        return sum(group.state_bytes() for group in self.groups)

    def stats(self) -> ServerStats:
        """The counts so far, and what is held now."""
        if not self.groups:
            raise RuntimeError("no layer is bounded yet: vLLM has allocated no blocks")
        first = self.groups[0]
        now = [request.progress for request in first.requests.values()]
        return ServerStats(
            requests=len(now),
            evictions=first.totals.evictions,
            entries_dropped=first.totals.dropped,
            tokens_seen=first.totals.seen,
            running_stored=sum(progress.settled for progress in now),
            running_seen=sum(progress.seen for progress in now),
            bytes_per_token=self.bytes_per_token,
        )
