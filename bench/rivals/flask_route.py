"""A Flask route without any model, behind NGINX and gunicorn.

    python -m bench.rivals.flask_route PORT FOLDER

gunicorn's own worker with 16 threads, as the targets' machine was asked with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flask import Flask, request

from bench.rivals.together import run_together

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
    """Return the WSGI application: it answers the number that was sent."""
    app = Flask(__name__)

    @app.post("/invocations")
    def invocations() -> dict[str, object]:
        body = request.get_json()
        return {"modelname": body["modelname"], "result": body["payload"]["number"]}

    return app


def serve(port: int, folder: Path, application: str) -> None:
    """Run NGINX, and gunicorn with an application, and end with either of them."""
    user = "user root root;" if os.geteuid() == 0 else ""  # who may read the socket's folder
    (folder / "nginx.conf").write_text(
        NGINX.format(port=port, folder=folder, user=user), encoding="utf-8"
    )
    gunicorn = [
        *(sys.executable, "-m", "gunicorn", "--worker-class", "gthread", "--threads", "16"),
        *("--keep-alive", "75"),  # longer than NGINX keeps a connection
        *("--bind", f"unix:{folder}/gunicorn.sock", "--no-control-socket"),
        application,
    ]
    nginx = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "nginx.log")]
    run_together((nginx, gunicorn))


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), "bench.rivals.flask_route:program()")
