"""What an author's class may do, and that its faults are its own: named, and alone."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cv2
import numpy as np
import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import load_clients
from clients.triton.server import Signature, TensorSpec
from dispatcher.settings import read_settings
from tests.conftest import PICTURES, picture
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton

HEAD = """
import numpy as np
from clients.base import Client
from clients.errors import BadPayload
"""


def served(folder: Path, source: str, server: FakeTriton | None = None) -> FlaskClient:
    """Return an endpoint with the clients of one file and a healthy one."""
    (folder / "mine.py").write_text(HEAD + textwrap.dedent(source))
    (folder / "healthy.py").write_text(
        HEAD
        + textwrap.dedent("""
        class Healthy(Client):
            modelname = "healthy"
            example = {}

            def inference(self, payload):
                return "well"
        """)
    )
    environment = Environment(server or FakeTriton(), folder / "no_models")
    registry = load_clients(environment, [folder])
    settings = read_settings({})
    app = make_app(settings, registry, environment, quiet())
    return app.test_client()


def ask(client: FlaskClient, name: str = "mine", payload: Any = None, **fields: Any) -> Any:
    body = {"modelname": name, "payload": payload or {}, **fields}
    return client.post("/invocations", data=json.dumps(body))


def answering(expression: str) -> str:
    return f"""
        class Mine(Client):
            modelname = "mine"
            example = {{}}

            def inference(self, payload):
                return {expression}
        """


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("np.zeros(3)", ["ndarray", "result"]),
        ("{'boxes': [{'x': 1}, {'x': np.float32(1)}]}", ["float32", "result.boxes[1].x"]),
        ("[b'text']", ["bytes", "result[0]"]),
        ("{(1, 2): 3}", ["tuple", "key", "result"]),
        ("{1, 2}", ["set", "result"]),
        ("{'a': {float('nan'): 3}}", ["a key that is nan", "result.a"]),
        ("[{np.float64('-inf'): 3}]", ["a key that is -inf", "result[0]"]),
        ("{10**5000: 3}", ["a key of more than 4300 digits", "result"]),
        ("{'a': [1, -(10**5000)]}", ["a value of more than 4300 digits", "result.a[1]"]),
        ("(lambda a: a.append(a) or a)([])", ["hold themselves"]),
        ("(lambda a: a.extend([a, float('nan')]) or a)([])", ["hold themselves"]),
    ],
)
def test_a_result_that_is_not_json_is_named_with_its_place(
    tmp_path: Path, expression: str, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering(expression))
    response = ask(client)
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    for word in words:
        assert word in response.json["error"]["message"]
    assert ".tolist()" in response.json["error"]["hint"]
    assert "'mine'" in caplog.text
    assert ask(client, "healthy").json["result"] == "well"


@pytest.mark.parametrize("expression", ["np.zeros(3)", "1 / 0", "exit()", "{}['secret']"])
def test_the_fault_of_one_client_does_not_spoil_the_others_answers(
    tmp_path: Path, expression: str
) -> None:
    client = served(tmp_path, answering(expression))
    body = {"requests": [{"modelname": n, "payload": {}} for n in ("mine", "healthy")]}
    for sent in (body, {"modelname": ["mine", "healthy"], "payload": {}}):
        results = client.post("/invocations", data=json.dumps(sent)).json["results"]
        bad, good = results.values() if isinstance(results, dict) else results
        assert (bad["status"], bad["error"]["code"]) == (500, "client_failed")
        assert (good["status"], good["result"]) == (200, "well")
        assert "secret" not in json.dumps(results)


OWN_ERROR = """
class TooLoud(BadPayload):
    hint = "send a quieter one"

    def __init__(self, loudness):
        {body}

class Mine(Client):
    modelname = "mine"
    example = {{}}

    def inference(self, payload):
        raise TooLoud(5)
