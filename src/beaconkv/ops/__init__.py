"""Pure tensor functions, one implementation of each chosen here and nowhere else.

The reference versions read like the formulas; a faster twin has the same name and signature and
replaces its reference in this file only.
"""

from .checks import require_finite
from .compaction import fill_holes, fill_holes_source, gather_entries
from .rope import apply_half, apply_identity, apply_interleaved, rotate, unrotate
from .sampling import cosine_matrix, farthest_point_sampling
from .scoring import POOLS, attention_weights, observation_scores
from .selection import select_entries

__all__ = [
    "POOLS",
    "apply_half",
    "apply_identity",
    "apply_interleaved",
    "attention_weights",
    "cosine_matrix",
    "farthest_point_sampling",
    "fill_holes",
    "fill_holes_source",
    "gather_entries",
    "observation_scores",
    "require_finite",
    "rotate",
    "select_entries",
    "unrotate",
]
