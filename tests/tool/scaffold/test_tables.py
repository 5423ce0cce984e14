"""Models of tables: what is written for them, and that they answer as their libraries do."""

from __future__ import annotations

import csv
import io
import itertools
import json
import subprocess
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from clients.testing import OnnxModels, answer, clients_in
from tests.conftest import running
from tests.support.models.onnx_models import FLOAT, INT64, save
from tests.support.packages import python_with
from tests.tool.scaffold.conftest import Write
from tool.__main__ import main

PACKAGES = (
    "scikit-learn==1.5.2", "pandas==2.2.3", "skl2onnx==1.17.0", "onnxmltools==1.12.0",
    "xgboost-cpu==2.1.3", "lightgbm==4.5.0", "catboost==1.2.7", "onnx==1.16.2", "numpy==1.26.4",
    "setuptools==75.8.0", "protobuf==4.25.8",
)  # fmt: skip
MINE = Path("mine")


def limit(file: Path, *rows: Any) -> Path:
    """x [n, 2] -> class "1" where the first is above a million, and both probabilities"""
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "probabilities"], domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[1e6, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 0], class_weights=[-1.0, 1.0],
        classlabels_int64s=[0, 1], post_transform="LOGISTIC",
    )  # fmt: skip
    outputs = [("label", INT64, [*rows]), ("probabilities", FLOAT, ["n", 2])]
    return save(file, [node], [("x", FLOAT, ["n", 2])], outputs)


@pytest.mark.parametrize("rows", ["n", 1])
def test_trees_are_a_table_whose_rows_share_runs(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: Any
) -> None:
    """Made-up rows are of one class; onnxmltools says of LightGBM's labels that there is one."""
    said = write(limit(tmp_path / "a.onnx", rows))
    assert "family: table, because `x` FP32 [-1, 2] takes rows" in said
    assert "its operators are those of scikit-learn and of trees" in said
    assert tomllib.loads((MINE / "new" / "dispatch.toml").read_text()) == {
        "family": "table", "columns": ["f0", "f1"], "example": {"f0": 1, "f1": 1},
    }  # fmt: skip
    assert (MINE / "new" / "labels.txt").read_text() == "0\n1\n"
    config = (MINE / "new" / "config.pbtxt").read_text()
    assert "max_batch_size: 1024" in config
    assert "dynamic_batching { }" in config
    assert main(["check", "mine"]) == 0
    capsys.readouterr()
    (client,) = clients_in(MINE / "new" / "dispatch.toml")
    found = answer(client, {"f0": 2e6, "f1": None}, OnnxModels(MINE))
    assert (found["label"], found["probabilities"]["1"]) == (
        1,
        pytest.approx(0.7310586),
    )  # 1/(1+1/e)


def test_a_network_of_two_axes_is_no_table_without_its_author(write: Write, tmp_path: Path) -> None:
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"])]
    file = save(tmp_path / "a.onnx", nodes, [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 2])])
    assert "`--family table` suits if `x` FP32 [-1, 2] takes rows" in write(file)


