"""Pictures of a trace and of replays, after the paper's figures 1, 3, 4 and 6."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import ops
from ..evaluation.figures.canvas import GREY, PALE, SMALL, WIDTH, Page, looks
from ..evaluation.figures.methods import style_of
from .attention import attention_blocks
from .diagnosis import Diagnosis
from .geometry import principal_components, unusual
from .losses import Outcome
from .trace import Trace

LOCAL, GLOBAL = "#0072B2", "#D55E00"
FAINTEST = 1e-4
"""Attention below this is not drawn."""


def save(page: Page, path: Path) -> Path:
    """Write a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.figure.savefig(path, dpi=200)
    return path


def picture_head(diagnosis: Diagnosis) -> tuple[int, int]:
    """A layer and head (indices in the model) worth a picture: its global queries are rare and fall into groups.

    Without any such head, the one with most global queries.
    """
    rare = {
        key: c.silhouette - c.highest_shuffled
        for key, c in diagnosis.clusters.items()
        if c is not None and _share(diagnosis, key) <= 0.3
    }
    if rare:
        return max(rare, key=lambda key: rare[key])
    return max(diagnosis.clusters, key=lambda key: _share(diagnosis, key))


def _share(diagnosis: Diagnosis, key: tuple[int, int]) -> float:
    layer, head = key
    heads = [h for at, h in diagnosis.clusters if at == layer]
    return diagnosis.frequency[diagnosis.revisiting.layers.index(layer), heads.index(head)].item()


def draw_attention(
    trace: Trace, diagnosis: Diagnosis, layer: int, head: int, start: int, stop: int, path: Path
) -> Path:
    """Figure 1: attention of some queries over all entries, and how far local and global queries look.

    Args:
        layer, head: Indices in the model.
        start, stop: Range of the queries that are shown.
    """
    number, at = diagnosis.revisiting.layers.index(layer), trace.info.heads.index(head)
    rows = torch.zeros(stop - start, stop)
    for first, weights in attention_blocks(trace, layer, start, stop):
        block = weights.flatten(0, 1)[at]
        rows[first - start : first - start + block.shape[0], : block.shape[1]] = block
    far = diagnosis.revisiting.is_global[number, at]
    with looks():
        from matplotlib.colors import LogNorm

        page = Page(3.1)
        title = f"layer {layer}, head {head}: attention of queries {start} to {stop - 1} (logarithmic)"
        page.text(0.1, 0.08, title)
        left = page.axes(0.55, 0.35, 3.7, 2.3)
        image = left.imshow(
            rows.clamp_min(FAINTEST).numpy(),
            aspect="auto",
            norm=LogNorm(FAINTEST, 1),
            cmap="magma_r",
            extent=(0, stop, stop - 0.5, start - 0.5),
            interpolation="nearest",
        )
        for query in range(start, stop):
            if far[query]:
                left.plot(-0.012 * stop, query, ">", color=GLOBAL, markersize=2.5, clip_on=False)
        left.set_xlabel("entry (position)")
        left.set_ylabel("query (position); ▸ global", labelpad=8)
        bar = page.figure.colorbar(image, ax=left, pad=0.02, fraction=0.04)
        bar.outline.set_visible(False)
        right = page.axes(5.15, 0.35, 1.9, 2.3)
        for which, colour, name in ((~far, LOCAL, "local"), (far, GLOBAL, "global")):
            own = which.clone()
            own[: trace.info.prompt_length] = False
            shares = _by_distance(trace, layer, at, own)
            if shares is not None:
                right.plot(*shares, color=colour, label=f"{name} ({int(own.sum())})", linewidth=1)
        right.set_xscale("symlog", linthresh=1)
        right.set_xlabel("distance to the entry (tokens)")
        right.set_title("share of attention within a distance", loc="left")
        right.set_ylim(0, 1)
        right.legend(frameon=False, fontsize=SMALL, title="queries", title_fontsize=SMALL)
        return save(page, path)


def _by_distance(trace: Trace, layer: int, at: int, which: Tensor) -> tuple[Tensor, Tensor] | None:
    """Distances, and the mean share of attention up to each, of some queries of one head."""
    if not which.any():
        return None
    total = torch.zeros(len(trace))
    for first, weights in attention_blocks(trace, layer):
        block = weights.flatten(0, 1)[at]
        for row in which[first : first + block.shape[0]].nonzero().flatten().tolist():
            query = first + row
            total[: query + 1] += block[row, : query + 1].flip(0)
    return torch.arange(len(trace)), total.cumsum(0) / which.sum()


def draw_frequency(diagnosis: Diagnosis, heads: Sequence[int], path: Path) -> Path:
    """Figure 3: share of global queries in each layer and head."""
    rows, columns = diagnosis.frequency.shape
    with looks():
        height = min(6.0, max(1.2, 0.14 * rows)) + 0.9
        page = Page(height)
        page.text(0.1, 0.08, "share of global queries in each layer and head")
        axes = page.axes(0.55, 0.35, min(WIDTH - 1.6, max(1.5, 0.22 * columns)), height - 0.85)
        image = axes.imshow(diagnosis.frequency.numpy(), aspect="auto", cmap="magma_r", vmin=0, vmax=1)
        _ticks(axes.set_xticks, list(heads), 16)
        _ticks(axes.set_yticks, diagnosis.revisiting.layers, 24)
        axes.set_xlabel("query head")
        axes.set_ylabel("layer")
        bar = page.figure.colorbar(image, ax=axes, pad=0.03, fraction=0.06)
        bar.outline.set_visible(False)
        return save(page, path)


