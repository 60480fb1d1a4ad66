"""Twins in plain PyTorch with fewer and better placed steps. Chosen in :mod:`beaconkv.ops`."""