TRAIN = """
import json, sys
from pathlib import Path

import catboost, lightgbm, numpy as np, onnxmltools, pandas as pd, xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as Floats
from skl2onnx import convert_sklearn, to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingRegressor, IsolationForest, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

out, n, numbers = Path(sys.argv[1]), 600, np.random.default_rng(0)
names = ["age", "income", "debt"]
columns = numbers.uniform(18, 80, n), numbers.lognormal(10, 0.5, n), numbers.lognormal(8, 1, n)
city, job = numbers.choice(["Oslo", "Rome"], n), numbers.choice(["clerk", "driver"], n)
z = 0.03 * (columns[0] - 45) + 1.2 * (np.log(columns[1]) - 10) + (city == "Oslo")
y = np.digitize(z + 0.4 * numbers.standard_normal(n), [-0.5, 0.8])
x = np.stack(columns, 1).astype(np.float32)
gaps = np.where(numbers.random(x.shape) < 0.15, np.nan, x).astype(np.float32)
frame = pd.DataFrame({**dict(zip(names, gaps.T)), "city": city, "job": job})
asked, shown = frame.iloc[:40], {}


def note(name, onnx, rows, **answers):
    (out / f"{name}.onnx").write_bytes(onnx)
    rows = [[None if v != v else v for v in row] for row in rows]
    answers = {k: np.asarray(v).tolist() for k, v in answers.items()}
    shown[name] = {"rows": rows, "answers": answers}


def both(model, rows):
    return {"label": np.ravel(model.predict(rows)), "probabilities": model.predict_proba(rows)}


steps = [("n", make_pipeline(SimpleImputer(), StandardScaler()), names)]
steps += [("c", OneHotEncoder(handle_unknown="ignore"), ["city", "job"])]
model = make_pipeline(ColumnTransformer(steps), LogisticRegression(max_iter=500))
model.fit(frame, np.array(["low", "mid", "high"])[y])
types = [(one, FloatTensorType([None, 1])) for one in names]
types += [(one, StringTensorType([None, 1])) for one in ("city", "job")]
made = convert_sklearn(model, initial_types=types).SerializeToString()
note("pipeline", made, asked.values.tolist(), **both(model, asked))
some, full = gaps[:40], x[:40]
model = RandomForestClassifier(20, max_depth=6, random_state=0).fit(x, y)
made = to_onnx(model, x[:1], options={"zipmap": False}).SerializeToString()
note("forest", made, full.tolist(), **both(model, full))
model = GradientBoostingRegressor(n_estimators=30, random_state=0).fit(x, z)
note("price", to_onnx(model, x[:1]).SerializeToString(), full.tolist(), number=model.predict(full))
model = IsolationForest(n_estimators=30, random_state=0).fit(x)
made = to_onnx(model, x[:1], target_opset={"": 15, "ai.onnx.ml": 3}).SerializeToString()
note("odd", made, full.tolist(), label=model.predict(full), scores=model.decision_function(full))
taken = {"initial_types": [("input", Floats([None, 3]))], "target_opset": 15}
model = xgboost.XGBClassifier(n_estimators=20, max_depth=4, random_state=0).fit(gaps, y)
made = onnxmltools.convert_xgboost(model, **taken).SerializeToString()
note("xgboost", made, some.tolist(), **both(model, some))
model = lightgbm.LGBMClassifier(n_estimators=20, random_state=0, verbose=-1).fit(gaps, y)
made = onnxmltools.convert_lightgbm(model, **taken).SerializeToString()
note("lightgbm", made, some.tolist(), **both(model, some))
model = catboost.CatBoostClassifier(iterations=20, depth=4, verbose=0, allow_writing_files=False)
model.fit(gaps, y).save_model(str(out / "catboost.onnx"), format="onnx")
made = (out / "catboost.onnx").read_bytes()
note("catboost", made, some.tolist(), **both(model, some))
texts = ["a great film", "a bad film", "great acting", "bad script", "Größe", "ÄRGERLICH"] * 20
model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["good", "bad"] * 60)
words = {TfidfVectorizer: {"tokenexp": r"[\\pL\\pN_]{2,}"}}
made = convert_sklearn(model, initial_types=[("text", StringTensorType([None, 1]))], options=words)
rows = ["a great film", "bad, bad acting", "ÄRGERLICH", 'no "known" word,\\nor few']
note("words", made.SerializeToString(), [[one] for one in rows], **both(model, rows))
(out / "shown.json").write_text(json.dumps(shown))
"""


def as_csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([["" if one is None else one for one in row] for row in rows])
    return out.getvalue()


def flat(answer: Any) -> list[Any]:
    """Return the texts and numbers of an answer to a row."""
    if not isinstance(answer, dict | list | tuple):
        return [answer]
    parts = answer.values() if isinstance(answer, dict) else answer
    return [one for part in parts for one in flat(part)]


def same(came: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether cells are equal, numbers to a hundred thousandth."""
    pairs = zip(came, expected, strict=True)
    return all(
        str(one) == other
        if isinstance(other, str)
        else float(one) == pytest.approx(other, abs=1e-5)
        for one, other in pairs
    )


@pytest.mark.slow
def test_tables_are_served_as_their_libraries_answer(tmp_path: Path) -> None:
    """Of scikit-learn, XGBoost, LightGBM and CatBoost, with missing values, alone and together."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [python_with(*PACKAGES), tmp_path / "train.py", tmp_path]
    subprocess.run(command, check=True, timeout=1800, capture_output=True)
    shown = json.loads((tmp_path / "shown.json").read_text())
    mine = tmp_path / "mine"
    for name in shown:
        given = ["new-model", name, "--from", str(tmp_path / f"{name}.onnx"), "--into", str(mine)]
        assert main(given) == 0
    settings = {"SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "text/csv", "MODEL_DIR_USE": "instead"}
    with running(tmp_path, MODEL_DIR=str(mine), **settings) as endpoint:

        def post(name: str, body: str, said: str = "text/csv", accept: str = "*/*") -> str:
            headers = {"Content-Type": said, "Accept": accept}
            response = endpoint.call(f"/infer/{name}", body.encode(), headers=headers)
            assert response.status == 200, response.body
            return response.body.decode()

        for name, one in shown.items():
            rows = one["rows"]
            expected = [*map(flat, zip(*one["answers"].values(), strict=True))]
            body = json.dumps({"instances": rows})
            answers = json.loads(post(name, body, "application/json", "application/json"))["result"]
            # Batch transform by lines, several in a request and one, answered by lines.
            together = post(name, as_csv(rows))
            with ThreadPoolExecutor(8) as pool:
                alone = "".join(pool.map(partial(post, name), map(as_csv, ([row] for row in rows))))
            lines = ([*csv.reader(io.StringIO(text))] for text in (together, alone))
            for came in (map(flat, answers), *lines):
                assert all(itertools.starmap(same, zip(came, expected, strict=True))), name
