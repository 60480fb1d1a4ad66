"""The style of a method in every figure, and the rows of a result that belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...policies import PolicySpec, parse_policy
from ...policies.beacon import PAPER
from ...policies.registry import policy_class

# Okabe and Ito's palette, then colours of Tol's muted one; black is the full cache.
COLOURS = {
    "beaconkv": ("#D55E00", "o"),
    "rpc": ("#0072B2", "s"),
    "snapkv": ("#56B4E9", "^"),
    "rkv": ("#009E73", "D"),
    "h2o": ("#CC79A7", "v"),
    "streaming_llm": ("#999933", "P"),
    "tova": ("#332288", "X"),
    "recent": ("#882255", "s"),
    "initial_recent": ("#44AA99", "D"),
    "random_history": ("#E69F00", "v"),
    "kmeans_centroid": ("#AA4499", "P"),
    "kmeans_nearest": ("#A6761D", "X"),
    "naive_fps": ("#117733", "^"),
}
"""Colour and marker of each method, the same in every figure."""

OTHER = ("#666666", "h")
DASHES = ((None, None), (4, 1.5), (1.2, 1.2), (5, 1.2, 1.2, 1.2), (8, 2), (3, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Style:
    """The style of a method.

    Attributes:
        colour, marker: colour and marker of the method.
        dashes: dashes of its preset; the method as it is compared has a solid line.
        leading: the method that the figure is about.
    """

    colour: str
    marker: str
    dashes: tuple[float | None, ...] = DASHES[0]
    leading: bool = False


FULL = Style("#000000", "", (5, 1.5))
PLAIN = Style("#888888", "", (2, 1.5))


def style_of(policy: str) -> Style:
    """The style of a policy spec."""
    name, *rest = policy.split(":")
    colour, marker = COLOURS.get(name, OTHER)
    if not rest or is_same(policy, name):
        return Style(colour, marker, leading=name == "beaconkv")
    spec = read(policy)
    presets = [] if spec is None else list(policy_class(name).presets)
    number = presets.index(rest[0]) if rest[0] in presets else len(presets)
    return Style(colour, marker, DASHES[1 + number % (len(DASHES) - 1)])


def is_variant(policy: str) -> bool:
    """Whether it is BeaconKV with other observation queries or pooling, as in the paper's ablations."""
    return read(policy) is not None and PAPER in policy_class(policy.partition(":")[0]).source


def is_same(first: str, second: str) -> bool:
    """Whether two specs name one method: ``recent`` and ``recent:32``."""
    if first == second:
        return True
    one, two = read(first), read(second)
    return one is not None and two is not None and _content(one) == _content(two)


def find(policies: Iterable[str], wanted: Sequence[str]) -> dict[str, str]:
    """Wanted spec -> the spec among ``policies`` of the same method, an equal one first; others are left out."""
    policies = list(policies)
    found = {}
    for name in wanted:
        same = [policy for policy in policies if is_same(policy, name)]
        if same:
            found[name] = name if name in same else same[0]
    return found


def own_budget(policy: str) -> int | None:
    """The budget that a method fixes itself."""
    spec = read(policy)
    return None if spec is None else spec.fixed.get("budget")


def read(policy: str) -> PolicySpec | None:
    """The spec, or None if this release does not have it: results may come from another release or a user's method."""
    try:
        return parse_policy(policy)
    except ValueError:
        return None


def _content(spec: PolicySpec) -> tuple[object, ...]:
    return spec.policy, spec.prefix, spec.protect, spec.every, spec.fixed
