"""Folders in the layout of the Hugging Face hub: what their files say of a model.

The hub's own are fetched first. What the files of the configuration, the tokenizer and the image
processor say stands in for what a model's file does not show; the plan is made as for any file.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from backends.engines.runs import RecordedModels, RecordingSession
from clients.base import Environment
from clients.families.base.dispatch_toml import FILE
from clients.tensors.client import examples_of
from clients.testing import answer, clients_in
from container.trouble import Trouble
from tool.progress import announce
from tool.scaffold.plan import FamilyPlan

PREFIX = "hf:"
CONFIG, PICTURES, MODEL = "config.json", "preprocessor_config.json", "model.onnx"
TOKENIZER = ("tokenizer_config.json", "tokenizer.json")
TEXTS = ("question", "context", "text", "text_pair")  # of a payload, in a tokenizer's order
FILES = ("*.json", "*.txt", "*.model")  # what is fetched besides the model
FAMILIES: Mapping[str, str] = {
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "classification",
    "ForSemanticSegmentation": "segmentation",
    "ForDepthEstimation": "picture-to-picture",
}
"""The family of an architecture, by the end of its name."""
# Those whose tasks optimum has other names for; it infers none of a folder.
TASKS: Mapping[str, str] = {
    "zero-shot-classification": "text-classification",
    "classification": "image-classification",
    "segmentation": "semantic-segmentation",
    "picture-to-picture": "depth-estimation",
    **dict.fromkeys(("", "embedding", "picture-embedding", "tensors"), "feature-extraction"),
}
VECTORS = ("Model", "WithProjection")  # of texts or pictures, as the model's file shows
# Of Pillow, as image processors number them; `clients/images/resizing.py` has these alone.
FILTERS: Mapping[int, str] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
# Of sentence-transformers from version 6 on, and before.
POOLING: Mapping[str, str] = dict.fromkeys(("mean", "mean_tokens"), "mean") | dict.fromkeys(
    ("cls", "cls_token"), "first"
)
OLD_ACTIVATION = "sbert_ce_default_activation_function"  # of a cross-encoder
MOST_SHADES = 2  # by which pixels differ: see `clients/images/resizing.py`
# In an environment of its own: it may need another version of transformers.
EXPORT = (
    "install optimum (`python -m venv optimum` and "
    '`optimum/bin/pip install "optimum-onnx[onnxruntime]"`), run '
    "`optimum/bin/optimum-cli export onnx --model {model} --task {task} exported`, then "
    "`--from exported`"
)


@dataclass(frozen=True)
class HubFolder:
    """A folder of the hub, and what its files say."""

    folder: Path
    config: Mapping[str, Any]  # of config.json; empty where it is another folder, or a file

    @property
    def architecture(self) -> str:
        """The name of its class in transformers."""
        return next(iter(self.config.get("architectures") or ()), "")

    @property
    def family(self) -> str:
        """The family that serves its architecture; empty where the model's file is to show it.

        Raises Trouble: none serves it.
        """
        for end, family in FAMILIES.items():
            if self.architecture.endswith(end):
                names = str(self.config.get("id2label", "")).lower()
                of_pairs = family == "text-classification" and "entail" in names
                return "zero-shot-classification" if of_pairs else family
        if self.modules or not self.architecture or self.architecture.endswith(VECTORS):
            return "embedding" if self.modules else ""
        raise Trouble(
            f"{self.folder / CONFIG} has the architecture {self.architecture}, which no family "
            f"serves; they serve {', '.join(f'…{end}' for end in (*FAMILIES, *VECTORS))}, and "
            "those of sentence-transformers; `--family tensors` serves any model"
        )

    @property
    def tokenizer(self) -> Path | None:
        """The folder of its tokenizer."""
        return self.folder if any((self.folder / one).is_file() for one in TOKENIZER) else None

    @cached_property
    def modules(self) -> dict[str, Path]:
        """The folders of what sentence-transformers runs one after another, by its kind."""
        listed = read_json(self.folder / "modules.json") or []
        return {one["type"].rpartition(".")[2]: self.folder / one["path"] for one in listed}

    def model(self, options: argparse.Namespace, scratch: Path) -> Path:
        """Return the model's file, or the folder `scratch` into which it was exported."""
        places = (self.folder / "onnx", self.folder)
        there = [file for place in places for file in sorted(place.glob("*.onnx"))]
        name = Path(options.onnx or MODEL).name
        wanted = [one for one in there if one.name == name]
        if wanted or (len(there) == 1 and not options.onnx):
            return [*wanted, *there][0]
        if there:
            names = ", ".join(one.name for one in there)
            raise Trouble(f"{self.folder} has no {name}, but {names}: write `--onnx NAME`")
        asked = str(options.source).removeprefix(PREFIX)
        task = TASKS.get(options.family, options.family)
        if not (command := shutil.which("optimum-cli")):
            how = EXPORT.format(model=shlex.quote(asked), task=task)
            raise Trouble(f"{self.folder} has no file of ONNX; {how}")
        with announce(f"exporting {asked} by optimum"):
            done = subprocess.run(
                [command, "export", "onnx", "--model", asked, "--task", task, scratch],
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
        if done.returncode:
            raise Trouble(f"optimum cannot export {asked}: {done.stderr.strip()[-300:]}")
        return scratch

    def complete(self, plan: FamilyPlan) -> FamilyPlan:
        """Return a plan with the lines that the files know."""
        several = self.config.get("problem_type") == "multi_label_classification"
        known: dict[str, Any] = {}
        if plan.family == "embedding" and self.modules:
            known = dict(self.pooling(plan))
        elif plan.family == "text-classification":
            of_pairs = self.config.get("sentence_transformers", self.config)
            activation = of_pairs.get("activation_fn", of_pairs.get(OLD_ACTIVATION, ""))
            known = {"softmax": False} if activation.endswith("Identity") else {}
            known |= {"multi_label": True} if several else {}
        elif not plan.tokens and (self.folder / PICTURES).is_file():
            whole = plan.family in ("segmentation", "picture-to-picture")
            known = dict(self.preparation("size" if whole else "crop"))
            known |= {"softmax": True} if plan.family == "classification" and not several else {}
        return plan.and_known(known)

    def pooling(self, plan: FamilyPlan) -> Iterator[tuple[str, Any]]:
        """Yield how sentence-transformers makes one vector of those of the tokens."""
        if 'pooling = "none"' not in plan.lines:
            said = read_json(self.modules.get("Pooling", self.folder) / CONFIG) or {}
            true = [name.partition("pooling_mode_")[2] for name, one in said.items() if one is True]
            ways = list(np.atleast_1d(said.get("pooling_mode", [one for one in true if one])))
            ways += {"Dense"} & self.modules.keys()
            if len(ways) != 1 or ways[0] not in POOLING:
                raise Trouble(
                    f"{self.folder} makes a text's vector by {' and '.join(ways) or 'no pooling'}, "
                    "which `embedding` does not: export all of it, as optimum does, or write a "
                    "class: `dispatcher new-client`"
                )
            yield "pooling", POOLING[ways[0]]
        if "Normalize" not in self.modules:
            yield "normalised", False
        said = read_json(self.folder / "sentence_bert_config.json") or {}
        if most := said.get("max_seq_length"):
            yield "max_tokens", most

    def preparation(self, key: str) -> Iterator[tuple[str, Any]]:
        """Yield how transformers' image processor prepares pictures; `key` is for their size."""
        made = from_transformers("AutoImageProcessor", self.folder)
        size, share = dict(made.size or {}), getattr(made, "crop_pct", None)
        short = size.get("shortest_edge")
        whole = [size.get(side) or short for side in ("height", "width")]
        if getattr(made, "do_center_crop", False):
            yield "resize", short or whole
            whole = [made.crop_size["height"], made.crop_size["width"]]
        elif share and short and short < 384:  # as transformers' ConvNextImageProcessor
            yield "resize", int(short / share)
        if all(whole):
            yield key, whole
        if way := FILTERS.get(made.resample):
            yield "interpolation", way
        if not made.do_rescale:
            yield "pixels", "0-255"
        if made.do_normalize:
            yield "mean", [float(one) for one in made.image_mean]
            yield "std", [float(one) for one in made.image_std]

    def compare(self, place: Path, name: str) -> str:
        """Say whether the written model gets for its example what transformers makes of it.

        Empty where transformers prepares it in no single step.
        """
        tap = RecordingSession(place / name / "1" / MODEL)
        models = RecordedModels(place, name, tap)
        (client,) = clients_in(place / name / FILE)
        payload: Any = examples_of(client(Environment(models, place)))[0]
        answer(client, payload, models)
        fed = tap.inputs[-1]
        texts = [payload[one] for one in TEXTS if one in payload]
        if texts and self.tokenizer and "candidate_labels" not in payload:
            tokens = from_transformers("AutoTokenizer", self.folder)
            made = tokens(*texts, return_tensors="np")
            same = all(
                np.array_equal(sent, made.get(key, np.zeros_like(sent)))
                for key, sent in fed.items()
            )
            off = "" if same else "it has other tokens"
        elif "img" in payload and (self.folder / PICTURES).is_file():
            processor = from_transformers("AutoImageProcessor", self.folder)
            with Image.open(BytesIO(base64.b64decode(payload["img"]))) as picture:
                made = processor(picture.convert("RGB"), return_tensors="np")["pixel_values"]
            (sent,) = fed.values()
            shade = processor.rescale_factor if processor.do_rescale else 1
            shade /= max(processor.image_std if processor.do_normalize else (1,))
            most = np.abs(sent - made).max() / shade if sent.shape == made.shape else np.inf
            off = "" if most <= MOST_SHADES else f"it differs by {most:.0f} of 255 shades"
        else:
            return ""
        return f"its example reaches the model as by transformers{off and ': no, '}{off}"


def from_transformers(kind: str, folder: Path) -> Any:
    """Return what a class of transformers reads from a folder."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        read = getattr(import_module("transformers"), kind).from_pretrained
        return read(folder, local_files_only=True, trust_remote_code=False)
    except (ImportError, OSError, ValueError) as error:
        raise Trouble(f"transformers cannot read {folder} ({kind}): {error}") from error


def read_json(file: Path) -> Any:
    """Return what a file has; `None` where there is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except ValueError as error:
        raise Trouble(f"{file} is no JSON: {error}") from error


def find_folder(asked: str, onnx: str) -> HubFolder:
    """Return the folder that `--from` names, fetched from the hub where it is there."""
    name = asked.removeprefix(PREFIX)
    folder = fetch(name, onnx) if name != asked and not Path(name).is_dir() else Path(name)
    config = read_json(folder / CONFIG)
    if name != asked and not isinstance(config, dict):
        raise Trouble(f"{folder} has no {CONFIG}, as models of transformers have")
    return HubFolder(folder, config if isinstance(config, dict) else {})


def fetch(name: str, onnx: str) -> Path:
    """Fetch a model of the hub into the cache of huggingface_hub; return its folder there."""
    model = Path(onnx or MODEL).name
    patterns = [*FILES, f"{model}*", f"*/{model}*"]  # with the weights beside it
    try:
        with announce(f"fetching {name}"):
            hub = import_module("huggingface_hub")
            return Path(hub.snapshot_download(name, allow_patterns=patterns))
    except (ImportError, OSError, ValueError) as error:  # huggingface_hub's are of these, too
        raise Trouble(
            f"{name} cannot be fetched from the hub: {' '.join(str(error).split()):.300}; check "
            "the name, the network and HF_ENDPOINT, or HF_TOKEN where a model asks for consent; or "
            "give a folder that was fetched elsewhere"
        ) from error
