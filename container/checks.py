"""Checks of the files, folders and limits that the settings need, before anything is started."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

from clients.model_files.files import explain_denial
from container.supervisor.log import WARNING, Say
from dispatcher.auth.api_keys import BadKeys, load_keys
from dispatcher.settings import SettingError, Settings
from dispatcher.settings.remote_triton import tls_context

# By default 110 requests are answered or wait; NGINX has two open files for each, a web worker and
# Triton one.
FEW_FILES = 512


def check_files(settings: Settings) -> None:
    """Check the files of API keys and of certificates, and the folder of jobs.

    Raises SettingError: one cannot be used.
    """
    try:
        if settings.api_keys_file is not None:
            load_keys(settings.api_keys_file)
    except BadKeys as error:
        raise SettingError(f"API_KEYS_FILE is '{settings.api_keys_file}': {error}") from error
    try:
        if settings.triton_ca_file or settings.triton_certificate_file:
            tls_context(settings)
    except OSError as error:  # of which ssl.SSLError is one
        raise SettingError(
            f"TRITON_CA_FILE is '{settings.triton_ca_file}' and TRITON_CERTIFICATE_FILE is "
            f"'{settings.triton_certificate_file}': {error}; expected: files in PEM"
        ) from error
    if settings.jobs_dir is not None and settings.jobs_queue:
        check_jobs_folder(settings.jobs_dir)


def raise_file_limit(say: Say) -> None:
    """Raise the limit of open files, thus of connections, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        say(
            f"a process may have only {hard} open files (`ulimit -Hn`): below {FEW_FILES} NGINX "
            "may refuse callers, and Triton may stop answering",
            WARNING,
        )


def check_jobs_folder(folder: Path) -> None:
    """Raise SettingError where jobs could not be kept: web workers would end one by one."""
    place = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Those in it may be another user's, of an earlier container.
        for place in (folder, *(one for one in folder.iterdir() if one.is_dir())):
            with tempfile.TemporaryFile(dir=place):
                pass
    except OSError as error:
        denied = isinstance(error, PermissionError)
        why = explain_denial(place.absolute(), os.W_OK) if denied else ""
        where = f"'{place.name}' in it: " if place != folder else ""
        raise SettingError(
            f"JOBS_DIR is '{folder}': {where}{error.strerror}; expected: a folder that can be made "
            f"and written to, such as one of a volume{why}"
        ) from error


def has_classes(settings: Settings) -> bool:
    """Whether there may be classes, which need no model."""
    folders = settings.client_folders
    return any(
        one for folder in folders for kind in ("*.py", "*/__init__.py") for one in folder.glob(kind)
    )
