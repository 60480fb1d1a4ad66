"""``beaconkv plan``."""

from __future__ import annotations

import typer
from rich.table import Table

from ..units import human_bytes
from .common import add_settings, console, print_json, report
from .options import BUDGET, JSON, SETTING


def plan(
    model: str = typer.Argument(help="Bundled name, local folder, config.json or hub name."),
    budget: int = typer.Option(2048, help=BUDGET),
    length: int = typer.Option(32768, help="Number of tokens of a sequence, prompt included."),
    memory: float = typer.Option(80.0, help="Memory of the device in GiB."),
    utilization: float = typer.Option(0.9, help="Share of the memory for weights and caches."),
    dtype: str = typer.Option("bfloat16", help="Type of weights and cache: float32, bfloat16, float16."),
    policy: str = typer.Option("beaconkv", help="Policy whose state is counted."),
    settings: list[str] = typer.Option([], "--set", help=SETTING),
    as_json: bool = typer.Option(False, "--json", help=JSON),
) -> None:
    """Compute the memory of a model's cache, and what a budget saves."""
    from ..memory import ModelShape, plan_memory
    from ..models import load_config
    from ..models.placement import DTYPES
    from ..policies import make_policy
    from ..provenance import provenance

    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; choose from {', '.join(DTYPES)}")
    shape = ModelShape.of_config(load_config(model, report))
    chosen = make_policy(add_settings(policy, settings))
    result = plan_memory(
        shape,
        chosen,
        budget,
        length=length,
        memory_gib=memory,
        utilization=utilization,
        dtype=DTYPES[dtype],
    )
    if as_json:
        print_json({"plan": result.to_dict(), "shape": vars(shape), **provenance(model=model, dtype=dtype)})
        return
    table = Table("", "full cache", f"{policy}, budget {budget:,}", title=f"{model}, {length:,} tokens, {dtype}")
    table.add_row("weights", human_bytes(result.weight_bytes), human_bytes(result.weight_bytes))
    table.add_row("cache of one sequence", human_bytes(result.full_row), human_bytes(result.bounded_row))
    table.add_row("  of it queries and positions", "-", human_bytes(result.state_row))
    table.add_row(
        f"sequences that fit with the weights in {memory:g} GiB", f"{result.batch_full:,}", f"{result.batch_bounded:,}"
    )
    from_ = "never" if result.break_even_length is None else f"{result.break_even_length:,} tokens on"
    table.add_row("smaller than the full cache", "-", from_)
    console.print(table)
    console.print(
        f"One token costs {human_bytes(result.bytes_per_token)} in {shape.full_layers} full-attention layers."
    )
    if result.state_per_token:
        console.print(f"What {policy} remembers grows by {human_bytes(result.state_per_token)} with each token.")
    if result.break_even_length is None:
        console.print(
            f"A budget of {budget:,} never saves memory with {policy}: that is no less than the full cache grows."
        )
    else:
        console.print(
            f"A budget of {budget:,} saves memory for sequences of {result.break_even_length:,} tokens and more."
        )
    if result.bounded_row > result.full_row:
        console.print(f"[yellow]At {length:,} tokens it costs more than the full cache.[/yellow]")
    if result.batch_full == 0 and result.batch_bounded == 0:
        console.print("Not even one sequence fits: the weights leave no room.")