"""


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ("self.loudness = loudness", 400, "bad_payload", "TooLoud: 5"),
        ("self.message = loudness", 500, "client_failed", "in a way it does not explain"),
        ("self.hint = self", 500, "client_failed", "in a way it does not explain"),
    ],
)
@pytest.mark.parametrize("form", ["one", "list", "requests", "several", "lines"])
def test_an_error_of_one_s_own_that_is_written_oddly_is_that_model_s_alone(
    tmp_path: Path, body: str, status: int, code: str, message: str, form: str
) -> None:
    client = served(tmp_path, OWN_ERROR.format(body=body))
    mine, healthy = ({"modelname": name, "payload": {}} for name in ("mine", "healthy"))
    if form in ("one", "list"):
        response = ask(client, payload=[{}] if form == "list" else {})
        bad, others = {"status": response.status_code, **response.json}, []
    elif form == "lines":
        response = client.post(
            "/invocations",
            data="\n".join(map(json.dumps, [healthy, mine, healthy])),
            content_type="application/jsonlines",
        )
        first, bad, last = map(json.loads, response.text.splitlines())
        others = [first, last]
    elif form == "requests":
        response = client.post("/invocations", json={"requests": [mine, healthy]})
        bad, *others = response.json["results"]
    else:
        response = ask(client, ["mine", "healthy"])
        bad, *others = response.json["results"].values()
    assert (bad["status"], bad["error"]["code"]) == (status, code)
    assert message in bad["error"]["message"]
    if status == 400:
        assert bad["error"]["hint"] == "send a quieter one"
    assert all((other["status"], other["result"]) == (200, "well") for other in others)


THREADS = """
import contextvars
from concurrent.futures import ThreadPoolExecutor

class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        with ThreadPoolExecutor(2) as pool:
            asks = [
                pool.submit(*self.run(payload), self.infer, {"x": np.array([n])}) for n in (1, 2)
            ]
            return [ask.result()["y"].tolist() for ask in asks]

    def run(self, payload):
        return [contextvars.copy_context().run] if "copied" in payload else []

class Eager(Mine):
    modelname = "eager"

    def __init__(self, environment):
        super().__init__(environment)
        self.size = self.max_batch_size
"""


def test_where_there_is_no_request_its_author_is_told_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeTriton({"mine": lambda inputs: {"y": inputs["x"] + 1}})
    client = served(tmp_path, THREADS, server)
    assert ask(client, payload={"copied": True}).json["result"] == [[2], [3]]
    response = ask(client)
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert "there is no request here" in caplog.text
    assert "`contextvars.copy_context().run`" in caplog.text
    error = ask(client, "eager").json["error"]
    assert error["code"] == "client_disabled"
    assert "there is no request here: in `__init__` there is none yet" in error["message"]


def test_an_author_s_own_texts_are_told(tmp_path: Path) -> None:
    source = """
        class TooLoud(BadPayload):
            def __init__(self, loudness):
                self.loudness = loudness

            @property
            def message(self):
                return f"{self.loudness} is too loud"

        class Mine(Client):
            modelname = "mine"
            example = {}

            @property
            def media(self):
                return {"text": "text"}

            def inference(self, payload):
                raise TooLoud(5)
    """
    client = served(tmp_path, source)
    response = client.post("/infer/mine", data="hello", content_type="text/plain")
    assert (response.status_code, (response.json or {})["error"]["message"]) == (
        400,
        "5 is too loud",
    )


@pytest.mark.parametrize("size", ["0", "-3", "'four'", "None", "1.5"])
def test_a_batch_of_no_size_is_the_client_s_fault(
    tmp_path: Path, size: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering("1") + f"\n            max_batch_size = {size}")
    response = ask(client, payload=[{}, {}])
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert "'mine'" in caplog.text
    assert ask(client).json["result"] == 1


DRAWING = """
class Mine(Client):
    modelname = "mine"
    example = {{}}

    def inference(self, payload):
        return 1

    def draw(self, payload, result, media_type):
        return {made}
