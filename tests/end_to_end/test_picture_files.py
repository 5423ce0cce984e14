"""Models that decode pictures by themselves get the callers' files; expected is Pillow's decode."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clients.images.pictures import decode_picture
from tests.conftest import PICTURES, PROJECT, Answer, Endpoint, running, wait_for

DECODES = PROJECT / "tests" / "support" / "models" / "decodes_itself.py"
CONFIG = """backend: "python"
max_batch_size: {batch}
input [ {{ name: "RAW_IMAGE" data_type: TYPE_{kind} dims: [ {dims} ] {ragged} }} ]
output [ {outputs} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{batching}
"""
ENSEMBLE = """platform: "ensemble"
max_batch_size: 8
input [ { name: "FILE" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "MEAN" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling { step [ {
  model_name: "ragged" model_version: -1
  input_map { key: "RAW_IMAGE" value: "FILE" } output_map { key: "MEAN" value: "MEAN" }
} ] }
"""
CLASSIFICATION = 'family = "classification"\noutput = "MEAN"\n'
SIZES = {"MEAN": "3", "TOGETHER": "1"}


def add(
    folder: Path,
    toml: str,
    *outputs: str,
    kind: str = "STRING",
    batch: int = 8,
    ragged: str = "",
    batching: str = "dynamic_batching { max_queue_delay_microseconds: 100000 }",
) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(DECODES.read_text())
    shapes = ", ".join(
        f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ {SIZES[name]} ] }}' for name in outputs
    )
    (folder / "config.pbtxt").write_text(
        CONFIG.format(
            kind=kind,
            dims=1 if kind == "STRING" else -1,
            batch=batch,
            outputs=shapes,
            ragged=ragged,
            batching=batching if batch else "",
        )
    )
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")
    if toml:
        (folder / "dispatch.toml").write_text(toml)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("files")
    models = folder / "repository"
    add(models / "bytes", CLASSIFICATION, "MEAN", "TOGETHER")
    ragged = "allow_ragged_batch: true"
    add(models / "ragged", CLASSIFICATION, "MEAN", "TOGETHER", kind="UINT8", ragged=ragged)
    add(models / "chain", CLASSIFICATION, "MEAN")
    (models / "chain" / "config.pbtxt").write_text(ENSEMBLE)
    add(models / "unequal", CLASSIFICATION, "MEAN", "TOGETHER", kind="UINT8")
    add(models / "alone", CLASSIFICATION, "MEAN", kind="UINT8", batch=0)
    add(models / "nameless", "", "MEAN")
    with running(
        folder,
        MODEL_REPOSITORY=str(models),
        REQUIRED_MODELS="bytes,alone,nameless",
        CANARY_INTERVAL="0.2",
    ) as endpoint:
        yield endpoint


COFFEE = (PICTURES / "coffee.png").read_bytes()


def jpeg(picture: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.convert("RGB").save(out, "JPEG", **options)
    return out.getvalue()


PHOTO = jpeg(Image.open(io.BytesIO(COFFEE)).resize((320, 200)), quality=90)


def in_base64(file: bytes) -> str:
    return base64.b64encode(file).decode()


def mean(file: bytes) -> dict[str, float]:
    """Return the mean of each channel, 0 to 1, as Pillow decodes the file."""
    pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
    return dict(zip(("red", "green", "blue"), pixels.mean((0, 1)) / 255, strict=True))


def scores(texts: list[str]) -> dict[str, float]:
    return {text.split(":")[2]: float(text.split(":")[0]) for text in texts}


def send(endpoint: Endpoint, model: str, file: bytes, kind: str = "image/jpeg") -> Answer:
    return endpoint.call(f"/infer/{model}", file, headers={"Content-Type": kind})  # type: ignore[arg-type]


def statistics(endpoint: Endpoint, model: str) -> dict[str, Any]:
    found: dict[str, Any] = endpoint.call(f"/v2/models/{model}/stats").json["model_stats"][0]
    return found


@pytest.mark.parametrize("model", ["bytes", "ragged", "chain", "alone"])
@pytest.mark.parametrize("file", [COFFEE, PHOTO], ids=["PNG", "JPEG"])
def test_a_picture_reaches_the_model_in_every_form(
    endpoint: Endpoint, model: str, file: bytes
) -> None:
    payload = {"img": in_base64(file)}
    form = (
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'
        + file
        + b"\r\n--b--\r\n"
    )
    lines = json.dumps({"modelname": model, "payload": payload}) + "\n"
    answers = [
        endpoint.ask(modelname=model, payload=payload).json["result"],
        endpoint.ask(
            modelname=model, payload={"img": "data:image/jpeg;base64," + payload["img"]}
        ).json["result"],
        send(endpoint, model, file).json["result"],
        send(endpoint, model, file, "application/octet-stream").json["result"],
        send(endpoint, model, form, "multipart/form-data; boundary=b").json["result"][0],
        send(endpoint, model, lines.encode(), "application/jsonlines").json["result"],
    ]
    decoded = decode_picture(file, "img", 10**7).mean((0, 1)) / 255
    for answer in answers:
        assert scores(answer) == pytest.approx(mean(file), abs=0.002)
        assert list(map(scores(answer).get, ("red", "green", "blue"))) == pytest.approx(
            decoded, abs=0.002
        )


def pictures(count: int) -> list[bytes]:
    """Return files of unequal lengths, each of its own colour."""
    return [
        jpeg(Image.new("RGB", (16 + 8 * n, 24), (20 * n, 255 - 20 * n, 10 * n)), quality=95)
        for n in range(count)
    ]


@pytest.mark.parametrize("model", ["bytes", "ragged", "chain", "unequal", "alone"])
def test_a_list_is_answered_in_order(endpoint: Endpoint, model: str) -> None:
    files = pictures(11)
    answer = endpoint.ask(modelname=model, payload=[{"img": in_base64(one)} for one in files])
    for file, result in zip(files, answer.json["result"], strict=True):
        assert scores(result) == pytest.approx(mean(file), abs=0.01)


@pytest.mark.parametrize("model", ["bytes", "ragged", "chain"])
def test_pictures_of_different_callers_share_a_run(endpoint: Endpoint, model: str) -> None:
    files = pictures(8)
    runs_in = "ragged" if model == "chain" else model
    before = statistics(endpoint, runs_in)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda file: send(endpoint, model, file), files))
    for file, answer in zip(files, answers, strict=True):
        assert scores(answer.json["result"]) == pytest.approx(mean(file), abs=0.01)
    after = statistics(endpoint, runs_in)
    rows, runs = (after[name] - before[name] for name in ("inference_count", "execution_count"))
    assert rows >= 8
    assert runs <= rows - 4, "eight callers within 100 ms"


@pytest.mark.parametrize("model", ["bytes", "alone"])
def test_a_model_that_raises_fails_that_request_and_goes_on(endpoint: Endpoint, model: str) -> None:
    place = COFFEE.index(b"IDAT") + 4
    damaged = COFFEE[:place] + bytes(1000) + COFFEE[place + 1000 :]
    answer = send(endpoint, model, damaged)
    assert (answer.status, answer.json["error"]["code"]) == (502, "model_failed")
    for _ in range(5):
        assert endpoint.call("/ping").status == 200
        assert send(endpoint, model, COFFEE).status == 200


def test_the_prober_sends_no_zeros_to_models_that_decode(endpoint: Endpoint) -> None:
    """The one without a client raises once, for nobody knows what it takes."""
    models = ("bytes", "alone", "nameless")

    def counted(kind: str) -> dict[str, int]:
        shown = {name: statistics(endpoint, name)["inference_stats"][kind] for name in models}
        return {name: int(one.get("count", 0)) for name, one in shown.items()}

    failed, answered = counted("fail"), counted("success")
    wait_for(
        lambda: all(n > answered[m] + 2 for m, n in counted("success").items() if m != "nameless"),
        20,
        "three probes each",
    )
    assert counted("fail") == failed
    assert failed["nameless"] == 1
    assert endpoint.call("/ping").status == 200


def test_predict_is_another_name_for_invocations(endpoint: Endpoint) -> None:
    body = json.dumps({"modelname": "bytes", "payload": {"img": in_base64(PHOTO)}})
    assert endpoint.call("/predict", body).json == endpoint.call("/invocations", body).json
