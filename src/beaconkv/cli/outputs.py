"""Checks of the files and packages that a command needs, made before anything takes time."""

from __future__ import annotations

import errno
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path


def require_folder(path: Path) -> None:
    """Make the folder, and check that files can be written there.

    Raises:
        OSError: the path, or one above it, is a file; or it cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    path.mkdir(parents=True, exist_ok=True)
    try:  # finds more than permissions show: the file system may be read-only, or full
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


def require_file(path: Path) -> None:
    """Make the folder of a file, and check that the file can be written. Raises ``OSError``."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    require_folder(path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def require_package(name: str, extra: str, purpose: str) -> None:
    """Raise ``ImportError`` unless a package is installed; the message holds the command that installs it."""
    if find_spec(name) is None:
        raise ImportError(f"{purpose} needs {name}: pip install 'beaconkv[{extra}]'")
