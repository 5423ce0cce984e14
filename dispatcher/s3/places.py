"""Which objects requests may name, and how: by `s3_key`, `s3_uri`, or `img_url`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clients.errors import BadPayload
from clients.tensors.quoting import brief
from dispatcher.errors import ObjectForbidden
from dispatcher.s3.client import Location
from dispatcher.s3.web_pictures import URL_FIELD, PictureUrl, read_url
from dispatcher.settings import Settings

KEY_FIELD: Final = "s3_key"
URI_FIELD: Final = "s3_uri"
FIELDS: Final = frozenset({KEY_FIELD, URI_FIELD})

MAX_KEY: Final = 1024  # bytes in UTF-8; S3's own limit
DEFAULT_RESULTS: Final = "results/"

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
URI_HINT: Final = "expected s3://BUCKET/KEY"
KEY_HINT: Final = "expected the object's key, such as images/cat.jpg"


class Places:
    """The buckets and prefixes of the settings."""

    def __init__(self, settings: Settings) -> None:
        self.bucket, self.hosts = settings.s3_bucket, settings.image_url_hosts
        self.results = settings.s3_results_prefix or DEFAULT_RESULTS
        own = (self.bucket,) if self.bucket else ()
        self.inputs = settings.s3_allowed_inputs or own
        results = tuple(f"{one}/{self.results}" for one in own)
        self.outputs = settings.s3_allowed_outputs or results
        if settings.s3_results_prefix:
            self.outputs += results
        # An author's class may have fields of the names that mean nothing here.
        meant = ((KEY_FIELD, self.inputs), (URI_FIELD, self.inputs), (URL_FIELD, self.hosts))
        self.fields = frozenset(name for name, places in meant if places)

    def input(self, fields: Mapping[str, Any]) -> Location | PictureUrl:
        """Return the object that a payload names.

        Raises BadPayload: it names none, or not as expected.
        Raises ObjectForbidden: the settings do not allow it.
        """
        if URL_FIELD in self.fields & fields.keys():
            if others := FIELDS & fields.keys():
                raise BadPayload(
                    f"both {URL_FIELD} and {min(others)} came", hint="send one of them"
                )
            return read_url(fields[URL_FIELD], self.hosts)
        return check_place(self.read(fields), self.inputs, "read", "S3_ALLOWED_INPUTS")

    def output(self, fields: Mapping[str, Any]) -> Location:
        """Return the object that `output` names; the errors are those of `input`."""
        if unknown := [name for name in fields if name not in FIELDS]:
            raise BadPayload(
                f"`output` has an unknown field {brief(unknown[0])}",
                hint=f"it may have {KEY_FIELD} or {URI_FIELD}, or nothing for the default name",
            )
        return check_place(self.read(fields), self.outputs, "written", "S3_ALLOWED_OUTPUTS")

    def result(self, asked: Location, model: str, version: str, variant: object) -> Location:
        """Return where the answer of a model to an object goes by default.

        No two questions have one place: neither a model's name nor a bucket's has a slash, and
        what else the answer depends on (`variant`, as JSON has it) is in it as a digest.

        Raises BadPayload: there is no bucket for it, or its key would be too long.
        Raises ObjectForbidden: the settings do not allow it.
        """
        version = version or "latest"
        if variant is not None:
            text = json.dumps(variant, sort_keys=True)
            version += f"-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        place = f"{self.results}{model}/{version}/{asked.bucket}/{asked.key}.json"
        location = Location(self.own_bucket(), check_key(place))
        return check_place(location, self.outputs, "written", "S3_ALLOWED_OUTPUTS")

    def read(self, fields: Mapping[str, Any]) -> Location:
        if fields.keys() >= FIELDS:
            raise BadPayload(f"both {KEY_FIELD} and {URI_FIELD} came", hint="send one of them")
        if KEY_FIELD in fields:
            return Location(self.own_bucket(), check_key(fields[KEY_FIELD]))
        uri = fields.get(URI_FIELD)
        location = Location.of(uri)
        if not location or not location.key:
            raise BadPayload(f"`{URI_FIELD}` is {brief(uri)}", hint=URI_HINT)
        check_key(location.key)
        return location

    def own_bucket(self) -> str:
        if not self.bucket:
            raise BadPayload(
                "there is no bucket for a key alone",
                hint=f"send {URI_FIELD}, s3://BUCKET/KEY, or set S3_BUCKET_NAME",
            )
        return self.bucket


def check_key(key: Any) -> str:
    """Return a key that may be sent to S3."""
    if not isinstance(key, str) or not key:
        raise BadPayload(f"`{KEY_FIELD}` is {brief(key)}", hint=KEY_HINT)
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise BadPayload(
            f"the key {brief(key)} has a part that is . or ..", hint=f"{KEY_HINT}, without .."
        )
    try:
        length = len(key.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        length = 0
    if not 0 < length <= MAX_KEY or CONTROL.search(key):
        raise BadPayload(
            f"the key {brief(key)} has more than {MAX_KEY} bytes, or characters that no key may "
            "have",
            hint=f"{KEY_HINT}, in UTF-8 without control characters",
        )
    return key


def check_place(location: Location, places: Sequence[str], what: str, setting: str) -> Location:
    """Return a location that is in one of the places, each `BUCKET` or `BUCKET/PREFIX`."""
    for place in places:
        bucket, _, prefix = place.partition("/")
        if location.bucket == bucket and location.key.startswith(prefix):
            return location
    raise ObjectForbidden(
        f"{brief(str(location))} may not be {what} here",
        hint=f"{setting} has {', '.join(places) or 'nothing'}",
    )
