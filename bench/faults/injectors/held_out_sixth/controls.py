"""Sixth held-out set: settings, and releases of libraries, that must not be flagged."""

from __future__ import annotations

import os
import platform

import torch

from bench.faults.injectors.patching import wrap_method
from plumbline.train import fingerprint


def _packages(**releases: str) -> None:
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | releases)


# Releases that compute the same.


def releases_of_the_data_libraries() -> None:
    """New releases of datasets, pyarrow and fsspec read the same rows."""
    _packages(datasets="99.0.0", pyarrow="99.0.0", fsspec="2099.1.0")


def release_of_tokenizers() -> None:
    """A new release of tokenizers gives the same tokens."""
    _packages(tokenizers="99.0.0")


def release_of_the_operating_system() -> None:
    """A platform runs a new release of its operating system."""
    platform.platform = lambda *_args, **_rest: "Linux-99.0-x86_64-with-glibc2.99"


def container_image_renamed() -> None:
    """A platform starts the same stack from a container image with a different digest."""
    os.environ["PLUMBLINE_IMAGE"] = "registry.example/plumbline@sha256:" + "0" * 64


# Settings.


def memory_not_filled() -> None:
    """A platform switches off torch's filling of uninitialised memory."""
    torch.utils.deterministic.fill_uninitialized_memory = False


def operations_in_three_threads() -> None:
    """A platform lets torch run three operations at a time."""
    torch.set_num_interop_threads(3)
