"""What a request says outside of its body: the model, its version, parameters.

Which model is asked, one precedence for every route: the path, then the body's `modelname`, then
the custom attributes, the target model, the query, and last the default of the settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from werkzeug.datastructures import Headers

from dispatcher.budget import TIMEOUT, Budget, read_timeout
from dispatcher.errors import BadHeader

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
LONGEST_ATTRIBUTES = 1024  # the platform's own limit, in visible ASCII
MODEL_NAMES = ("modelname", "model_name")
RESERVED = (*MODEL_NAMES, "modelversion", TIMEOUT)


@dataclass(frozen=True)
class Envelope:
    """The parts of a request around its body.

    Args:
        path_model: the model in the path.
        other_model: the model that the headers, the query or the settings name.
        modelversion: the version that the attributes or the query name.
        texts: parameters from the attributes and the query, unchecked; attributes come first.
        attributes: the custom attributes.
        request_id: what the log and the answer call the request.
        timeout: seconds that the caller gives it.
        budget: the time for it.
        accept: the types that the caller takes.

    """

    path_model: str = ""
    other_model: str = ""
    modelversion: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    timeout: float = math.inf
    budget: Budget = Budget(math.inf)
    accept: str = ""

    def modelname(self, in_body: str | None) -> str:
        """Return the model that is asked; nothing where nobody names one."""
        return self.path_model or in_body or self.other_model


def read_envelope(
    headers: Headers,
    query: Mapping[str, str],
    *,
    path_model: str = "",
    default_model: str = "",
    request_id: str = "",
) -> Envelope:
    """Read headers and query.

    Raises:
        BadHeader: the custom attributes are not what the platform allows.
        BadParameter: the time that the caller gives is none.

    """
    attributes = read_attributes(headers.get(ATTRIBUTES, ""))
    target = headers.get(TARGET_MODEL, "").removesuffix(".tar.gz").strip("/")
    named = next((attributes[name] for name in MODEL_NAMES if attributes.get(name)), "")
    return Envelope(
        path_model=path_model,
        other_model=named or target or query.get("modelname", "") or default_model,
        modelversion=attributes.get("modelversion", "") or query.get("modelversion", ""),
        texts={
            name: value for name, value in {**query, **attributes}.items() if name not in RESERVED
        },
        attributes=attributes,
        request_id=request_id,
        timeout=read_timeout(attributes.get(TIMEOUT, "") or query.get(TIMEOUT, "")),
        accept=headers.get("Accept", ""),
    )


def read_attributes(header: str) -> dict[str, str]:
    """Return the pairs of `name=value`, separated by `;` or `,`; other words are passed over.

    Raises:
        BadHeader: it is longer than the platform allows, or has other characters.

    """
    if not header:
        return {}
    if len(header) > LONGEST_ATTRIBUTES or not re.fullmatch(r"[\x20-\x7e]*", header):
        raise BadHeader(
            f"{ATTRIBUTES} has {len(header)} characters, or some that are not visible ASCII",
            hint=f"expected at most {LONGEST_ATTRIBUTES} visible ASCII characters",
        )
    pairs = (part.partition("=") for part in re.split("[;,]", header))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def written_attributes(attributes: Mapping[str, str]) -> str:
    """Return attributes as a header's value, with nothing in it that could end the header."""
    text = ";".join(f"{name}={value}" for name, value in attributes.items())
    return re.sub(r"[^\x20-\x7e]", "?", text)[:LONGEST_ATTRIBUTES]
