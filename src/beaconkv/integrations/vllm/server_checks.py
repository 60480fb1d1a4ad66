"""The releases of vLLM, and its features, that a bounded cache works with. All such checks are in this file."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from .settings import WORKER, ServingSettings

OLDEST, NEXT = Version("0.32"), Version("0.33")


def require_supported_release() -> None:
    """Raise ``ImportError`` unless this integration supports the installed vLLM."""
    import vllm

    installed = Version(vllm.__version__)
    if not OLDEST <= Version(installed.base_version) < NEXT:
        raise ImportError(f"beaconkv supports vLLM >={OLDEST},<{NEXT}; found {installed}")


def settings_of(config: Any) -> ServingSettings | None:
    """The settings in a ``VllmConfig`` (``--additional-config '{"beaconkv": {...}}'``), or else in the environment.

    Raises:
        ValueError: settings that cannot work.
    """
    given = config.additional_config
    own = given.get("beaconkv") if isinstance(given, dict) else None
    environment = ServingSettings.from_environment()
    if own is None:
        return environment
    if not isinstance(own, dict):
        raise ValueError(f'additional_config["beaconkv"] must be a table of settings, got {own!r}')
    settings = ServingSettings.from_mapping(own)
    if environment not in (None, settings):
        raise ValueError(
            f'additional_config["beaconkv"] says {settings and settings.describe()}, and the environment says '
            f"{environment.describe()}: leave one of them out"
        )
    return settings


def require_supported_config(config: Any, settings: ServingSettings) -> None:
    """Raise ``ValueError``, with its name, for a feature of vLLM that a bounded cache does not support.

    Args:
        config: the ``VllmConfig`` of a worker.
        settings: settings of the bounded cache.
    """
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    refused = [
        (cache.enable_prefix_caching, "prefix caching", "--no-enable-prefix-caching"),
        (config.kv_transfer_config is not None, "KV connectors", "no --kv-transfer-config"),
        (config.kv_events_config is not None, "KV cache events", "no --kv-events-config"),
        (config.speculative_config is not None, "speculative decoding", "no --speculative-config"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism", "--decode-context-parallel-size 1"),
        (parallel.prefill_context_parallel_size > 1, "prefill context parallelism", "no context parallelism"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism", "--tensor-parallel-size instead"),
        (model.use_mla, "multi-head latent attention (MLA)", "a model with grouped queries"),
        (model.uses_mrope, "multimodal rotary positions (M-RoPE)", "a text model"),
        (model.is_encoder_decoder, "encoder-decoder models", "a decoder"),
        (model.runner_type != "generate", f"the {model.runner_type} runner", "a model that generates text"),
        (cache.cache_dtype != "auto", f"--kv-cache-dtype {cache.cache_dtype}", "--kv-cache-dtype auto"),
        (parallel.use_ubatching, "micro-batches (dual batch overlap)", "no --enable-dbo and no --ubatch-size"),
        (config.lora_config is not None, "LoRA adapters", "the adapter merged into the model"),
        (
            not config.scheduler_config.scheduler_reserve_full_isl,
            "admission by the first chunk",
            "--scheduler-reserve-full-isl",
        ),
    ]
    for is_used, feature, instead in refused:
        if is_used:
            raise ValueError(f"a bounded cache does not work with {feature}: start vLLM with {instead}")
    if parallel.tensor_parallel_size > 1 and getattr(settings.method, "head_pool", "group") == "all":
        raise ValueError(
            f"{settings.policy}: head_pool=all pools over all heads of a layer, which tensor parallelism spreads over "
            "several workers: choose head_pool=group, or --tensor-parallel-size 1"
        )
    heads = model.get_total_num_kv_heads()
    if heads % parallel.tensor_parallel_size:
        raise ValueError(
            f"a bounded cache does not work with {heads} KV heads on {parallel.tensor_parallel_size} workers, which "
            "would split or repeat them: choose a --tensor-parallel-size that divides the KV heads"
        )


def require_our_worker(registry: Any) -> None:
    """Raise ``RuntimeError`` if settings are given, but the worker is vLLM's own."""
    if registry is None:
        raise RuntimeError(f"settings of a bounded cache are given, but not its worker: add --worker-cls {WORKER}")
