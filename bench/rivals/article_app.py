"""The sample of AWS's article as it is: NGINX, gunicorn, its code and a Triton.

    python article_app.py PORT SAMPLE TOKENIZER FOLDER COMMAND_OF_TRITON…

https://github.com/aws-samples/aws-sm-mmo. Triton's HTTP and gRPC are on the next two ports.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.rivals.together import run_together


def serve(port: int, sample: Path, tokenizer: str, folder: Path, triton: list[str]) -> None:
    """Start the three programs as the sample's `serve` does, and end with any of them."""
    text = (sample / "sm" / "nginx.conf").read_text(encoding="utf-8")
    for its, ours in (
        ("listen 8080", f"listen 127.0.0.1:{port}"),
        ("/tmp/", f"{folder}/"),  # noqa: S108  that is where the sample has its socket
        ("/var/log/nginx/", f"{folder}/"),
    ):
        text = text.replace(its, ours)
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    addresses = f"'127.0.0.1:{port + 1}', '127.0.0.1:{port + 2}'"
    gunicorn = [
        *(sys.executable, "-m", "gunicorn", "--timeout", "60", "-k", "gevent"),
        *("-w", str(len(os.sched_getaffinity(0)))),
        *("-b", f"unix:{folder}/gunicorn.sock", "--no-control-socket"),
        f"bench.rivals.article_wsgi:program('{sample}', {addresses}, '{tokenizer}')",
    ]
    nginx = ["nginx", "-c", str(folder / "nginx.conf")]
    run_together((triton, nginx, gunicorn))


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5:])
