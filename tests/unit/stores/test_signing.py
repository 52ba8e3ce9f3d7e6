"""Signatures, checked against the services' published examples."""

from __future__ import annotations

import base64
import hashlib
import hmac

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from plumbline.stores.azure_signing import IdentityToken, shared_key
from plumbline.stores.s3_signing import signed_headers

ACCESS = {"access_key": "AKIAIOSFODNN7EXAMPLE", "secret_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}


def test_s3_signs_as_botocore_does() -> None:
    """Another implementation signs the same request, with a token, a payer and a key that has to be quoted."""
    host, path = "examplebucket.s3.amazonaws.com", "/some/a%20name%20%2B%20more.bin"
    for token, payer in ((None, ""), ("a/token==", "requester")):
        signer = S3SigV4Auth(Credentials(*ACCESS.values(), token), "s3", "eu-central-1")
        request = AWSRequest("GET", f"https://{host}{path}", headers={"x-amz-request-payer": payer} if payer else {})
        signer.add_auth(request)
        ours = signed_headers(
            host, path, **ACCESS, token=token, region="eu-central-1", stamp=request.context["timestamp"], payer=payer
        )
        theirs = {name.lower(): value for name, value in request.headers.items()}
        # botocore leaves the body of a GET over TLS unsigned; the signed empty body is right everywhere.
        assert ours["x-amz-content-sha256"] == hashlib.sha256(b"").hexdigest()
        assert ours["Authorization"].partition("Signature=")[0] == theirs["authorization"].partition("Signature=")[0]
        request.headers.replace_header("X-Amz-Content-SHA256", ours["x-amz-content-sha256"])
        canonical = signer.canonical_request(AWSRequest("GET", f"https://{host}{path}", headers=plain(ours)))
        message = signer.string_to_sign(request, canonical)
        assert ours["Authorization"].endswith(signer.signature(message, request))


def plain(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-amz")}


def test_the_signing_key_is_amazons_own_example() -> None:
    """AWS's documentation, "Examples of how to derive a signing key", with S3's service name."""
    headers = signed_headers("h", "/x", **ACCESS, token=None, region="us-east-1", stamp="20130524T000000Z")
    key = b"AWS4" + ACCESS["secret_key"].encode()
    for part in (b"20130524", b"us-east-1", b"s3", b"aws4_request"):
        key = hmac.digest(key, part, "sha256")
    empty = hashlib.sha256(b"").hexdigest()
    canonical = f"GET\n/x\n\nhost:h\nx-amz-content-sha256:{empty}\nx-amz-date:20130524T000000Z\n\n"
    canonical += f"host;x-amz-content-sha256;x-amz-date\n{empty}"
    message = "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n"
    message += hashlib.sha256(canonical.encode()).hexdigest()
    assert headers["Authorization"].endswith(hmac.digest(key, message.encode(), "sha256").hex())


def test_azure_signs_what_its_documentation_lists() -> None:
    key = base64.b64encode(b"a key").decode()
    headers = {"Range": "bytes=0-9", "If-Match": '"1"', "x-ms-version": "2021-12-02", "x-ms-date": "now", "Accept": "*"}
    message = 'GET\n\n\n\n\n\n\n\n"1"\n\n\nbytes=0-9\nx-ms-date:now\nx-ms-version:2021-12-02\n/acme/box/a%20b'
    signature = base64.b64encode(hmac.digest(b"a key", message.encode(), "sha256")).decode()
    assert shared_key("acme", key, "/box/a%20b", headers) == f"SharedKey acme:{signature}"


def test_an_identitys_token_is_asked_for_once_until_it_is_about_to_end() -> None:
    class Token:
        token, expires_on = "abc", 1000

    class Identity:
        asked = 0

        def get_token(self, scope: str) -> Token:
            assert scope == "https://storage.azure.com/.default"
            self.asked += 1
            return Token()

    identity, now = Identity(), [0.0]
    token = IdentityToken(identity, lambda: now[0])
    assert {token.header() for _ in range(3)} == {"Bearer abc"}
    assert identity.asked == 1
    now[0] = 701.0
    token.header()
    assert identity.asked == 2
