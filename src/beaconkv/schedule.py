"""When a layer is evicted, down to how many entries, and which entries are never evicted."""

from __future__ import annotations

from dataclasses import dataclass, replace

SCOPES = ("total", "output")


@dataclass(frozen=True)
class EvictionSchedule:
    """Budgets of one layer and KV head, in entries.

    Attributes:
        budget: B_max. number of entries at which an eviction happens. None: never.
        budget_min: B_min, entries left after an eviction. Default: 7/8 of the budget, as in the paper.
        scope: "total": B_max bounds everything, prompt included, and a longer prompt is itself evicted
            at the end of its prefill. "output": the prompt is the protected prefix and does not count;
            B_max bounds the entries after it.
        prefix: first entries never evicted: a number, or "prompt". With scope "output" it is the prompt.
        protect: last entries never evicted: a number, or "half" of budget_min, which it then becomes.
        prefill_chunk: number of tokens of the chunks into which longer inputs are split and between which entries are
            evicted, so that a layer never holds more than B_max + prefill_chunk entries. None: one chunk.
        growth: entries by which B_max and B_min grow after each eviction of a row (RPC): the k-th eviction,
            counted from 0, comes at B_max + k * growth and leaves B_min + k * growth.
        early: Number of entries by which the first eviction comes early, where it comes in a decode step. Layers that
            differ in it are evicted at different steps from then on, so that no single step evicts all of them. A
            prompt that is itself evicted leaves B_max - early entries, if early is not 0.

    Example:
        >>> schedule = EvictionSchedule(1024, protect=64)
        >>> schedule.budget_min, schedule.full_at(prompt=100), schedule.kept_for(prompt=100)
        (896, 1024, 896)

    "The prompt" is everything that comes before the first step of a single token.

    Raises:
        ValueError: settings that leave no room; the message names a sufficient budget.
    """

    budget: int | None
    budget_min: int | None = None
    scope: str = "total"
    prefix: int | str = 4
    protect: int | str = 32
    prefill_chunk: int | None = None
    growth: int = 0
    early: int = 0

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}; got {self.scope!r}")
        if self.prefix != "prompt":
            _require("prefix", self.prefix, 0, ' or "prompt"')
        if self.protect != "half":
            _require("protect", self.protect, 0, ' or "half"')
        if self.prefill_chunk is not None:
            _require("prefill_chunk", self.prefill_chunk, 1, " or None")
        _require("growth", self.growth, 0)
        _require("early", self.early, 0)
        if self.budget is None:
            for name, none in (("budget_min", None), ("growth", 0), ("early", 0)):
                if getattr(self, name) != none:
                    raise ValueError(f"{name}={getattr(self, name)} has no meaning without a budget")
            if self.protect == "half":
                object.__setattr__(self, "protect", 0)
            return
        _require("budget", self.budget, 1, " or None")
        if self.budget_min is None:
            object.__setattr__(self, "budget_min", 7 * self.budget // 8)
        _require("budget_min", self.budget_min, 0)
        wanted = self.protect
        object.__setattr__(self, "protect", _protected(wanted, self.budget_min))
        if not max(self.fixed_prefix + self.protect, 1) <= self.budget_min < self.budget:
            least = 2
            while max(self.fixed_prefix + _protected(wanted, 7 * least // 8), 1) > 7 * least // 8:
                least += 1
            raise ValueError(
                f"budget={self.budget}, budget_min={self.budget_min} leave no room: "
                f"prefix + protect ({self.fixed_prefix} + {self.protect}) <= budget_min < budget must hold. "
                f"Choose a budget of at least {least}, or a smaller prefix or protect"
            )
        if self.early >= self.budget - self.budget_min:
            raise ValueError(
                f"early={self.early} must be less than budget - budget_min = {self.budget - self.budget_min}: "
                "an eviction has to find more entries than it leaves"
            )

    @property
    def fixed_prefix(self) -> int:
        """Number of protected first entries that is known before the prompt."""
        return 0 if self.prefix == "prompt" or self.scope == "output" else self.prefix

    def prefix_for(self, prompt: int) -> int:
        """Number of protected first entries of a row with a prompt of this length."""
        if self.scope == "output":
            return prompt
        return prompt if self.prefix == "prompt" else self.prefix

    def full_at(self, prompt: int, evictions: int = 0) -> int | None:
        """Number of entries at which a row is evicted for the next time; None: never."""
        if self.budget is None:
            return None
        return self.budget + evictions * self.growth + (prompt if self.scope == "output" else 0)

    def full_in_step_at(self, prompt: int, evictions: int = 0) -> int | None:
        """The same as :meth:`full_at`, in a decode step."""
        full_at = self.full_at(prompt, evictions)
        return full_at if full_at is None or evictions else full_at - self.early

    def kept_in_step(self, prompt: int, evictions: int, length: int) -> int:
        """Number of entries left of ``length`` after an eviction in a decode step.

        A prompt may have filled the row beyond the number at which the eviction was due. The surplus stays, so that the
        next eviction comes at the step at which it would have come.
        """
        return self.kept_for(prompt, evictions) + length - self.full_in_step_at(prompt, evictions)

    def kept_in_chunk(self, prompt: int, evictions: int = 0) -> int:
        """Number of entries left after an eviction at the end of a prompt, or of any input of several tokens."""
        later = self.budget - self.budget_min - self.early if self.early else 0
        return self.kept_for(prompt, evictions) + later

    def kept_for(self, prompt: int, evictions: int = 0) -> int:
        """Number of entries left after the next eviction of a row with a prompt of this length.

        Raises:
            ValueError: the prompt is the protected prefix and leaves no room within the budget.
        """
        budget_min = self.budget_min + evictions * self.growth
        if self.scope == "output":
            return budget_min + prompt
        if self.prefix == "prompt" and prompt + self.protect > budget_min:
            raise ValueError(
                f"prompt of {prompt} tokens as prefix + protect {self.protect} exceed budget_min {budget_min}: "
                'choose a larger budget, prefix=<number>, or scope="output"'
            )
        return budget_min


def staggered(schedule: EvictionSchedule, phases: int) -> list[EvictionSchedule]:
    """Schedules whose evictions are spread evenly over the cycle of B_max - B_min steps.

    Args:
        phases: Number of schedules. At most one for each step of a cycle is made.

    Raises:
        ValueError: no positive number, or several phases of a schedule that never evicts.
    """
    _require("stagger", phases, 1)
    if phases > 1 and schedule.budget is None:
        raise ValueError(f"stagger={phases} has no meaning without a budget")
    cycle = phases if schedule.budget is None else schedule.budget - schedule.budget_min
    phases = min(phases, cycle)
    return [replace(schedule, early=phase * cycle // phases) for phase in range(phases)]


def _protected(protect: int | str, budget_min: int) -> int:
    return budget_min // 2 if protect == "half" else protect


def _require(name: str, value: object, least: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}{also}, got {value!r}")
