"""Answers that no store gives: each is that store's failure, and the other platform's record is collected."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import RetryingStore, RetryPolicy, Store, open_store, presign, protocol
from plumbline.night.central import CentralStore, find_record, gather, publish_record
from plumbline.schema.errors import PlumblineError, UnavailableError
from tests.contract.conftest import give_aws
from tests.contract.records import make_record, orders_of
from tests.http_server import Handler, serving
from tests.memory_store import MemoryStore

QUICK = RetryPolicy(attempts=2, sleep=lambda _: None)
PAGE = b"<html><body>Please sign in</body></html>"
XHTML = b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body>Sign in</body></html>'
RECORD = b'{"record_id": "record-a"}'
_TOKENS = itertools.count()

Answer = tuple[int, Mapping[str, str], bytes]


def answer(body: bytes = b"", status: int = 200, **headers: str) -> Answer:
    return status, {"ETag": '"1"', **{name.replace("_", "-"): value for name, value in headers.items()}}, body


def without(name: str, given: Answer) -> Answer:
    return given[0], {key: value for key, value in given[1].items() if key != name}, given[2]


def entries(content: str, *, more: str = "<IsTruncated>false</IsTruncated>") -> Answer:
    key = "<Key>records/record-a/rows.parquet</Key>"
    body = f"<ListBucketResult><Contents>{content.replace('KEY', key)}</Contents>{more}</ListBucketResult>"
    return answer(body.encode(), content_type="application/xml")


BEGUN = answer(b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
GOOD = "KEY<Size>3</Size><ETag>x</ETag>"
MORE = "<IsTruncated>true</IsTruncated>"
READS: dict[str, Answer] = {
    "a negative length": answer(RECORD, content_length="-5"),
    "a length that is no number": answer(RECORD, content_length="many"),
    "no etag": without("ETag", answer(RECORD)),
    "an empty etag": (200, {"ETag": ""}, RECORD),
    "a sign-in page": without("ETag", answer(PAGE, content_type="text/html; charset=utf-8")),
    "a sign-in page with an etag": answer(PAGE, content_type="Text/HTML"),
    "a redirection to a sign-in page": answer(PAGE, 302, location="https://sign.in.example/"),
    "no content": answer(status=204),
    "a part that was not asked for": answer(RECORD, 206, content_range="bytes 3-27/99"),
}
LISTS: dict[str, Callable[[], Answer]] = {
    "an entry without size": lambda: entries("KEY<ETag>x</ETag>"),
    "an entry without etag": lambda: entries("KEY<Size>3</Size>"),
    "an entry without key": lambda: entries("<Size>3</Size><ETag>x</ETag>"),
    "an entry of a negative size": lambda: entries("KEY<Size>-3</Size><ETag>x</ETag>"),
    "an entry of many bytes": lambda: entries("KEY<Size>many</Size><ETag>x</ETag>"),
    "an entry that was not asked for": lambda: entries("<Key>other</Key><Size>3</Size><ETag>x</ETag>"),
    "more without a token": lambda: entries(GOOD, more=MORE),
    "the same token for ever": lambda: entries(
        GOOD, more=f"{MORE}<NextContinuationToken>x</NextContinuationToken>"
    ),
    "a list without end": lambda: entries(
        GOOD, more=f"{MORE}<NextContinuationToken>{next(_TOKENS)}</NextContinuationToken>"
    ),
    "a list that does not say whether it ends": lambda: entries(GOOD, more=""),
    "a sign-in page": lambda: answer(PAGE, content_type="text/html"),
    "a sign-in page in XML": lambda: answer(XHTML, content_type="text/html"),
    "an empty page": answer,
}  # fmt: skip
WRITES: dict[str, dict[str, Answer]] = {
    "PUT without etag": {"PUT": without("ETag", answer())},
    "PUT answered by a page": {"PUT": without("ETag", answer(PAGE, content_type="text/html"))},
    "HEAD without etag": {"HEAD": without("ETag", answer())},
    "HEAD of a negative length": {"HEAD": answer(content_length="-5")},
    "multipart without id": {"POST uploads": answer(b"<InitiateMultipartUploadResult/>")},
    "multipart without etag of a part": {
        "POST uploads": BEGUN,
        "PUT": without("ETag", answer()),
    },
    "multipart without etag": {
        "POST uploads": BEGUN,
        "PUT": answer(),
        "POST uploadId": answer(b"<CompleteMultipartUploadResult/>"),
    },
}  # fmt: skip


def server(find: Callable[[str, str], Answer | None]) -> type[Handler]:
    class Strange(Handler):
        def answer(self) -> None:
            self.body()
            missing = (404, {"Content-Type": "application/xml"}, b"<Error><Code>NoSuchKey</Code></Error>")
            status, headers, body = find(self.command, self.path) or missing
            with suppress(OSError):
                self.reply(status, b"" if self.command == "HEAD" else body, headers)
            self.close_connection = True

    return Strange


CASES = [
    *(pytest.param(lambda path, given=given: None if "list-type" in path else given, id=f"GET {name}")
      for name, given in READS.items()),
    *(pytest.param(lambda path, given=given: given() if "list-type" in path else None, id=f"LIST {name}")
      for name, given in LISTS.items()),
]  # fmt: skip


@pytest.mark.parametrize("find", CASES)
def test_a_strange_answer_is_a_failure_of_its_own_store(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path, find: Callable[[str], Answer | None]
) -> None:
    clean_environment.setattr(protocol, "_MOST_PAGES", 20, raising=False)
    good = MemoryStore()
    publish_record(good, make_record(tmp_path / "b", "record-b", "b"))
    with serving(server(lambda method, path: find(path) if method == "GET" else None)) as url:
        give_aws(clean_environment, url)
        strange = open_store("s3://bucket", policy=QUICK)
        orders = orders_of({"a": "record-a", "b": "record-b"})
        central = CentralStore(open_store(f"file://{tmp_path}/central"))
        result = gather({"a": strange, "b": good}, orders, central, tmp_path / "into")
        assert {name: entry.state for name, entry in result.items()} == {"a": "unreachable", "b": "complete"}
        with suppress(PlumblineError):
            find_record(strange, orders["a"])


@pytest.mark.parametrize("given", WRITES.values(), ids=WRITES)
def test_a_write_without_a_known_end_is_an_error(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, Answer]
) -> None:
    def find(method: str, path: str) -> Answer | None:
        return next((value for name, value in given.items() if method == name.split()[0]
                     and name.partition(" ")[2] in path), None)  # fmt: skip

    (tmp_path / "large").write_bytes(bytes(2 << 20))
    with serving(server(find)) as url:
        give_aws(clean_environment, url)
        store: Any = open_store("s3://bucket", policy=QUICK)
        store.inner.multipart_bytes = 1 << 20
        with pytest.raises(UnavailableError):
            store.stat("key") if "HEAD" in given else store.create(
                "key", tmp_path / "large" if "POST uploads" in given else b"small"
            )


METHODS: dict[str, Callable[[Store], object]] = {
    "open": lambda store: store.open("key").__enter__(),
    "stat": lambda store: store.stat("key"),
    "list": lambda store: list(store.list()),
    "create": lambda store: store.create("key", b""),
    "swap": lambda store: store.swap("key", b"", if_match=None),
    "delete": lambda store: store.delete("key"),
    "presign": lambda store: presign(store, "key"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*(name for name in vars(Store) if not name.startswith("_")), "presign"])
def test_whatever_a_backend_raises_is_its_stores_failure(name: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError(name)

    backend = MemoryStore()
    setattr(backend, name, fail)
    with pytest.raises(UnavailableError, match="no store gives: KeyError"):
        METHODS[name](RetryingStore(backend, QUICK))