"""


def drawn(folder: Path, made: str) -> Any:
    body = json.dumps({"payload": {}})
    client = served(folder, DRAWING.format(made=made))
    return client.post("/infer/mine", data=body, headers={"Accept": "image/png"})


@pytest.mark.parametrize(
    "made", ["b'file'", "bytearray(b'file')", "memoryview(b'file')", "np.array([*b'file'], 'u1')"]
)
def test_what_is_drawn_may_be_bytes_in_whatever_holds_them(tmp_path: Path, made: str) -> None:
    response = drawn(tmp_path, made)
    assert (response.status_code, response.mimetype) == (200, "image/png")
    assert response.data == b"file"


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("None", "NoneType"),
        ("b''", "empty value of the type bytes"),
        ("'file'", "str"),
        ("5", "int"),
        ("iter([b'file'])", "list_iterator"),
        ("__import__('io').BytesIO(b'file')", "BytesIO"),
        ("np.zeros((2, 2, 3), 'u1')", "ndarray"),
        ("np.zeros(3)", "ndarray"),
        ("np.zeros(3, 'M8[s]')", "ndarray"),
    ],
)
def test_what_is_drawn_and_is_no_file_is_the_client_s_fault(
    tmp_path: Path, made: str, kind: str
) -> None:
    response = drawn(tmp_path, made)
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert kind in response.json["error"]["message"]
    assert "draw returns the bytes of a file" in response.json["error"]["hint"]


def test_a_list_is_never_answered_with_the_results_of_others(tmp_path: Path) -> None:
    source = answering("payload") + (
        "\n            def inference_batch(self, payloads):\n                return payloads[1:]"
    )
    response = ask(served(tmp_path, source), payload=[{"a": 1}, {"a": 2}])
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert "1 for a batch of 2" in response.json["error"]["message"]


def test_a_fault_of_the_server_is_not_blamed_on_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served(tmp_path, answering("1"))
    monkeypatch.setattr("dispatcher.routes.inference.json_answer", lambda _: 1 / 0)
    response = ask(client)
    assert (response.status_code, response.json["error"]["code"]) == (500, "internal_error")


CHAIN = """
class Mine(Client):
    modelname = "mine"
    model = "finder"
    example = {}

    def inference(self, payload):
        found = self.infer({"x": np.zeros(1)})["y"]
        again = self.infer({"x": found}, model="namer", version=payload.get("namer", ""))["y"]
        old = self.infer({"x": found}, version="1")["y"]
        return [*found.tolist(), *again.tolist(), *old.tolist()]
"""


def test_several_models_and_their_versions_are_asked(tmp_path: Path) -> None:
    server = FakeTriton(
        {
            "finder": lambda inputs: {"y": inputs["x"] + 1},
            "namer": lambda inputs: {"y": inputs["x"] * 10},
        }
    )
    client = served(tmp_path, CHAIN, server)
    assert ask(client, payload={"namer": "1"}, modelversion=1).json["result"] == [1, 10, 2]
    asked = [(call["model"], call["version"]) for call in server.calls]
    assert asked == [("finder", "1"), ("namer", "1"), ("finder", "1")]
    assert ask(client).status_code == 200
    asked = [(call["model"], call["version"]) for call in server.calls[3:]]
    assert asked == [("finder", ""), ("namer", ""), ("finder", "1")]
    assert all(0 < call["timeout"] <= 54 for call in server.calls)


KEPT = """
class TooLoud(BadPayload):
    def __init__(self, loudness, *, limit):
        self.loudness, self.limit = loudness, limit

    @property
    def message(self):
        return f"{self.loudness} is above {self.limit}"

ERROR = <error>

class Mine(Client):
    modelname = "mine"
    example = {}
    max_batch_size = 2

    def inference(self, payload):
        if payload:
            raise ERROR

