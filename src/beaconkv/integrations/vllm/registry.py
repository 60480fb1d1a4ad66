"""The requests of a worker: updated from the scheduler's output before each step, read by the attention layers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .requests import LayerGroup
from .settings import ServingSettings
from .spec import BoundedSpec
from .stats import RequestStats, ServerStats, request_stats

REMEMBERED = 4096
"""Maximum number of finished requests whose statistics are kept until they are read."""


class RequestRegistry:
    """The requests of one worker.

    Args:
        settings: settings of the server.
        runner: gives the model runner, which knows in what order requests stand in a batch.

    Attributes:
        groups: groups of layers, each with the requests' states.
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

    def begin_step(self, scheduled: Any) -> None:
        """Update from the output of vLLM's scheduler for one step (``SchedulerOutput``)."""
        for name in scheduled.finished_req_ids:
            self._finish(name)
        for name in scheduled.preempted_req_ids or ():
            for group in self.groups:
                group.drop(name)
        for new in scheduled.scheduled_new_reqs:
            if new.num_computed_tokens:
                raise RuntimeError(
                    f"request {new.req_id} begins at token {new.num_computed_tokens}: a bounded cache has to see every "
                    "token (no prefix cache, no continued sessions)"
                )
            self._prompts[new.req_id] = new.prompt_len
            self._begin(new.req_id)
        again = scheduled.scheduled_cached_reqs
        for name, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
            if name in again.resumed_req_ids and computed == 0:
                self._begin(name)  # with its original prompt: what it wrote is counted as decode steps again
        self._in_step = True

    def end_step(self) -> None:
        """End the step: metadata built from now on is for no request."""
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
