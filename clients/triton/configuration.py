"""Triton's model configuration, judged by protobuf's own reader as in Triton.

`clients/model_files/config_text.py` reads the same files without protobuf, for processes in which
protobuf and gRPC would take too much memory and time, and says where in the text a field is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from clients.errors import ModelFailed
from clients.model_files.config_text import NotProtobufText, read
from clients.triton.server import Signature, TensorSpec

# Protobuf's parser has one error class; its text alone says which name it does not know.
NO_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
FIX = (
    "write `name: value` in each line, with names and values of Triton's model_config.proto, texts "
    "in quotation marks, numbers without; close every bracket; a comment begins with #"
)

DATATYPES = {
    name: "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
    for name in model_config_pb2.DataType.keys()  # noqa: SIM118  it is no dictionary
}
IDLE_US = 1_000_000  # Triton's own default


def signature_of(config: model_config_pb2.ModelConfig) -> Signature:
    """Return a model's inputs and outputs, from Triton's configuration of it."""
    batch = (-1,) if config.max_batch_size else ()
    sides = (config.input, config.output)
    inputs, outputs = (
        tuple(
            TensorSpec(
                one.name,
                DATATYPES[model_config_pb2.DataType.Name(one.data_type)],
                (*batch, *one.dims),
                optional=getattr(one, "optional", False),
            )
            for one in side
        )
        for side in sides
    )
    decoupled = config.model_transaction_policy.decoupled
    ensemble = config.HasField("ensemble_scheduling")
    sequence = config.HasField("sequence_batching")
    idle_us = config.sequence_batching.max_sequence_idle_microseconds or IDLE_US
    return Signature(
        config.max_batch_size,
        inputs,
        outputs,
        decoupled,
        ensemble,
        sequence,
        config.backend,
        shares_runs=config.max_batch_size > 1 and config.HasField("dynamic_batching"),
        # A sequence batcher keeps no answers.
        cached=config.response_cache.enable and not sequence,
        correlation=correlation_type(config),
        idle_s=idle_us / 1e6 if sequence else 0.0,
    )


def correlation_type(config: model_config_pb2.ModelConfig) -> str:
    """Return the type in which a model takes the id of a sequence; empty where it takes none."""
    for tensor in config.sequence_batching.control_input:
        for control in tensor.control:
            if control.kind == control.CONTROL_SEQUENCE_CORRID:
                return DATATYPES[model_config_pb2.DataType.Name(control.data_type)]
    return ""


def rename_config(text: str, name: str) -> str:
    """Return a `config.pbtxt` for the same model under another name."""
    if fault := config_fault(text):
        line, reason, fix = fault
        raise ModelFailed(f"config.pbtxt:{line} cannot be read: {reason}", hint=fix)
    # The text is kept if possible: protobuf does not write a `max_batch_size` of 0.
    own = f'name: "{name}"'
    try:
        names = read(text).all("name")
    except NotProtobufText:
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        config.name = name
        return str(text_format.MessageToString(config))
    if not names:
        return f"{own}\n{text}"
    return text[: names[0].start] + own + text[names[0].end :]


def config_fault(text: str) -> tuple[int, str, str] | None:
    """Return line, reason and fix of the first mistake in a `config.pbtxt`, if any."""
    try:
        text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        # Its text has place and reason in one: "3:1 : Message type …".
        reason = str(error).partition(" : ")[2] or str(error)
        line, fix = error.GetLine() or 1, FIX
        if unknown := NO_FIELD.search(reason):
            pool = model_config_pb2.ModelConfig.DESCRIPTOR.file.pool
            known = [field.name for field in pool.FindMessageTypeByName(unknown[1]).fields]
            if near := difflib.get_close_matches(unknown[2], known, 1, 0.69):
                fix = f"write `{near[0]}` for `{unknown[2]}`"
        return line, reason.rstrip("."), fix
    return None


def config_dictionary(text: str) -> dict[str, Any]:
    """Return a `config.pbtxt` as the dictionary that Triton gives its Python backends."""
    return as_dictionary(text_format.Parse(text, model_config_pb2.ModelConfig()))


def as_dictionary(config: model_config_pb2.ModelConfig) -> dict[str, Any]:
    """Return a model's configuration as a dictionary with protobuf's own names of fields."""
    return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))


def config_signature(config: Mapping[str, Any]) -> Signature:
    """Return a model's inputs and outputs, from such a dictionary."""
    return signature_of(json_format.ParseDict(dict(config), model_config_pb2.ModelConfig()))