class Other(Mine):
    modelname = "other"

    def inference_batch(self, payloads):
        raise ERROR
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("BadPayload('bad number', hint='mend it')", "bad number"),
        ("TooLoud(5, limit=3)", "5 is above 3"),
    ],
)
def test_one_error_object_may_be_raised_again_and_again(
    tmp_path: Path, error: str, message: str
) -> None:
    client = served(tmp_path, KEPT.replace("<error>", error))

    def told(name: str, payload: Any) -> str:
        response = ask(client, name, payload)
        assert (response.status_code, response.json["error"]["code"]) == (400, "bad_payload")
        assert response.json["error"]["hint"] == ("mend it" if "mend" in error else "")
        return str(response.json["error"]["message"])

    for _ in range(2):
        assert told("mine", [{}, {}, {}, {"x": 1}]) == f"payload[3]: {message}"
        assert told("mine", [{"x": 1}]) == f"payload[0]: {message}"
        assert told("mine", {"x": 1}) == message
        assert told("other", [{}]) == message


FAILING = """
class Odd(dict):
    def items(self):
        raise {error}("boo")

class TooLoud(BadPayload):
    @property
    def message(self):
        raise {error}("boo")

    @message.setter
    def message(self, text):
        pass

class Mine(Client):
    modelname = "mine"
    example = {{}}

    def inference(self, payload):
        if "loud" in payload:
            raise TooLoud("5")
        return {{"boxes": Odd(x=float("nan"))}}
"""


@pytest.mark.parametrize("error", ["KeyError", "ValueError", "RecursionError"])
@pytest.mark.parametrize("payload", [{}, {"loud": True}])
def test_a_result_or_an_error_that_fails_when_it_is_read_is_the_client_s_fault(
    tmp_path: Path, error: str, payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, FAILING.format(error=error))
    for sent in (payload, [payload]):
        caplog.clear()
        response = ask(client, payload=sent)
        assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
        assert "Traceback" in caplog.text
        assert "'mine'" in caplog.text
    results = ask(client, ["mine", "healthy"], payload).json["results"]
    assert results["mine"]["error"]["code"] == "client_failed"
    assert results["healthy"]["result"] == "well"


CONTEXT = """
class TooDark(BadPayload):
    pass

class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        if "dark" in payload:
            raise TooDark("it is too dark", hint="switch on the light")
        request = self.request
        request.response_attributes["tone"] = "warm"
        return [request.request_id, request.attributes["room"], request.time_left() > 1]
"""


def test_the_request_s_context_is_read_and_attributes_go_back(tmp_path: Path) -> None:
    client = served(tmp_path, CONTEXT)
    header = "X-Amzn-SageMaker-Custom-Attributes"
    response = client.post(
        "/invocations",
        data=json.dumps({"modelname": "mine", "payload": {}}),
        headers={header: "room=kitchen", "X-Request-Id": "abc"},
    )
    assert response.json["result"] == ["abc", "kitchen", True]
    assert response.headers[header] == "tone=warm"
    response = ask(client, payload={"dark": True})
    assert (response.status_code, response.json["error"]["code"]) == (400, "bad_payload")
    assert response.json["error"]["hint"] == "switch on the light"


STRIPPED = """
class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        return [
            self.picture({"img": payload[name].partition(",")[2]}).tolist() for name in ("a", "b")
        ]

class Other(Mine):
    modelname = "other"
"""


def test_texts_that_a_client_makes_itself_are_told_from_each_other(tmp_path: Path) -> None:
    """Where several models are asked too, for which a picture is decoded once."""
    client = served(tmp_path, STRIPPED)
    pixels = {"a": [[[0, 0, 0]]], "b": [[[200, 200, 200]]]}
    payload = {}
    for name, rows in pixels.items():
        file = cv2.imencode(".bmp", np.array(rows, np.uint8))[1].tobytes()
        payload[name] = f"data:image/bmp;base64,{base64.b64encode(file).decode()}"
    results = ask(client, ["mine", "other"], payload).json["results"]
    assert [one["result"] for one in results.values()] == [list(pixels.values())] * 2


