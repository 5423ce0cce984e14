"""Choose the engine and the precision of a model, and cache the choice.

`backends.engines` makes the comparison: it runs the model with every engine on samples, compares
the answers and measures the time. Its result is cached here under the model's files, the processor
and the versions of the engines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.machine.shared_folder import digest_files, hold_lock, read_json, write_json
from backends.measure_runs import MeasuredRuns
from backends.model_config import FileSignature, ModelConfigError, read_parameters
from backends.onnxruntime.session_settings import own_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPENVINO, ONNXRUNTIME = "openvino", "onnxruntime"
AUTO, EXACT = "auto", "exact"
F32, BF16 = "f32", "bf16"

ENGINE, PRECISION = "engine", "precision"
"""The parameters of a model's configuration that pin an engine, or choose a precision."""
PRECISION_VARIABLE = "MODEL_PRECISION"
CACHE_VARIABLE = "ENGINE_CACHE"

EDITION = 8
"""Of the comparison; results of another edition are not read."""

LIMIT_S = 60.0
"""What a comparison may take: at a start all other models wait for it."""
LIMIT_VARIABLE = "ENGINE_COMPARISON_LIMIT_S"
"""The variable by which `dispatcher engines`, for which no server waits, gives it longer."""

SHOWN = "engines"
"""A folder in the one that instances share: a file per model version, for the web workers."""

_HOME = Path(__file__).resolve().parents[1]
"""Where Python finds the comparison, from wherever Triton was started."""

SAMPLES, KEYS = "samples", "dispatch.toml"
"""What the comparison reads in a model's folder, besides the versions."""


@dataclass(frozen=True)
class EnginePreference:
    """What a configuration allows: `AUTO` is the fastest whose answers pass."""

    engine: str = AUTO
    precision: str = EXACT


@dataclass(frozen=True)
class EngineChoice:
    """Which engine runs a model, and what the comparison of engines found.

    `speedup` is over ONNX Runtime in f32, 0 where it was not measured; `difference` the worst from
    its answers, in words; `gave_up_s` the seconds after which a comparison was ended, else 0.
    """

    engine: str
    precision: str = F32
    reason: str = ""
    speedup: float = 0.0
    difference: str = ""
    signature: FileSignature | None = None
    gave_up_s: float = 0.0
    runs: MeasuredRuns | None = None

    def sentence(self) -> str:
        """Return the choice as a sentence for the log."""
        name = {OPENVINO: "OpenVINO", ONNXRUNTIME: "ONNX Runtime"}[self.engine]
        said = f"run by {name} in {self.precision}"
        if self.speedup:
            said += f", {self.speedup:.2f} times as fast as ONNX Runtime in f32"
        if self.difference:
            said += f"; worst difference on samples: {self.difference}"
        said += f" ({self.reason})" if self.reason else ""
        return f"{said}; {self.runs.sentence()}" if self.runs else said


def preference(config: Mapping[str, Any], environment: Mapping[str, str]) -> EnginePreference:
    """Read engine and precision from a configuration, else from the environment.

    Raises ModelConfigError: it names an engine, a precision or an accelerator that there is not.
    """
    texts = read_parameters(config)
    engine = texts.get(ENGINE, AUTO)
    precision = texts.get(PRECISION, environment.get(PRECISION_VARIABLE, EXACT))
    decide = "leave it out to let the comparison of engines decide"
    for key, text, known, fix in (
        (ENGINE, engine, (AUTO, OPENVINO, ONNXRUNTIME), decide),
        (PRECISION, precision, (EXACT, AUTO), f'write "{AUTO}" to let {BF16} in, or leave it out'),
    ):
        if text not in known:
            raise ModelConfigError(
                f"parameter '{key}' is '{text}', but expected is one of {', '.join(known)}.", fix
            )
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    if accelerators.get("cpu_execution_accelerator"):  # `execution_providers` knows their names
        engine = OPENVINO
    return EnginePreference(engine, precision)


def choice_for_onnxruntime(
    config: Mapping[str, Any], folder: Path, file: Path, environment: Mapping[str, str]
) -> EngineChoice:
    """Return which engine runs a model of the backend `onnxruntime` on the CPU.

    Raises ModelConfigError: a parameter is not what it should be, whichever engine it is for.
    """
    asked = preference(config, environment)
    if own := own_settings(config):
        return EngineChoice(ONNXRUNTIME, reason=f"which alone knows {own}")
    return find_choice(folder, file, asked, environment)