def _ticks(place, labels: list[int], most: int) -> None:
    step = -(-len(labels) // most)
    place(range(0, len(labels), step), [str(label) for label in labels[::step]])


def draw_cosines(trace: Trace, diagnosis: Diagnosis, layer: int, head: int, start: int, stop: int, path: Path) -> Path:
    """Figure 4: cosines of queries before RoPE, and the least typical ones on their principal components."""
    number, at = diagnosis.revisiting.layers.index(layer), trace.info.heads.index(head)
    queries = trace.queries_before_rope(layer)[0, at]
    far = diagnosis.revisiting.is_global[number, at]
    with looks():
        page = Page(3.1)
        page.text(0.1, 0.08, f"layer {layer}, head {head}: queries before RoPE")
        left = page.axes(0.55, 0.35, 2.35, 2.35)
        image = left.imshow(
            ops.cosine_matrix(queries[start:stop]).numpy(),
            cmap="RdBu_r",
            vmin=-1,
            vmax=1,
            extent=(start - 0.5, stop - 0.5, stop - 0.5, start - 0.5),
            interpolation="nearest",
        )
        left.set_xlabel("query (position)")
        left.set_ylabel("query (position)")
        bar = page.figure.colorbar(image, ax=left, pad=0.03, fraction=0.046)
        bar.outline.set_visible(False)
        bar.set_label("cosine", fontsize=SMALL)
        first = trace.info.prompt_length
        strange = unusual(queries[first:], max(8, (len(queries) - first) // 5)) + first
        right = page.axes(4.2, 0.35, 2.8, 2.35)
        if len(strange) > 2:
            points, share = principal_components(queries[strange])
            for which, colour, name in ((~far[strange], LOCAL, "local"), (far[strange], GLOBAL, "global")):
                right.scatter(*points[which].T.numpy(), s=5, color=colour, label=name, linewidths=0, alpha=0.7)
            right.set_xlabel(f"component 1 ({100 * share[0]:.0f}% of variance)")
            right.set_ylabel(f"component 2 ({100 * share[1]:.0f}%)")
            right.legend(frameon=False, fontsize=SMALL)
        right.set_title(f"the {len(strange)} least like the rest", loc="left")
        return save(page, path)


def draw_clusters(diagnosis: Diagnosis, path: Path) -> Path | None:
    """Silhouette of each head's global queries against shuffled ones. None where no head has enough of them."""
    tested = [c for c in diagnosis.clusters.values() if c is not None]
    if not tested:
        return None
    with looks():
        page = Page(3.0)
        page.text(
            0.1, 0.08, f"do global queries fall into groups? each dot one of {len(tested)} heads; above the line: more"
        )
        panels = (
            ("best of the shuffled queries", [(c.highest_shuffled, c.silhouette) for c in tested]),
            ("as many local queries", [(c.local, c.beside_local) for c in tested if c.local == c.local]),
        )
        for i, (label, pairs) in enumerate(panels):
            axes = page.axes(0.55 + 3.5 * i, 0.35, 2.9, 2.2)
            axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=0)
            if pairs:
                axes.scatter(*zip(*pairs, strict=True), s=6, color=GLOBAL, linewidths=0, alpha=0.7)
            else:
                axes.text(0.5, 0.45, "too few of them in every head", ha="center", color=GREY)
            low, high = _limits([value for pair in pairs for value in pair])
            axes.set_xlim(low, high)
            axes.set_ylim(low, high)
            axes.set_xlabel(f"silhouette: {label}")
            axes.set_ylabel("silhouette: global queries")
        return save(page, path)


def _limits(values: list[float]) -> tuple[float, float]:
    if not values:
        return 0, 1
    margin = 0.05 * (max(values) - min(values)) + 0.01
    return min(values) - margin, max(values) + margin


def draw_losses(outcomes: Sequence[Outcome], path: Path) -> Path:
    """Attention lost after each eviction, by policy, with the oracle and the bound; and the coverage (Figure 6)."""
    with looks():
        lines = len(outcomes) + 2
        page = Page(3.2 + 0.14 * -(-lines // 3))
        page.text(0.1, 0.08, "after each eviction, mean over layers and heads")
        left, right = page.axes(0.55, 0.4, 2.9, 2.25), page.axes(4.1, 0.4, 2.9, 2.25)
        for outcome in outcomes:
            style = style_of(outcome.replay.policy)
            rows = [row for row in outcome.events() if row["lost_after"] is not None]
            drawn = dict(color=style.colour, dashes=style.dashes, linewidth=1.1, label=outcome.replay.label)
            left.plot([r["step"] for r in rows], [r["lost_after"] for r in rows], **drawn)
            rows = [row for row in rows if row["coverage_after"] is not None]
            if rows:
                right.plot([r["step"] for r in rows], [r["coverage_after"] for r in rows], **drawn)
        rows = [row for row in outcomes[0].events() if row["oracle_after"] is not None]
        name = f"at {outcomes[0].replay.budget}"
        if rows:
            steps = [r["step"] for r in rows]
            left.plot(steps, [r["oracle_after"] for r in rows], color="black", linewidth=0.9, label=f"oracle {name}")
            bound = [r["bound_after"] for r in rows]
            left.plot(steps, bound, color=GREY, linewidth=0.9, dashes=(2, 1.5), label=f"bound {name}")
        left.set_ylim(bottom=0)
        for axes, label in ((left, "share of attention lost"), (right, "best cosine to the observation queries")):
            axes.set_xlabel("token after which the eviction came")
            axes.set_title(label, loc="left")
        handles = left.lines
        page.figure.legend(handles=handles, loc="lower left", ncols=3, frameon=False, fontsize=SMALL)
        return save(page, path)
