"""Reader of training records on disk: `load_record(folder)`."""

from plumbline.records.loaded_record import LoadedRecord as LoadedRecord
from plumbline.records.loaded_record import limit_memory as limit_memory
from plumbline.records.loaded_record import load_record as load_record
