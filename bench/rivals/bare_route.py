"""A Flask route that has a model's work done by Triton, and does nothing else.

    BENCH_TRITON=HOST:PORT BENCH_REPOSITORY=FOLDER python -m bench.rivals.bare_route PORT FOLDER

It asks this server's own Triton in this server's own way, with shared memory and for the rows alone
that are read, behind NGINX and gunicorn's own worker. It lacks what this server's web worker does
besides: checks, turns, logs, metrics, health.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import Flask, request

from bench.load.work import WORKS, Bert, Work, YoloV5
from clients.triton.client import Triton
from clients.triton.server import NO_HINTS, Hints, Padding
from clients.triton.shared_memory import affordable
from dispatcher.telemetry.memory import total_memory

TIMEOUT_S = 60.0
OUTPUT = "output"  # of all three models
OBJECTNESS, CONFIDENCE = 4, 0.5  # a column of YOLOv5's boxes, and as `YoloV5.finish` has it
FILLING = Padding(
    dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), 0), outputs=(OUTPUT,)
)

NGINX = """\
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_max_body_size 64m;
  client_body_buffer_size 4m;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream gunicorn {{ server unix:{folder}/gunicorn.sock; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://gunicorn;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
"""


def program() -> Flask:
    """Return the WSGI application."""
    app = Flask(__name__)
    triton = Triton(os.environ["BENCH_TRITON"], affordable(total_memory()))
    works = {name: kind(Path(os.environ["BENCH_REPOSITORY"])) for name, kind in WORKS.items()}

    @app.post("/invocations")
    def invocations() -> dict[str, object]:
        body = json.loads(request.get_data(cache=False))
        name, payload = body["modelname"], body["payload"]
        return {"modelname": name, "result": ask_model(triton, works[name], payload)}

    return app


def ask_model(triton: Triton, work: Work, payload: Mapping[str, Any]) -> list[Any]:
    """Return a model's answer."""
    inputs, kept = work.prepare(payload)
    hints = NO_HINTS
    if isinstance(work, Bert):
        hints = Hints(rows={OUTPUT: kept[1]}, padding=FILLING)
    elif isinstance(work, YoloV5):
        hints = Hints(above={OUTPUT: (OBJECTNESS, CONFIDENCE)})
    answer = triton.infer(work.modelname, inputs, outputs=[OUTPUT], hints=hints, timeout=TIMEOUT_S)
    rows = answer[OUTPUT]
    if isinstance(work, Bert):
        return work.finish(dict(zip(kept[1], rows, strict=True)), kept)
    return work.finish(rows[0], kept)


def serve(port: int, folder: Path) -> None:
    """Run NGINX, and gunicorn with the application; end with either of them, or by SIGTERM."""
    user = "user root root;" if os.geteuid() == 0 else ""  # who may read the socket's folder
    (folder / "nginx.conf").write_text(
        NGINX.format(port=port, folder=folder, user=user), encoding="utf-8"
    )
    gunicorn = [
        *(sys.executable, "-m", "gunicorn", "--worker-class", "gthread", "--threads", "16"),
        *("--keep-alive", "75"),  # longer than NGINX keeps a connection
        *("--bind", f"unix:{folder}/gunicorn.sock", "--no-control-socket"),
        "bench.rivals.bare_route:program()",
    ]
    nginx = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "nginx.log")]
    programs = [subprocess.Popen(command) for command in (nginx, gunicorn)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        os.wait()
    finally:
        for one in programs:
            one.terminate()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
