"""Pure tensor functions. The implementations of each are named in this file and nowhere else.

The reference versions follow the formulas; a faster twin has the same name and signature. :mod:`.backend` chooses
which of them runs.
"""

from . import compaction, rope, sampling, scoring
from .backend import current_backend, dispatched, use_backend
from .checks import require_finite
from .clustering import farthest_points, nearest_queries, spherical_kmeans, take_queries
from .compaction import fill_holes_source, gather_entries, hole_moves
from .fused import rope as fused_rope
from .fused import sampling as fused_sampling
from .fused import scoring as fused_scoring
from .redundancy import key_redundancy
from .rope import (
    LAYOUTS,
    RotaryLayout,
    apply_half,
    apply_half_backwards,
    apply_half_once,
    apply_identity,
    apply_interleaved,
    apply_interleaved_halves,
    layout_of,
    rotate,
    same_before_rope,
    unrotate,
)
from .sampling import cosine_matrix, unit_vectors
from .scoring import POOLS, attention_weights, group_attention_weights, pool
from .selection import select_entries
from .smoothing import POSITION_POOLS, pool_positions

farthest_point_sampling = dispatched(
    sampling.farthest_point_sampling, fused=fused_sampling.farthest_point_sampling, triton="sampling"
)
fill_holes = dispatched(compaction.fill_holes, triton="compaction", by="source")
observation_scores = dispatched(scoring.observation_scores, fused=fused_scoring.observation_scores, triton="scoring")
unrotate_into = dispatched(rope.unrotate_into, fused=fused_rope.unrotate_into, triton="rope")

__all__ = [
    "LAYOUTS",
    "POOLS",
    "POSITION_POOLS",
    "RotaryLayout",
    "apply_half",
    "apply_half_backwards",
    "apply_half_once",
    "apply_identity",
    "apply_interleaved",
    "apply_interleaved_halves",
    "attention_weights",
    "cosine_matrix",
    "current_backend",
    "farthest_point_sampling",
    "farthest_points",
    "fill_holes",
    "fill_holes_source",
    "gather_entries",
    "group_attention_weights",
    "hole_moves",
    "key_redundancy",
    "layout_of",
    "nearest_queries",
    "observation_scores",
    "pool",
    "pool_positions",
    "require_finite",
    "rotate",
    "same_before_rope",
    "select_entries",
    "spherical_kmeans",
    "take_queries",
    "unit_vectors",
    "unrotate",
    "unrotate_into",
    "use_backend",
]
