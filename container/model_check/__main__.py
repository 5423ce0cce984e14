"""`python -m container.model_check FOLDER`: why Triton may not load a folder's models, as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from container.model_check.model import check_folder

found = check_folder(Path(sys.argv[1]).resolve()).found
sys.stdout.write(json.dumps([asdict(one) for one in found]))
