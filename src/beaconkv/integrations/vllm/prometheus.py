"""Reports of a server about its bounded cache: Prometheus metrics, and a line in the log at intervals.

The worker is a process of its own, and another process serves the page of metrics. Prometheus' client connects them by
files: with ``PROMETHEUS_MULTIPROC_DIR`` in the environment of the server (``beaconkv serve`` sets it) these metrics are
on the page.
"""

from __future__ import annotations

import time
from functools import lru_cache
from types import SimpleNamespace

from prometheus_client import Counter, Gauge
from vllm.logger import init_logger

from .registry import RequestRegistry
from .stats import ServerStats

logger = init_logger(f"vllm.{__name__}")

PERIOD = 10.0
"""Seconds between two lines in the log, and between two measurements of the policies' state."""


@lru_cache
def _metrics() -> SimpleNamespace:
    """The metrics, made once in a process."""
    gauge = dict(multiprocess_mode="livesum")
    return SimpleNamespace(
        evictions=Counter("beaconkv:evictions", "Evictions of requests, per layer and KV head."),
        entries_dropped=Counter("beaconkv:entries_dropped", "Entries deleted, per layer and KV head."),
        tokens_seen=Counter("beaconkv:tokens_seen", "Tokens that bounded layers have seen."),
        running_stored=Gauge("beaconkv:running_stored_tokens", "Entries of running requests, per layer.", **gauge),
        running_seen=Gauge("beaconkv:running_seen_tokens", "Tokens of running requests.", **gauge),
        bytes_saved=Gauge(
            "beaconkv:running_saved_bytes", "Bytes of keys and values that running requests do not hold.", **gauge
        ),
        state_bytes=Gauge("beaconkv:state_bytes", "Bytes that policies remember outside the blocks.", **gauge),
    )


class Reporter:
    """Reports the counts of a worker; of the workers of one model, the first reports for all.

    Args:
        registry: Registry of the worker.
        ranks: Number of workers among which the heads are divided.
        rank: Number of this worker.
    """

    def __init__(self, registry: RequestRegistry, ranks: int, rank: int) -> None:
        self.registry, self.ranks, self.reports = registry, ranks, rank % ranks == 0
        self._last = ServerStats(0, 0, 0, 0, 0, 0, 0)
        self._logged, self._logged_at = self._last, time.monotonic()

    def report(self) -> None:
        """Report after a step, where the time has come."""
        if not self.reports or not self.registry.groups:
            return
        stats, metrics = self.registry.stats(), _metrics()
        for name in ("evictions", "entries_dropped", "tokens_seen"):
            getattr(metrics, name).inc(getattr(stats, name) - getattr(self._last, name))
        metrics.running_stored.set(stats.running_stored)
        metrics.running_seen.set(stats.running_seen)
        metrics.bytes_saved.set(stats.bytes_saved * self.ranks)
        self._last = stats
        now = time.monotonic()
        if now - self._logged_at >= PERIOD and stats.tokens_seen > self._logged.tokens_seen:
            logger.info(
                "Bounded cache: %d running, %d of %d tokens held, %.1f MiB saved; %d evictions since the last line",
                stats.requests,
                stats.running_stored,
                stats.running_seen,
                stats.bytes_saved * self.ranks / 2**20,
                stats.evictions - self._logged.evictions,
            )
            metrics.state_bytes.set(self.registry.state_bytes() * self.ranks)
            self._logged, self._logged_at = stats, now
