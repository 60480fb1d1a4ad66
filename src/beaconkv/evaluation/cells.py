"""Cells: the methods at budgets that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..cache import EvictionSchedule
from ..integrations.transformers import BoundedCache
from ..policies import parse_policy


@dataclass(frozen=True)
class Cell:
    """One method at one budget.

    Attributes:
        policy: Spec of the policy, see :func:`beaconkv.policies.parse_policy`.
        budget: Maximum number of entries (B_max), or None for a method that does not evict.
        overrides: Values of prefix, protect, budget_min and scope that replace the recommendation.

    Raises:
        ValueError: an unknown policy, or a schedule that leaves no room.
    """

    policy: str
    budget: int | None
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.schedule

    @property
    def name(self) -> str:
        """Name for users: ``beaconkv at 256``."""
        return self.policy if self.budget is None else f"{self.policy} at {self.budget}"

    @property
    def schedule(self) -> EvictionSchedule:
        """Schedule of this cell's caches."""
        return parse_policy(self.policy).schedule(self.budget, **self.overrides)

    def new_cache(self, model: nn.Module) -> BoundedCache:
        """Make a cache of this cell."""
        return BoundedCache(model, self.policy, self.budget, **self.overrides)


def make_cells(policies: Sequence[str], budgets: Sequence[int], **overrides: Any) -> list[Cell]:
    """Every policy at every budget; only once, if it has its own budget or never evicts.

    Args:
        overrides: Values as in :class:`Cell`; None stands for no choice.

    Raises:
        ValueError: none or a repeated policy or budget, and what :class:`Cell` raises.
    """
    overrides = {name: value for name, value in overrides.items() if value is not None}
    for name, values in (("policies", policies), ("budgets", budgets)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} repeat themselves: {', '.join(map(str, values))}")
    cells = []
    for policy in policies:
        spec = parse_policy(policy)
        if not spec.policy.evicts:
            cells.append(Cell(policy, None))
        elif spec.budget is not None:
            cells.append(Cell(policy, spec.budget, overrides))
        elif not budgets:
            raise ValueError(f"policy {policy!r} needs at least one budget")
        else:
            cells += [Cell(policy, budget, overrides) for budget in budgets]
    if not cells:
        raise ValueError("nothing to measure: give at least one policy, and a budget")
    return cells
