"""Every setting, in one immutable table.

`./serve --help`, the documentation and its test read the table. A value comes from the environment
variable named beside it. A bad value stops the start with a message that names the variable, its
value and what was expected.
"""

from dispatcher.settings.run_folder import (
    ASIDE,
    ENGINES,
    FAILING,
    INSTANCES,
    JOBS,
    MODELS,
    READINESS,
    SUPERVISOR,
    USED,
    WANTED,
)
from dispatcher.settings.table import (
    ADAPT,
    AUTO,
    MANAGING,
    PROJECT,
    RUN_PATH,
    SCARCE,
    UNLOAD_S,
    WORKABLE,
    SettingError,
    Settings,
    gone,
    read_settings,
    rows,
    with_others,
)

__all__ = [
    "ADAPT",
    "ASIDE",
    "AUTO",
    "ENGINES",
    "FAILING",
    "INSTANCES",
    "JOBS",
    "MANAGING",
    "MODELS",
    "PROJECT",
    "READINESS",
    "RUN_PATH",
    "SCARCE",
    "SUPERVISOR",
    "UNLOAD_S",
    "USED",
    "WANTED",
    "WORKABLE",
    "SettingError",
    "Settings",
    "gone",
    "read_settings",
    "rows",
    "with_others",
]
