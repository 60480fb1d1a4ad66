"""``python -m beaconkv``."""

from .cli import main

main()
