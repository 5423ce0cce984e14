"""Errors while a model is made; their texts are shown to the user as they are.

WeightsError
├── ManifestError           manifest.toml cannot be used: the only one that stops the whole run
├── SourceError             a source did not give its files
│   ├── SourceUnreachable   it could not be reached, or answered with an error
│   └── ChecksumMismatch    it answered with other bytes than the ones that were pinned
└── ConversionError         its files hold something that the converter has no mapping for
"""


class WeightsError(Exception):
    """A model could not be made."""


class ManifestError(WeightsError):
    """The manifest is not valid; the message names the model and the key."""


class SourceError(WeightsError):
    """A source did not give the files it should."""


class SourceUnreachable(SourceError):
    """The registry or hub was unreachable, refused, or exceeded the deadline."""


class ChecksumMismatch(SourceError):
    """What was fetched is not what the manifest pins; nothing of it is used."""


class ConversionError(WeightsError):
    """A layer, operation or weight has no mapping; the message names it."""
