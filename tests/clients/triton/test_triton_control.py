"""Models are loaded, unloaded and listed through Triton's gRPC service, which is a fake here."""

from __future__ import annotations

import socket
import threading
from contextlib import nullcontext

import grpc
import pytest

from backends.model_config import TO_MEND
from clients.errors import (
    DeadlineExceeded,
    ModelFailed,
    ModelUnavailable,
    TooLargeAtOnce,
    UnknownVersion,
)
from clients.triton.client import Triton
from clients.triton.configuration import rename_config
from clients.triton.server import ModelState, Signature, TensorSpec
from tests.conftest import PATIENCE_S
from tests.support.refusing_triton import ARRAYS, Refusing, refusing, triton

__all__ = ["refusing", "triton"]  # the fixtures


def test_instances_are_as_many_on_each_gpu(triton: Triton) -> None:
    assert triton.instances("here", timeout=60) == 2 * 2 + 3


def test_a_folder_that_goes_while_triton_lists_them_is_nobody_s_failure(
    refusing: Refusing, triton: Triton
) -> None:
    gone = "failed to stat file /repository/gone"
    refusing.no_list = [gone] * 4
    assert [model.name for model in triton.models(timeout=60)] == ["here"]
    refusing.no_list = [gone] * 5
    with pytest.raises(ModelFailed, match=gone):
        triton.models(timeout=60)


def test_models_are_listed_by_name_and_version(refusing: Refusing, triton: Triton) -> None:
    versions = [("here", "10"), ("a", "1"), ("here", "9")]
    refusing.others = tuple(ModelState(name, version, "READY") for name, version in versions)
    listed = [(state.name, state.version) for state in triton.models(timeout=60)]
    assert listed == [("a", "1"), ("here", "1"), ("here", "9"), ("here", "10")]
    with pytest.raises(UnknownVersion) as caught:
        triton.infer("here", ARRAYS, version="7", timeout=60)
    assert caught.value.hint.endswith(": 1, 9, 10")


@pytest.mark.parametrize("number", ["1_0", "0b11", "+4", "\u0664", "0x10"])
def test_a_number_is_not_made_right_under_another_name(number: str) -> None:
    """Triton refuses all of them but the last."""
    text = f'name: "0b1" # 1_0\nmax_batch_size: {number}\n'
    assert rename_config(text, "b") == text.replace('"0b1"', '"b"')


def test_a_load_that_takes_longer_has_not_failed(refusing: Refusing, triton: Triton) -> None:
    refusing.delay = 1.0
    with pytest.raises(DeadlineExceeded, match=r"'here' was not loaded within 0\.2 s") as caught:
        triton.load("here", timeout=0.2)
    assert "GET /models/here" in caught.value.hint
    assert "ended and not repeated" in caught.value.hint


@pytest.mark.parametrize("delay", [0, 1.0])
def test_an_unload_that_takes_longer_is_told_as_that(
    refusing: Refusing, triton: Triton, delay: float
) -> None:
    refusing.index, refusing.delay = ModelState("here", "1", "UNLOADING"), delay
    with pytest.raises(DeadlineExceeded, match=r"'here' was not unloaded within 0\.2 s") as caught:
        triton.unload("here", timeout=0.2)
    assert "GET /models/here" in caught.value.hint
    assert "send" not in caught.value.hint


def test_a_load_for_which_there_is_no_room_is_told_from_others(
    refusing: Refusing, triton: Triton
) -> None:
    for said, kind in (
        ("Unable to initialize shared memory key. Error: No space left on device", TooLargeAtOnce),
        ("its file cannot be opened", ModelFailed),
    ):
        refusing.said = said
        with pytest.raises(ModelFailed, match=said) as raised:
            triton.load("here", timeout=60)
        assert type(raised.value) is kind


def test_of_a_model_that_triton_keeps_no_word_on_its_log_is_named(
    refusing: Refusing, triton: Triton
) -> None:
    """It refuses a configuration as it reads it, and tells why in its log alone."""
    refusing.said = "failed to load 'here', failed to poll from model repository"
    refusing.index = ModelState("here", "", "")
    with pytest.raises(ModelFailed, match=refusing.said) as raised:
        triton.load("here", timeout=60)
    assert "Triton's log has the reason" in raised.value.hint
    refusing.code = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(ModelUnavailable, match=r"'here' is not ready: .*Triton's log has the"):
        triton.infer("here", ARRAYS, timeout=60)
    refusing.index = ModelState("here", "1", "UNAVAILABLE", "its file cannot be opened")
    with pytest.raises(ModelFailed) as raised:
        triton.load("here", timeout=60)
    assert raised.value.message == "its file cannot be opened"
    assert "`dispatcher check`" in raised.value.hint
    with pytest.raises(ModelUnavailable) as asked:
        triton.infer("here", ARRAYS, timeout=60)
    assert asked.value.message.endswith("'here' is not ready: its file cannot be opened")


