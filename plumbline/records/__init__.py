"""Reader of records on disk: `load_record(folder)`."""

from __future__ import annotations

from plumbline.records.loaded_record import LoadedRecord, load_record

__all__ = ["LoadedRecord", "load_record"]
