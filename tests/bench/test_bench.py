"""The benchmark measures what it says: the loop, the processes, the models."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnxruntime
import pytest

from bench import compare
from bench.load import load, models, work
from bench.load.limit import Sample
from bench.servers import processes
from bench.servers.contenders import PRECISION
from tests.conftest import PROJECT
from tests.support.family_bench import picture, plain

ANSWER_S = 0.02


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sizes: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.sizes.append(len(body))
        time.sleep(ANSWER_S)
        self.send_response(500 if self.path == "/broken" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_callers_send_requests_in_turn(port: int) -> None:
    Handler.sizes.clear()
    load.ask_in_a_loop(port, [load.request("/", b"x" * size) for size in (1, 2, 3)], 1, 1, warm=0)
    assert Handler.sizes[:4] == [1, 2, 3, 1]
    with pytest.raises(load.LoadError, match="500"):  # an answer that is not 200 ends it
        load.ask_in_a_loop(port, [load.request("/broken", b"")], 1, 60, warm=0)


def test_a_closed_loop_counts_what_is_answered(port: int) -> None:
    asked = load.request("/", b"x" * 3_000_000)
    loop = load.ask_in_a_loop(port, [asked], 4, 1.5, warm=0.2)
    assert loop.percentile(0.5) >= ANSWER_S * 1e3
    assert 4 <= len(loop.times) <= loop.answers
    assert loop.per_second <= 4 / ANSWER_S
    assert load.once(port, load.request("/", b"text")) == (200, b"text")


def test_a_process_is_counted_with_its_children() -> None:
    # It has two that use 0.2 s each and then sleep; the kernel counts in hundredths.
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); time.sleep(60)"
    one = f'"{sys.executable}" -c "{burn}" &'
    command = ["sh", "-c", f"{one} {one} wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as parent:
        try:
            assert parent.stdout is not None
            for _ in range(2):
                parent.stdout.readline()
            children = processes.descendants(parent.pid)
            assert len(children) == 2
            alone = [processes.cpu_ms(pid).total() for pid in children]
            assert min(alone) >= 150
            assert processes.cpu_ms(parent.pid).total() == pytest.approx(sum(alone), abs=20)
            sizes = [processes.memory_mb(pid) for pid in children]
            assert processes.memory_mb(parent.pid) > sum(sizes) > 0
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_the_random_bert_heeds_padding_and_scores_the_wanted_places_as_the_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "LAYERS", 2)
    monkeypatch.setattr(models, "VOCABULARY", 1000)
    models.lay_out(tmp_path)
    (bert,) = tmp_path.glob("bert*768.onnx")
    whole, few = map(onnxruntime.InferenceSession, (bert, bert.with_suffix(work.FEW)))
    ids = np.array([[2, 5, 7], [2, 5, 9]], np.int64)
    seen = np.array([[1, 1, 0], [1, 1, 0]], np.int64)
    inputs = {"input_ids": ids, "attention_mask": seen, "token_type_ids": np.zeros_like(ids)}
    (output,) = whole.run(["output"], inputs)
    assert output.shape == (2, 3, 1000)
    assert np.allclose(output[0, :2], output[1, :2], atol=1e-5)
    assert not np.allclose(output[0, 2], output[1, 2], atol=1e-2)
    ids = np.array([[2, 5, 7], [2, 3, 3]], np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    (scores,) = whole.run(["output"], inputs)
    (answers,) = work.FewRows(few, mask=3).run(["output"], inputs)
    assert [sorted(one) for one in answers] == [[], [1, 2]]
    assert np.allclose(answers[1][2], scores[1, 2], atol=1e-5)


def test_every_word_of_a_setting_reaches_the_server(tmp_path: Path) -> None:
    repository = PROJECT / "model_repository"
    server = compare.with_setting(
        "MODEL_PRECISION=auto A=b=c", 0, repository, tmp_path, "bert_base"
    )
    assert server.environment[PRECISION] == "auto"
    assert server.environment["A"] == "b=c"


def test_the_limit_fills_a_mask_as_the_server_does() -> None:
    bert = work.Bert(PROJECT / "model_repository")
    logits = np.zeros((1, 9, 30522), np.float32)
    logits[0, 2, bert.tokenizer.id("##ing")] = 9
    best = bert.finish(logits[0], ["look[MASK] here.", [2]])[0]
    assert best["token"] == "looking here."


@pytest.mark.parametrize("model", [work.ResNet, work.YoloV5])
def test_pixels_are_bytes_as_the_model_takes_them(model: type[work.Work]) -> None:
    made = model(PROJECT / "model_repository")
    (pixels,) = made.prepare(picture(plain(8, 8, [255, 102, 51])))[0].values()
    middle = len(pixels[0, 0]) // 2
    assert pixels.dtype == np.uint8
    assert pixels[0, :, middle, middle].tolist() == [255, 102, 51]


def sample(per_second: float, p50: float) -> Sample:
    return Sample(per_second, p50, 9.0, {"gunicorn": 2.0, "Triton": 3.0}, 100.0)


def test_a_contender_is_compared_with_others_in_the_same_round() -> None:
    found = {
        ("in-process limit, 2 threads", 8): [sample(20, 1), sample(20, 1), sample(20, 1)],
        ("1: commit=old", 8): [sample(10, 1), sample(20, 1), sample(10, 1)],
        ("2: default", 8): [sample(11, 2), sample(18, 4), sample(13, 3)],
    }
    rows = compare.table("resnet", found, "1: commit=old").splitlines()
    shares = "0.65 (0.55–0.90) | 1.10 (0.90–1.30)"
    assert f"| 8 | 2: default | 13.0 | {shares} | 3.0 | 9.0 | 5.0 | 100.0 |" in rows


def test_goals_are_shares_of_rivals_in_the_same_round() -> None:
    found = {
        ("1: default", 8): [sample(20, 1), sample(9, 1), sample(30, 1)],
        ("LitServe", 8): [sample(10, 1), sample(10, 1), sample(20, 1)],
        ("Triton HTTP", 8): [sample(25, 1), sample(10, 1), sample(25, 1)],
    }
    (line,) = compare.judge("resnet", found, "1: default")
    assert line == (
        "8 callers: 1.50 of LitServe (goal: 1.0), 0.90 of Triton HTTP (goal: 1.0, MISSED),"
        " p99 1.00 of the better one's (goal: 1.05)"
    )


@pytest.mark.skipif(
    not (PROJECT / ".git").exists() or not shutil.which("git"), reason="no git repository here"
)
def test_another_commit_is_served_from_its_own_files(tmp_path: Path) -> None:
    files = compare.check_out("HEAD", tmp_path)
    shown = subprocess.run(
        ["git", "-C", PROJECT, "show", "HEAD:serve"], capture_output=True, check=True
    )
    assert (files / "serve").read_bytes() == shown.stdout
    with pytest.raises(SystemExit, match="commit=nonsense"):
        compare.check_out("nonsense", tmp_path)


def test_every_rival_s_packages_are_pinned_with_hashes() -> None:
    for wanted in sorted((PROJECT / "bench" / "requirements").glob("*.in")):
        pinned = wanted.with_suffix(".txt").read_text()
        assert "--hash=sha256:" in pinned
        assert "://" not in pinned, wanted
