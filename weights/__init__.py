"""Puts a `model.onnx` beside every configuration of the model repository.

Run as `python -m weights`. `manifest.toml` says where each model's weights come from, `sources.py`
what a source is, `install.py` when a file is kept and how one is put in place.
"""