def find_choice(
    folder: Path, file: Path, asked: EnginePreference, environment: Mapping[str, str]
) -> EngineChoice:
    """Return the cached choice for a model; compare engines where there is none.

    That of a comparison that was ended counts as well, unless this one may take longer.
    """
    limit = float(environment.get(LIMIT_VARIABLE, LIMIT_S))
    if not (kept := cached_file(folder, file, asked, environment)):
        return measure_choice(folder, file, asked, limit)
    with ExitStack() as stack:
        with suppress(OSError):  # else all instances of a model compare at once
            kept.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(kept.with_suffix(".lock")))
        if known := read(kept, limit):
            return known
        found = measure_choice(folder, file, asked, limit)
        if found.signature or found.gave_up_s:
            write_json(kept, asdict(found))
    return found


def cached_file(
    folder: Path, file: Path, asked: EnginePreference, environment: Mapping[str, str]
) -> Path | None:
    """Return where the choice for a model is cached; None without a cache."""
    cache = environment.get(CACHE_VARIABLE)
    return Path(cache) / f"{key_of(folder, file, asked)}.json" if cache else None


def measure_choice(folder: Path, file: Path, asked: EnginePreference, limit: float) -> EngineChoice:
    """Compare engines in a process of its own, because an engine may crash on a model."""
    # Inside Triton the former is empty, or what is first on PATH, too.
    python = sys.executable or shutil.which("python3") or "python3"
    command = [python, "-m", "backends.engines.selection"]
    command += [str(folder.absolute()), str(file.absolute()), asked.engine, asked.precision]
    command += ["runs"] if limit > LIMIT_S else []  # a server measures these when nobody asks
    try:
        done = subprocess.run(
            command, cwd=_HOME, capture_output=True, encoding="utf-8", check=False, timeout=limit
        )
        if done.returncode == 0:
            return parse_choice(json.loads(done.stdout.splitlines()[-1]))
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        reason = f"the comparison of engines failed: {said[:200]}"
    except subprocess.TimeoutExpired:
        reason = f"the comparison of engines took longer than {limit:g} s"
        if limit <= LIMIT_S:
            reason += "; `dispatcher engines` gives it more time"
        return EngineChoice(ONNXRUNTIME, reason=reason, gave_up_s=limit)
    except (OSError, ValueError, IndexError) as error:
        reason = f"the comparison of engines could not be made: {error}"
    return EngineChoice(ONNXRUNTIME, reason=reason)


def read(kept: Path, limit: float) -> EngineChoice | None:
    """Return a choice from the cache; None where there is none, or it had less time than now."""
    with suppress(ValueError):
        known = parse_choice(read_json(kept))
        lacks_runs = limit > LIMIT_S and known.signature and not known.runs
        return None if lacks_runs or 0 < known.gave_up_s < limit else known
    return None


def show(found: EngineChoice, shared: Path | None, model: str, version: str) -> Path | None:
    """Write what `GET /models` and `/metrics` show of a model; return the file for `hide`."""
    if shared is None:
        return None
    file = shared / SHOWN / f"{model}.{version}.json"
    fields = ("engine", "precision", "speedup", "difference")
    said = {name: getattr(found, name) for name in fields} | {"engine_reason": found.reason}
    write_json(file, {key: value for key, value in said.items() if value} | {"pid": os.getpid()})
    return file


def hide(file: Path | None) -> None:
    """Remove the file of `show`, unless another process has written it since."""
    known = read_json(file) if file else None
    if file and isinstance(known, dict) and known.get("pid") == os.getpid():
        with suppress(OSError):  # which must not keep the model from being freed
            file.unlink()


def parse_choice(found: object) -> EngineChoice:
    """Read a choice from JSON; raise ValueError if wrong."""
    import msgspec

    made = msgspec.convert(found, EngineChoice)
    if made.engine not in (OPENVINO, ONNXRUNTIME) or made.precision not in (F32, BF16):
        raise ValueError(f"{made.engine} in {made.precision}")
    return made


def key_of(folder: Path, file: Path, asked: EnginePreference) -> str:
    """Return the cache key of a choice: a digest of all that it depends on."""
    engines = [f"{name} {_version(name)}" for name in (OPENVINO, ONNXRUNTIME)]
    roots = (file.parent, folder / SAMPLES)
    paths = [*(path for root in roots for path in sorted(root.rglob("*"))), folder / KEYS]
    files = [path for path in paths if path.is_file()]
    return digest_files(files, EDITION, asked, engines, processor())


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor and what it can compute with, as Linux says."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = [re.search(rf"(?m)^{name}\s*:\s*(.*)$", text) for name in ("model name", "flags")]
    return " ".join(one[1] for one in found if one)


def _version(package: str) -> str:
    for name in (package, f"{package}-gpu"):
        with suppress(PackageNotFoundError):
            return version(name)
    return ""


def precisions(asked: EnginePreference, said: str) -> Sequence[str]:
    """Return the precisions in which OpenVINO may run a model on a processor, fastest first."""
    has_bf16 = {"avx512_bf16", "amx_bf16"} & set(said.split())
    return [BF16, F32] if asked.precision == AUTO and has_bf16 else [F32]
