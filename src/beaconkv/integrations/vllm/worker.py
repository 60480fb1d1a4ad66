"""The worker with a bounded cache: ``--worker-cls beaconkv.integrations.vllm.worker.BoundedWorker``.

vLLM passes to its worker what the attention layers do not get: which requests a step is for, how long their
prompts are, when they end; and the worker has the model.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import get_layers_from_vllm_config
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform

from ...cache import state_bytes
from ...types import AttentionParams
from .backend import BoundedImpl, store_of
from .layout import require_readable
from .prometheus import Reporter
from .registration import BACKENDS, register_backends
from .registry import RequestRegistry
from .requests import WINDOW, BoundedAttention
from .rotary import LayerRope, attention_parents, layer_rope
from .server_checks import require_supported_config, settings_of
from .spec import BoundedSpec, bounded
from .stats import RequestStats

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker

logger = init_logger(f"vllm.{__name__}")  # vLLM shows the logs of its own loggers alone


class BoundedWorker(Worker):
    """vLLM's worker of this platform; with settings of a bounded cache, its full-attention layers are bounded."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self.bounded_settings = settings_of(vllm_config)
        self.registry: RequestRegistry | None = None
        if self.bounded_settings is not None:
            require_supported_config(vllm_config, self.bounded_settings)
            register_backends()
        else:
            logger.warning("No settings of a bounded cache were given: the cache is vLLM's own")
        super().__init__(vllm_config, *args, **kwargs)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        if self.bounded_settings is None:
            return
        self.registry = RequestRegistry(self.bounded_settings, lambda: self.model_runner)
        self.reporter = Reporter(self.registry, self.vllm_config.parallel_config.tensor_parallel_size, self.rank)
        layers = {
            name: layer
            for name, layer in get_layers_from_vllm_config(self.vllm_config, Attention).items()
            if name in self._bounded_specs()
        }
        for layer in get_layers_from_vllm_config(self.vllm_config, Attention).values():
            layer.impl.registry = self.registry  # also those that are not bounded: they check for our worker
        self._bind(layers)
        logger.info("Bounded cache in %d layers: %s", len(layers), self.bounded_settings.describe())

    def _bind(self, layers: dict[str, nn.Module]) -> None:
        """Bind each attention layer to its rotation and parameters."""
        parents = attention_parents(self.model_runner.get_model(), layers)
        ropes: dict[int, LayerRope] = {}
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(1, self.model_config.get_hidden_size(), generator=generator)
        hidden = hidden.to(self.device, self.model_config.dtype)
        for name, layer in layers.items():
            impl = layer.impl
            if not isinstance(impl, BoundedImpl):
                raise ValueError(
                    f"attention backend {layer.attn_backend.get_name()} cannot be bounded: choose one of "
                    f"{', '.join(BACKENDS)} by --attention-backend"
                )
            rope = layer_rope(name, parents[name], self._query_at, hidden, ropes)
            sinks = getattr(impl, "sinks", None)
            params = AttentionParams(impl.scale, impl.logits_soft_cap or None, None if sinks is None else sinks.float())
            sizes = layer.num_heads, layer.num_kv_heads, layer.head_size
            impl.bounded = BoundedAttention(name, *sizes, rope, params, lambda layer=layer: layer.kv_cache)
            if len(rope.cos) < self.model_config.max_model_len:
                raise ValueError(
                    f"{name} has a rotation for {len(rope.cos)} positions: choose a --max-model-len of no more"
                )

    @torch.inference_mode()
    def _query_at(self, parent: nn.Module, position: int, hidden: Tensor) -> Tensor:
        """The query (1, H, D) of one hidden state at a position, as it reaches the attention inside ``parent``."""
        impls = [child.impl for child in parent.children() if isinstance(child, Attention)]
        probe: list[Tensor] = []
        for impl in impls:
            impl.probe = probe
        try:
            with set_forward_context(None, self.vllm_config, num_tokens=1, slot_mapping={}):
                parent(positions=torch.full((1,), position, device=hidden.device), hidden_states=hidden)
        finally:
            for impl in impls:
                impl.probe = None
        if len(probe) != 1:
            raise ValueError(f"{type(parent).__name__} attends {len(probe)} times: cannot be bounded")
        return probe[0].view(1, impls[0].num_heads, -1)

    def _bounded_specs(self) -> dict[str, BoundedSpec]:
        return {name: spec for name, spec in self.get_kv_cache_spec().items() if isinstance(spec, BoundedSpec)}

    def get_kv_cache_spec(self) -> dict[str, Any]:
        specs = super().get_kv_cache_spec()
        if self.bounded_settings is None:
            return specs
        schedule, tokens = self.bounded_settings.schedule, self.vllm_config.scheduler_config.max_num_batched_tokens
        chunk = schedule.prefill_chunk or tokens
        own = {name: bounded(spec, schedule, chunk, tokens) for name, spec in specs.items()}
        if not any(isinstance(spec, BoundedSpec) for spec in own.values()):
            kinds = ", ".join(sorted({type(spec).__name__ for spec in specs.values()}))
            raise ValueError(f"this model has no full-attention layer to bound, only {kinds}")
        if len({type(spec) for spec in own.values()}) > 1 and self.scheduler_config.disable_hybrid_kv_cache_manager:
            raise ValueError(
                "this model has layers of several kinds, which a bounded cache keeps separate: start vLLM without "
                "--disable-hybrid-kv-cache-manager"
            )
        return own

    def determine_available_memory(self) -> int:
        """Bytes for blocks: the memory that vLLM finds, less the policies' states of ``max_num_seqs`` requests."""
        available = super().determine_available_memory()
        if self.bounded_settings is None or current_platform.is_cpu():
            return available  # on a CPU this is the user's setting for blocks
        reserve = self.state_bytes_per_request() * self.vllm_config.scheduler_config.max_num_seqs
        if reserve >= available:
            raise ValueError(
                f"{self.bounded_settings.policy} needs {reserve / 2**30:.1f} GiB of "
                f"{self.vllm_config.scheduler_config.max_num_seqs} requests, and {available / 2**30:.1f} GiB are left: "
                "choose a smaller --max-num-seqs"
            )
        return available - reserve

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate, and test each bounded layer's cache: its views must read what its kernels write.

        Raises:
            RuntimeError: vLLM has given a layer its own cache in place of a bounded one.
            ValueError: a layout that is not supported.
        """
        super().initialize_from_config(kv_cache_config)
        if self.bounded_settings is None:
            return
        served = {name for group in self.registry.groups for name in (layer.name for layer in group.layers)}
        if missing := sorted(set(self._bounded_specs()) - served):
            raise RuntimeError(f"vLLM gave the layer {missing[0]} a cache without bounds: this is not supported")
        layers = get_layers_from_vllm_config(self.vllm_config, Attention)
        with torch.inference_mode():
            for group, spec in zip(self.registry.groups, self.registry.specs, strict=True):
                for name in (layer.name for layer in group.layers):
                    layer, shape = layers[name], (spec.num_kv_heads, spec.block_size, 2 * spec.head_size)
                    # The first block belongs to no request.
                    backend = layer.attn_backend.get_name()
                    require_readable(name, backend, store_of(layer), group.views, layer.kv_cache, shape)

    def state_bytes_per_request(self) -> int:
        """Bytes outside the blocks of one request of the greatest length on this rank: positions, window and the
        policy's state, measured."""
        layers = [layer.impl.bounded for layer in get_layers_from_vllm_config(self.vllm_config, Attention).values()]
        settings, dtype, length = self.bounded_settings, self.model_config.dtype, self.model_config.max_model_len
        budget, total = settings.schedule.budget, 0
        measured = cache(lambda *shape: state_bytes(settings.method, budget, length, *shape, dtype))
        for layer in layers:
            if layer is not None:
                total += measured(layer.heads, layer.kv_heads, layer.head_dim)
                total += WINDOW * layer.heads * layer.head_dim * dtype.itemsize + 4 * layer.kv_heads * budget
        return total

    def execute_model(self, scheduler_output: Any) -> Any:
        if self.registry is None:
            return super().execute_model(scheduler_output)
        self.registry.begin_step(scheduler_output)
        try:
            return super().execute_model(scheduler_output)
        finally:
            self.registry.end_step()
            self.reporter.report()

    def bounded_stats(self) -> dict[str, Any]:
        """The numbers so far: ``llm.collective_rpc("bounded_stats")``.

        Returns:
            :class:`ServerStats` as a dict; "state_bytes", bytes of policy states on this rank; and under
            "finished" a :class:`RequestStats` of each request that ended since the last call.
        """
        if self.registry is None:
            raise RuntimeError("this worker has no bounded cache: no settings were given")
        finished: list[RequestStats] = self.registry.take_finished()
        now = {"state_bytes": self.registry.state_bytes(), "finished": [stats.to_dict() for stats in finished]}
        return self.registry.stats().to_dict() | now