def test_what_a_client_changes_in_its_payload_no_other_model_sees(tmp_path: Path) -> None:
    source = """
        class Mine(Client):
            modelname = "mine"
            example = {}

            def inference(self, payload):
                return [payload.pop("scale"), payload["box"]["corners"].pop()]

        class Other(Mine):
            modelname = "other"
    """
    client = served(tmp_path, source)
    payload = {"scale": 2, "box": {"corners": [1, 5]}}
    one = {"status": 200, "result": [2, 5]}
    results = ask(client, ["mine", "other"], payload).json["results"]
    assert results == {"mine": one, "other": one}
    results = ask(client, ["mine", "other"], [payload] * 3).json["results"]
    assert [one["result"] for one in results.values()] == [[[2, 5]] * 3] * 2


CAUGHT = """
from clients.base import Client
from clients.errors import BadPayload

class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        if "count" in payload:
            try:
                return int(payload["count"])
            except ValueError as error:
                raise BadPayload(error, hint=None)
        return 10**5000 if payload else None
"""


def test_an_error_that_was_caught_may_be_the_message(tmp_path: Path) -> None:
    response = ask(served(tmp_path, CAUGHT), payload={"count": "many"})
    assert (response.status_code, response.json["error"]["code"]) == (400, "bad_payload")
    assert "'many'" in response.json["error"]["message"]
    assert response.json["error"]["hint"] == ""


def test_a_number_of_too_many_digits_is_the_class_s_fault(tmp_path: Path) -> None:
    """Python writes no whole number of more than 4300."""
    response = ask(served(tmp_path, CAUGHT), payload={"large": True})
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")


def test_a_class_written_for_a_decoded_picture_keeps_working(tmp_path: Path) -> None:
    """It gets what cv2.imdecode gave it; what it returns may be arrays, as it could before."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "inference.py").write_text(
        textwrap.dedent("""
        class Old:
            def __init__(self):
                self.calls = 0

            def inference(self, img):
                self.calls += 1
                assert self.calls == 1
                img[0, 0] += 0
                return {"corner": img[0, 0], "shape": img.shape, "mean": img.mean(dtype="f4"),
                        img[0, 0, 0]: "key"}
        """)
    )
    (tmp_path / "old" / "__init__.py").write_text(
        "from clients.older_class import OlderClass\nfrom .inference import Old\n"
        "class OldClient(OlderClass):\n    modelname = 'old'\n    older = Old\n"
    )
    client = served(tmp_path, "", FakeTriton())
    expected = cv2.imread(str(PICTURES / "chelsea.png"))
    payload = {"img": picture(PICTURES / "chelsea.png")}
    for _ in range(2):
        result = ask(client, "old", payload).json["result"]
        assert result["corner"] == expected[0, 0].tolist()
        assert result[str(expected[0, 0, 0])] == "key"
        assert result["shape"] == list(expected.shape)
        assert result["mean"] == pytest.approx(expected.mean(), rel=1e-3)
    raw = (PICTURES / "chelsea.png").read_bytes()
    response = client.post("/infer/old", data=raw, content_type="image/png")
    assert response.json["result"]["shape"] == list(expected.shape)


ENTRY_POINTS = """
[triton_dispatcher.clients]
all = ears
one = ears.single:Single
bad = ears.missing
odd = ears:NUMBER
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a small package with clients.

    Its wheel is packed here, so that no build tool is needed.
    """
    client = HEAD + textwrap.dedent(answering("'heard'"))
    wheel = tmp_path_factory.mktemp("package") / "ears-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        all_ears = client.replace("mine", "ears").replace("Mine", "Ears")
        packed.writestr("ears/__init__.py", f"{all_ears}\nNUMBER = 5\n")
        packed.writestr(
            "ears/single.py", client.replace("mine", "single").replace("Mine", "Single")
        )
        info = "ears-1.2.dist-info"
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ears\nVersion: 1.2\n")
        packed.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{info}/entry_points.txt", ENTRY_POINTS)
        packed.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in packed.namelist()))
    target = tmp_path_factory.mktemp("target")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", target, wheel], check=True, timeout=120)
    return target


def test_the_entry_points_of_an_installed_package_are_clients(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    client = served(tmp_path, answering("1"))
    for name in ("ears", "single"):
        assert ask(client, name).json["result"] == "heard"
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"))
    assert registry.source("single") == "the entry point 'one' of ears"
    reasons = " ".join(registry.broken.values())
    assert "the entry point 'bad' of ears cannot be imported: ModuleNotFoundError" in reasons
    assert "ears:NUMBER is 5; expected a module, or a class" in reasons
    for name in [name for name in sys.modules if name.partition(".")[0] == "ears"]:
        del sys.modules[name]


def test_a_disabled_client_says_why_and_the_others_are_served(tmp_path: Path) -> None:
    source = answering("1").replace("example = {}", "example = {'img': b'bytes'}")
    client = served(tmp_path, source)
    response = ask(client)
    assert (response.status_code, response.json["error"]["code"]) == (503, "client_disabled")
    assert "mine.py: its example is not JSON" in response.json["error"]["message"]
    assert ask(client, "healthy").status_code == 200


def test_an_example_that_its_object_makes_breaks_no_page_of_all(tmp_path: Path) -> None:
    source = (
        answering("1")
        + """
            def __init__(self, environment):
                super().__init__(environment)
                self.example = {"numbers": np.zeros(2)}
        """
    )
    client = served(tmp_path, source)
    assert "mine.py: its example is not JSON" in ask(client).json["error"]["message"]
    for page in ("/docs", "/openapi.json"):
        assert "healthy" in client.get(page).text


OLD = """
from base import Base

