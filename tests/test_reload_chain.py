"""A reload under load, in the real container with several web workers."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from contextlib import closing
from pathlib import Path

from tests.conftest import PROJECT, running

SOURCE = """
import time
from clients.base import Client

class Mine(Client):
    modelname = "mine"
    example = {{}}

    def inference(self, payload):
        time.sleep(payload.get("seconds", 0.01))
        return {result}
"""


def test_a_reload_under_load_loses_no_request(  # noqa: PLR0915  one history
    models: None, tmp_path: Path
) -> None:
    """What began before it ends on the old class; what begins after it meets the new one."""
    shutil.copytree(PROJECT / "model_repository" / "bert_base", tmp_path / "models" / "bert_base")
    mine = tmp_path / "clients" / "mine.py"
    mine.parent.mkdir()
    mine.write_text(SOURCE.format(result="'old'"))
    answers: list[tuple[float, float, int, str]] = []
    faults: list[BaseException] = []
    done = threading.Event()
    settings = {
        "MODEL_REPOSITORY": str(tmp_path / "models"),
        "CLIENTS_PATH": str(mine.parent),
        "MODEL_SERVER_WORKERS": "2",
    }
    with running(tmp_path, **settings) as endpoint:

        def ask(connection: http.client.HTTPConnection, seconds: float) -> None:
            body = json.dumps({"modelname": "mine", "payload": {"seconds": seconds}})
            begin = time.monotonic()
            connection.request("POST", "/invocations", body)
            response = connection.getresponse()
            result = json.loads(response.read()).get("result")
            answers.append((begin, time.monotonic(), response.status, result))

        def keep_asking(seconds: float) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
            try:
                with closing(connection):
                    while not done.is_set():
                        ask(connection, seconds)
            except Exception as error:
                faults.append(error)

        callers = [threading.Thread(target=keep_asking, args=(s,)) for s in [0.01] * 6 + [6]]
        for caller in callers:
            caller.start()
        try:
            time.sleep(1)
            mine.write_text(SOURCE.format(result="'new'"))
            begin = time.monotonic()
            reload = endpoint.call("/reload", method="POST")
            end = time.monotonic()
            assert (reload.status, reload.json["taken"]) == (200, ["mine"])
            time.sleep(1)
            mine.write_text(SOURCE.format(result="1 / 0"))
            refused = endpoint.call("/reload", method="POST")
            time.sleep(0.5)
        finally:
            done.set()
            for caller in callers:
                caller.join()
        assert faults == []
        assert {status for _, _, status, _ in answers} == {200}
        assert refused.status == 400
        assert (
            "'mine' fails on its own example: ZeroDivisionError" in refused.json["error"]["message"]
        )
        assert {result for at, _, _, result in answers if at > end} == {"new"}
        assert {result for at, _, _, result in answers if at < begin} == {"old"}
        crossed = [result for at, over, _, result in answers if at < begin and over > end]
        assert crossed == ["old"], "the slow request was in flight all through the reload"
        assert len(answers) > 100
