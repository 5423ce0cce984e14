"""`python -m container.model_check FOLDER`: why Triton may not load a folder's models, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from container.model_check.model import check_folder

folder = Path(sys.argv[1]).resolve()
found = [(one.level, one.sentence(folder)) for one in check_folder(folder).found]
sys.stdout.write(json.dumps(found))
