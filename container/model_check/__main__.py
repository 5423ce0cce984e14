"""`python -m container.model_check FOLDER`: why Triton may not load a folder's models, as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from clients.model_files.findings import Findings
from clients.model_files.model_folders import models_in
from container.model_check.model import check_loading

findings = Findings(Path(sys.argv[1]).resolve())
for name, folder in models_in(findings.root):
    try:
        check_loading(name, folder, findings)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        findings.error(Path(error.filename or folder), what, "let all users read it")
sys.stdout.write(json.dumps([asdict(one) for one in findings.found]))
