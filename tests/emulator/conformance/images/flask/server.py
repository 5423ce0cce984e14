"""What many first containers are: the model is loaded in a thread, and /ping is constant."""

import threading
import time

import flask

app = flask.Flask(__name__)
model = []


def load() -> None:
    time.sleep(3)
    model.append(lambda x: 2 * x)


threading.Thread(target=load).start()


@app.get("/ping")
def ping() -> str:
    return ""


@app.post("/invocations")
def invocations() -> dict[str, int]:
    return {"y": model[0](flask.request.get_json()["x"])}


app.run(host="0.0.0.0", port=8080)
