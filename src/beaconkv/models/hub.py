"""A check whether the model hub answers, made once and before the hub is needed.

The hub's own client tries each of some ten requests six times with pauses that double: without a network that takes
most of a minute. One request finds out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

SECONDS = 5.0
"""Maximum number of seconds to wait for a connection, and for the first byte of the answer. HF_HUB_ETAG_TIMEOUT, if
set, replaces it."""


def hub_arguments(name: str, report: Callable[[str], None] = lambda message: None) -> dict[str, Any]:
    """Further arguments of ``from_pretrained`` for a model of the hub.

    Args:
        name: owner/model.
        report: called with a message when a copy that was fetched before is used because the hub does not answer.

    Returns:
        ``local_files_only`` in that case; nothing otherwise. A download itself has no time limit.

    Raises:
        ConnectionError: the hub does not answer, and no copy is there.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE:
        return {}
    reason = unreachable(constants.ENDPOINT)
    if reason is None:
        return {}
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        report(f"{constants.ENDPOINT} does not answer: taking the copy of {name} that was fetched before")
        return {"local_files_only": True}
    raise ConnectionError(
        f"model {name!r} is not on this machine, and {constants.ENDPOINT} does not answer ({reason}). "
        "Give a local folder or .gguf file, or a bundled name (reasoner, smollm2-135m); "
        "HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 asks none"
    )


def unreachable(endpoint: str) -> str | None:
    """The reason why the hub does not answer; None if it answers, whatever the status."""
    from huggingface_hub.utils import get_session

    seconds = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or SECONDS)
    try:
        get_session().head(endpoint, timeout=seconds)  # the client has the user's proxies and certificates
    except Exception as error:  # the client's library differs between releases, and so do its errors
        return str(error) or type(error).__name__
    return None
