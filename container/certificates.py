"""The files of TLS: checked, copied for NGINX, and taken up when they change."""

from __future__ import annotations

import _ssl
import shutil
import ssl
import time
from pathlib import Path

from clients.model_files.files import mark_files
from container.supervisor.log import ERROR, Say
from dispatcher.settings import SettingError, Settings

EXPECTED = {
    "TLS_CERTIFICATE": "a certificate in PEM that has not ended, with its chain behind it",
    "TLS_KEY": "the key of TLS_CERTIFICATE in PEM, without a passphrase",
    "TLS_CLIENT_CA": "certificates of authorities in PEM",
}


class Certificates:
    """Copies of the files that were good last, in a folder that others cannot read."""

    def __init__(self, settings: Settings, folder: Path, say: Say) -> None:
        """Copy the files; raise SettingError where one cannot be used."""
        self.folder, self.say = folder, say
        given = settings.tls_certificate, settings.tls_key or settings.tls_certificate
        files = zip(EXPECTED, (*given, settings.tls_client_ca), strict=True)
        self.files = {variable: path for variable, path in files if path}
        self.ok, self.ends = True, 0.0
        self._seen = self._taken = mark_files(self.files.values())
        self._take()

    def metrics(self) -> dict[str, float]:
        """Return what /metrics shows; nothing without TLS."""
        ends = {"dispatcher_tls_certificate_end_timestamp_seconds": self.ends}
        return {"dispatcher_tls_ok": float(self.ok), **ends} if self.files else {}

    def follow(self) -> bool:
        """Take up files that have changed, and not since the last call; return whether it did."""
        before, self._seen = self._seen, mark_files(self.files.values())
        if self._seen == self._taken or self._seen != before:
            return False
        self._taken, self.ok = self._seen, False
        try:
            self._take()
        except SettingError as error:
            self.say(f"{error}; the files before stay in force", ERROR)
        else:
            self.ok = True
            self.say(f"the files of TLS have changed; the certificate ends {time.ctime(self.ends)}")
        return self.ok

    def _take(self) -> None:
        context, ends = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), 0.0
        copies = {variable: self.folder / f"{variable}.new" for variable in self.files}
        for variable, path in self.files.items():
            try:
                shutil.copyfile(path, copy := copies[variable])
                if variable == "TLS_CERTIFICATE":
                    ends = read_end(copy)
                elif variable == "TLS_CLIENT_CA":
                    context.load_verify_locations(copy)
                elif b"ENCRYPTED" in copy.read_bytes():
                    raise ValueError("it needs a passphrase")  # noqa: TRY301
                else:
                    context.load_cert_chain(copies["TLS_CERTIFICATE"], copy, "")
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                wrong = f"{variable} is '{path}': {why}; expected: {EXPECTED[variable]}"
                raise SettingError(wrong) from error
        for copy in copies.values():
            copy.rename(copy.with_suffix(""))
        self.ends = ends


def read_end(certificate: Path) -> float:
    """Return when a certificate ends, in seconds since 1970."""
    # The standard library has no other reader.
    found = _ssl._test_decode_cert(certificate)  # type: ignore[attr-defined]  # noqa: SLF001
    if (ends := ssl.cert_time_to_seconds(found["notAfter"])) < time.time():
        raise ValueError(f"it has ended on {found['notAfter']}")
    return ends
