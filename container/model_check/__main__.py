"""`python -m container.model_check FOLDER`: what is wrong with a folder's models, as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from clients.model_files.findings import Findings
from container.model_check.models import check_models, note_unreadable

findings = Findings(Path(sys.argv[1]).resolve(), links_replaced=True)
check_models(findings, note_unreadable(findings), may_be_empty=False)
sys.stdout.write(json.dumps([asdict(one) for one in findings.found]))