class Resnet(Base):
    def inference(self, img):
        {lazily}
        return [self.greeting, list(img.shape)]
"""
WRAPPED = """
from clients.older_class import OlderClass
from .inference import Resnet

class Old{number}(OlderClass):
    modelname = "old{number}"
    older = Resnet
"""


def old_layout(folder: Path, base: Path, number: int, lazily: str = "pass") -> None:
    """Write a class as the project had them before: its base is imported by a bare name."""
    (folder / f"old{number}").mkdir()
    (folder / f"old{number}" / "__init__.py").write_text(WRAPPED.format(number=number))
    (folder / f"old{number}" / "inference.py").write_text(OLD.format(lazily=lazily))
    base.write_text(f"import helper_of_base\nclass Base:\n    greeting = 'from {number}'\n")
    base.with_name("helper_of_base.py").touch()


@pytest.mark.parametrize(
    "lazily", ["pass", "from base import Base; assert Base is Resnet.__base__"]
)
def test_an_older_class_keeps_the_base_beside_it(tmp_path: Path, lazily: str) -> None:
    """Two have one each, a third's lies beside its folder; none is seen by others."""
    for number in (1, 2):
        old_layout(tmp_path, tmp_path / f"old{number}" / "base.py", number, lazily)
    (tmp_path / "third").mkdir()
    old_layout(tmp_path / "third", tmp_path / "third" / "base.py", 3, lazily)
    registry = load_clients(
        Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path, tmp_path / "third"]
    )
    assert registry.broken == {}
    app = make_app(
        read_settings({}),
        registry,
        Environment(FakeTriton(), tmp_path / "no_models"),
        quiet(),
    )
    payload = {"img": picture(PICTURES / "coffee.png")}
    height, width = cv2.imread(str(PICTURES / "coffee.png")).shape[:2]
    for number in (1, 2, 3):
        answer = ask(app.test_client(), f"old{number}", payload)
        assert answer.json["result"] == [f"from {number}", [height, width, 3]]
    assert not {"base", "helper_of_base", "inference"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("import parts.words", "parts.words.WORD"),
        ("import parts.words as w", "w.WORD"),
        ("from parts import words", "words.WORD"),
        ("from parts.words import *", "WORD"),
        ("import parts", "parts.AGAIN"),
        ("import json", "json.dumps('mine')[1:-1]"),
    ],
)
def test_what_lies_beside_a_file_is_imported_in_any_form(
    tmp_path: Path, statement: str, value: str
) -> None:
    """What Python has by itself comes first, as ever."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from parts.words import WORD as AGAIN\n")
    (tmp_path / "parts" / "words.py").write_text("WORD = 'mine'\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine.py").write_text(HEAD + f"{statement}\n" + textwrap.dedent(answering(value)))
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    assert registry.clients["mine"].inference({}) == "mine"


def test_what_is_not_beside_a_file_either_is_named(tmp_path: Path) -> None:
    old_layout(tmp_path, tmp_path / "base.py", 1)
    (tmp_path / "base.py").rename(tmp_path / "elsewhere.py")
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    (reason,) = (r for r in registry.broken.values() if "old1" in r)
    assert "No module named 'base'" in reason


ON_ANOTHER = """
class Mine(Client):
    modelname = "mine"
    model = "m"
    example = {}

    def inference(self, payload):
        return "by the class"
