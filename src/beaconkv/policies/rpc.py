"""RPC: the last 32 queries, averaged, and smoothed along the text."""

from __future__ import annotations

from dataclasses import dataclass

from .observation import ObservationPolicy
from .preset import Preset

PAPER = "Song et al., Reasoning Path Compression, arXiv 2505.13866"
CODE = "github.com/jiwonsong-dev/ReasoningPathCompression, rpc/rpc_utils.py"


def _growing(interval: int, ratio: int = 4, selectors: int = 32) -> dict[str, Preset]:
    """The growing cache: every P steps it becomes P/c entries larger."""
    step, schedule = interval // ratio, dict(scope="output", protect=selectors)
    return {
        f"growing-{interval}": Preset(
            {},
            f"{PAPER} (P = {interval}, c = {ratio}, R = {selectors})",
            budget=interval,
            budget_min=step,
            growth=step,
            note="the R protected entries are among the P/c that stay",
            **schedule,
        ),
        f"code-{interval}": Preset(
            {"head_pool": "all", "past_only": True},
            f"{PAPER}, Algorithm 1; {CODE} (P = {interval}, c = {ratio}, R = {selectors})",
            budget=interval + selectors,
            budget_min=step + selectors,
            growth=step,
            note="the R protected entries come on top of P and of P/c",
            **schedule,
        ),
    }


@dataclass(frozen=True)
class RPC(ObservationPolicy, name="rpc"):
    """Attention of the last 32 queries, averaged over queries and heads, and along the text.

    Published with a prompt that is never evicted and a cache that grows; the plain name is the method
    within a fixed budget. The published code sums over queries where this averages: the order is the same.
    """

    source = PAPER
    presets = {
        "paper": Preset({}, PAPER, prefix="prompt", protect=32, note="within a fixed budget"),
        "code": Preset(
            {"head_pool": "all", "past_only": True},
            CODE,
            prefix="prompt",
            protect=32,
            note="within a fixed budget; one score for all heads of a layer",
        ),
        **_growing(1024),
        **_growing(4096),
    }

    n_recent: int = 32
    query_pool: str = "mean"
    group_pool: str = "mean"
    position_pool: str = "avg"
