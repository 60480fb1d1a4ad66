"""The list of methods that the command line shows is made of the registry, and never behind it."""

import json

from beaconkv.policies.catalogue import PATH, catalogue, write


def test_the_file_is_what_the_registry_says():
    assert json.loads(PATH.read_text(encoding="utf-8")) == json.loads(json.dumps(catalogue())), "make catalogue"


def test_writing_it_again_gives_the_same_bytes(tmp_path):
    write(tmp_path / "catalogue.json")
    assert (tmp_path / "catalogue.json").read_bytes() == PATH.read_bytes()
