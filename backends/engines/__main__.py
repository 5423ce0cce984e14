"""`python -m backends.engines FOLDER FILE ENGINE PRECISION`: print the choice for a model, in JSON.

In a process of its own: an engine may crash on a model, and the memory that the comparison needs is
given back at its end.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from backends.engine_choice import EnginePreference
from backends.engines.selection import select_engine
from container.trouble import Trouble

folder, file, *asked = sys.argv[1:]
logging.disable(logging.CRITICAL)
try:
    found = select_engine(Path(folder), Path(file), EnginePreference(*asked))
except Trouble as error:
    sys.exit(str(error))
sys.stdout.write(f"{json.dumps(asdict(found))}\n")