def test_a_model_that_was_unloaded_says_what_loads_it(refusing: Refusing, triton: Triton) -> None:
    refusing.code = grpc.StatusCode.UNAVAILABLE
    refusing.index = ModelState("here", "1", "UNAVAILABLE", "unloaded")
    with pytest.raises(ModelUnavailable) as asked:
        triton.infer("here", ARRAYS, timeout=60)
    assert asked.value.message.endswith("'here' is not ready: unloaded")
    assert asked.value.hint == "POST /load_model/here loads it"


def test_how_to_mend_a_model_is_a_hint(refusing: Refusing, triton: Triton) -> None:
    refusing.said = "failed to load 'here'"
    refusing.code = grpc.StatusCode.UNAVAILABLE
    refusing.index = ModelState("here", "1", "UNAVAILABLE", f"it is too large.{TO_MEND}cut it")
    with pytest.raises(ModelUnavailable) as asked:
        triton.infer("here", ARRAYS, timeout=60)
    assert asked.value.message.endswith("'here' is not ready: it is too large.")
    with pytest.raises(ModelFailed) as loaded:
        triton.load("here", timeout=60)
    assert loaded.value.message == "it is too large."
    assert [raised.value.hint for raised in (asked, loaded)] == ["cut it", "cut it"]


def test_a_proxy_of_the_environment_is_not_asked_for_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Docker hands its own configuration on to every container."""
    with (
        socket.create_server(("127.0.0.1", 0)) as proxy,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        server = Triton(f"127.0.0.1:{listener.getsockname()[1]}")
        asked = threading.Thread(target=server.is_ready, kwargs={"timeout": PATIENCE_S})
        asked.start()
        listener.settimeout(PATIENCE_S)
        listener.accept()[0].close()
        asked.join()


@pytest.mark.parametrize("unloads", [True, False])
def test_a_model_that_finds_no_room_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, unloads: bool
) -> None:
    server, unloaded = Triton("127.0.0.1:9", scarce=True), list[str]()

    def knock(model: str, inputs: object, *, timeout: float) -> None:
        raise TooLargeAtOnce("no room")

    def unload(model: str, *, timeout: float) -> None:
        unloaded.append(model)
        if not unloads:
            raise DeadlineExceeded("still in use")

    monkeypatch.setattr(server, "_call", lambda *_, **__: None)
    monkeypatch.setattr(server, "signature", lambda *_, **__: Signature(0, backend="onnxruntime"))
    monkeypatch.setattr(server, "knock", knock)
    monkeypatch.setattr(server, "unload", unload)
    with pytest.raises(TooLargeAtOnce, match="no room"):
        server.load("some", timeout=1)
    assert unloaded == ["some"]


def test_a_model_whose_inputs_have_no_room_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton never lets go of such a request, nor of its model."""
    server, done = Triton("127.0.0.1:9", scarce=True), list[str]()
    large = Signature(0, (TensorSpec("x", "FP32", (2**18,)),), backend="onnxruntime")
    small = Signature(0, (TensorSpec("x", "FP32", (-1,)),), backend="onnxruntime")
    monkeypatch.setattr(server, "_call", lambda *_, **__: None)
    monkeypatch.setattr(server, "knock", lambda *_, **__: done.append("knocked"))
    monkeypatch.setattr(server, "unload", lambda *_, **__: done.append("unloaded"))
    monkeypatch.setattr("clients.triton.client.free_bytes", lambda: 2**20 - 1)
    monkeypatch.setattr("clients.triton.client.ROOM_S", 0.1)
    for signature in (large, small):
        monkeypatch.setattr(server, "signature", lambda *_, found=signature, **__: found)
        with pytest.raises(TooLargeAtOnce) if signature is large else nullcontext():
            server.load("some", timeout=1)
    assert done == ["unloaded", "knocked"]