"""
TENSOR = {"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}


def on_another(folder: Path) -> FlaskClient:
    server = FakeTriton({"m": lambda inputs: {"x": 2 * inputs["x"]}})
    spec = TensorSpec("x", "FP32", (-1,))
    server.signatures["m"] = Signature(0, (spec,), (spec,))
    return served(folder, ON_ANOTHER, server)


def test_a_class_does_not_hide_the_model_that_it_asks(tmp_path: Path) -> None:
    client = on_another(tmp_path)
    assert ask(client).json["result"] == "by the class"
    for route in ("/infer/m", "/models/m/invoke"):
        answer = client.post(route, json={"inputs": [TENSOR]}).json or {}
        assert answer["outputs"][0]["data"] == [6.0]
    listed = {
        one["modelName"]: one["client"] for one in (client.get("/models").json or {})["models"]
    }
    assert set(listed) == {"m", "mine"}
    assert listed["m"] is None
    assert (client.get("/models/m").json or {})["state"] == "READY"
    assert ask(client, "n").json["error"]["hint"] in {"served are: m, mine", "served are: mine, m"}


def test_a_class_does_not_hide_the_family_of_the_model_that_it_asks(tmp_path: Path) -> None:
    folder = tmp_path / "no_models" / "m"  # where `served` looks for models
    folder.mkdir(parents=True)
    (folder / "dispatch.toml").write_text('aliases = ["other-name"]')
    client = on_another(tmp_path)
    assert ask(client).json["result"] == "by the class"
    for name in ("m", "other-name"):
        answer = client.post(f"/infer/{name}", json={"inputs": [TENSOR]}).json or {}
        assert answer["outputs"][0]["data"] == [6.0]
    listed = [one["modelName"] for one in (client.get("/models").json or {})["models"]]
    assert listed == ["m", "mine"]


@pytest.mark.parametrize("way", ["path", "path, encoded", "body", "target", "attributes"])
@pytest.mark.parametrize("name", ["a+b", "_x", "v1.2-c"])
def test_a_model_is_asked_by_any_name_that_it_may_have(tmp_path: Path, name: str, way: str) -> None:
    client = served(tmp_path, answering("'well'").replace('"mine"', repr(name)))
    body: dict[str, Any] = {"payload": {}}
    headers, path = {}, "/invocations"
    if way.startswith("path"):
        path = f"/infer/{quote(name) if 'encoded' in way else name}"
    elif way == "body":
        body["modelname"] = name
    elif way == "target":
        headers["X-Amzn-SageMaker-Target-Model"] = f"{name}.tar.gz"
    else:
        headers["X-Amzn-SageMaker-Custom-Attributes"] = f"modelname={name}"
    answer = client.post(path, json=body, headers=headers)
    assert (answer.json or {}) == {"modelname": name, "result": "well"}
