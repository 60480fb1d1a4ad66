"""The attention backends that can be bounded, and the registration of their bounded forms with vLLM."""

from __future__ import annotations

from vllm.v1.attention import selector
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from .server_checks import require_supported_release

BACKENDS = {
    "CPU_ATTN": "beaconkv.integrations.vllm.cpu.BoundedCPUBackend",
    "FLASH_ATTN": "beaconkv.integrations.vllm.flash.BoundedFlashBackend",
}
"""vLLM's name -> bounded form of a backend. Without bounded layers each is the same as vLLM's own."""


def register_backends() -> None:
    """Enter the bounded form of each backend in vLLM's registry. A second call changes nothing.

    Raises:
        ImportError: an unsupported release of vLLM.
    """
    require_supported_release()
    from . import spec  # noqa: F401  registers its classes

    for name, path in BACKENDS.items():
        register_backend(AttentionBackendEnum[name], path)
    selector._cached_get_attn_backend.cache_clear()  # an engine before this one may have chosen vLLM's own
