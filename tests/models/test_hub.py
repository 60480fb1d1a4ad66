"""A hub that answers, one that refuses, one that never says anything: on this machine, through the hub's own client."""

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from beaconkv.models import load, load_config
from beaconkv.models.hub import hub_arguments, unreachable

NAME = "nobody/nothing-of-this-name"


class Busy(BaseHTTPRequestHandler):
    """Answers everything with "service unavailable"."""

    def do_HEAD(self):  # noqa: N802
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def answering():
    server = HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def silent():
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Puts a hub in the place of huggingface.co, with an empty cache; what the library read at its import."""

    def put(endpoint, offline=False):
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    return put


def test_any_answer_is_an_answer(answering, hub):
    hub(answering)
    assert unreachable(answering) is None
    assert hub_arguments(NAME) == {}


def test_a_hub_that_refuses_is_told_at_once(refusing, hub):
    hub(refusing)
    for use in (load, load_config):
        with pytest.raises(ConnectionError) as raised:
            use(NAME)
        told = str(raised.value)
        assert told.startswith(f"model '{NAME}' is not on this machine, and {refusing} does not answer")
        for way in ("a local folder", "reasoner, smollm2-135m", "HF_ENDPOINT", "HF_HUB_OFFLINE=1"):
            assert way in told


def test_one_that_says_nothing_is_waited_for_once(silent, hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.5")
    hub(silent)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="does not answer"):
        load(NAME)
    assert time.monotonic() - start >= 0.5


def test_a_copy_that_was_fetched_before_is_taken(refusing, hub, tmp_path):
    commit = tmp_path / "models--nobody--nothing-of-this-name" / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    (commit / "config.json").write_text("{}")
    refs = commit.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    hub(refusing)
    said = []
    assert hub_arguments(NAME, said.append) == {"local_files_only": True}
    assert said == [f"{refusing} does not answer: taking the copy of {NAME} that was fetched before"]


def test_offline_asks_nobody(refusing, hub):
    hub(refusing, offline=True)
    assert hub_arguments(NAME) == {}
