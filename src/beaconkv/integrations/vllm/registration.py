"""The attention backends that can be bounded, and how vLLM comes to know our form of them."""

from __future__ import annotations

from vllm.v1.attention import selector
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from .server_checks import require_supported_release

BACKENDS = {
    "CPU_ATTN": "beaconkv.integrations.vllm.cpu.BoundedCPUBackend",
    "FLASH_ATTN": "beaconkv.integrations.vllm.flash.BoundedFlashBackend",
}
"""By vLLM's name. Without bounded layers each is vLLM's own."""


def register_backends() -> None:
    """Name our form of each backend in vLLM's registry. Doing it twice changes nothing.

    Raises:
        ImportError: an unsupported release of vLLM.
    """
    require_supported_release()
    from . import spec  # noqa: F401  its classes become known

    for name, path in BACKENDS.items():
        register_backend(AttentionBackendEnum[name], path)
    selector._cached_get_attn_backend.cache_clear()  # an engine before this one may have chosen vLLM's own
