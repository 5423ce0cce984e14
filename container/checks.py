"""Checks of the files that settings name, before anything is started."""

from __future__ import annotations

from dispatcher.auth.api_keys import BadKeys, load_keys
from dispatcher.settings import SettingError, Settings
from dispatcher.settings.remote_triton import tls_context


def check_files(settings: Settings) -> None:
    """Check the files of API keys and of certificates.

    Raises:
        SettingError: one cannot be used.

    """
    check_keys(settings)
    check_certificates(settings)


def check_keys(settings: Settings) -> None:
    """Raise SettingError where the file of API keys cannot be used."""
    try:
        if settings.api_keys_file is not None:
            load_keys(settings.api_keys_file)
    except BadKeys as error:
        raise SettingError(f"API_KEYS_FILE is '{settings.api_keys_file}': {error}") from error


def check_certificates(settings: Settings) -> None:
    """Raise SettingError where the files for TLS to a Triton elsewhere cannot be used."""
    try:
        if settings.triton_ca_file or settings.triton_certificate_file:
            tls_context(settings)
    except OSError as error:  # of which ssl.SSLError is one
        raise SettingError(
            f"TRITON_CA_FILE is '{settings.triton_ca_file}' and TRITON_CERTIFICATE_FILE is "
            f"'{settings.triton_certificate_file}': {error}; expected: files in PEM"
        ) from error
