"""``replay.json``: what each policy dropped, which queries wanted it later, and the effect of putting it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..provenance import provenance
from .losses import Outcome
from .restoration import missed_soon, most_missed, restore
from .trace import Trace


def replay_result(
    trace: Trace,
    outcomes: Sequence[Outcome],
    top_keys: int,
    *,
    model: nn.Module | None = None,
    restored: int = 0,
    event: int | None = None,
    window: int = 64,
) -> dict[str, Any]:
    """The content of ``replay.json``.

    Args:
        outcomes: Outcomes from :func:`~beaconkv.analysis.losses.compare_policies`.
        top_keys: Number of keys as given there.
        model: Model of the trace; None: no entries are put back.
        restored: Number of entries of an eviction that are put back, one at a time.
        event: Number of that eviction, from 1; None: the one missed most soon after.
        window: Number of tokens after it whose predictions are compared.

    Raises:
        ValueError: as :func:`~beaconkv.analysis.restoration.restore`.
    """
    result: dict[str, Any] = {
        "trace": str(trace.path),
        "top_keys": top_keys,
        "rows": [outcome.summary() for outcome in outcomes],
        "schedules": [{"policy": o.replay.policy, **vars(o.replay.schedule)} for o in outcomes],
        "events": [{"policy": o.replay.policy, "budget": o.replay.budget, "events": o.events()} for o in outcomes],
        **provenance(model=trace.info.model),
    }
    if model is not None:
        result["restored"] = [put_back(trace, outcome, restored, event, window, model) for outcome in outcomes]
    return result


def put_back(
    trace: Trace, outcome: Outcome, count: int, event: int | None, window: int, model: nn.Module
) -> dict[str, Any]:
    """Put the most missed entries of one eviction back, one at a time; see :func:`replay_result`."""
    number, events = outcome.replay.event_of(), len(outcome.replay.steps)
    result = {"policy": outcome.replay.policy, "budget": outcome.replay.budget}
    if not events:
        return {**result, "entries": []}
    missed = missed_soon(trace, outcome.replay, window)
    if event is None:
        usable = [e for e in range(1, events + 1) if outcome.replay.steps[e - 1] + window < len(trace)]
        usable = usable or [e for e in range(1, events + 1) if outcome.replay.steps[e - 1] + 1 < len(trace)]
        if not usable:
            return {**result, "entries": []}
        event = max(usable, key=lambda e: (missed * (number == e)).sum().item())
    places = most_missed(missed, number, event, count)
    found = restore(model, trace, outcome.replay, event, places, window)
    here = number == event
    return {
        **result,
        "event": event,
        "step": found.step,
        "window": found.window,
        "kl_evicted": found.evicted,
        "kl_before": found.before,
        "entries": [
            {
                "position": place,
                "text": trace.info.pieces[place],
                "dropped_in": int(here[:, :, place].sum()),
                "missed": (missed * here)[:, :, place].sum().item(),
                "kl_restored": found.single[place],
            }
            for place in places
        ],
    }
