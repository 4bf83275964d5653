"""A stand-in for an S3-compatible service: what an S3 client of this project asks for, over real HTTP, in memory.

Signatures are not looked at. moto's server would do this, but needs an older python-dateutil than we pin;
GEMSTREAM_TEST_S3=HOST:PORT lets tests/state/test_checkpoint_storage.py use it, or any other service.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass
class Objects:
    """What is stored, and a few faults on demand."""

    contents: dict[str, bytes] = field(default_factory=dict)
    """By `bucket/key`."""
    written_at: dict[str, datetime] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=set)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    refused_puts: int = 0
    """Answer so many uploads with 403."""
    puts: list[str] = field(default_factory=list)
    """Names of the objects that were written, in order."""

    def put(self, name: str, data: bytes) -> None:
        """Store an object."""
        self.puts.append(name)
        self.contents[name] = data
        self.written_at[name] = datetime.now(UTC)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: Objects

    query: dict[str, list[str]]

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        url = urlsplit(self.path)
        self.name = unquote(url.path).strip("/")
        if url.path.endswith("/") and "/" in self.name:
            self.name += "/"
        self.query = parse_qs(url.query, keep_blank_values=True)
        return True

    def do_HEAD(self) -> None:
        if "/" not in self.name:
            self._answer(200 if self.name in self.objects.buckets else 404)
        else:
            self._send_object()

    def do_GET(self) -> None:
        if "/" in self.name:
            self._send_object()
        elif self.name not in self.objects.buckets:
            self._fail(404, "NoSuchBucket")
        else:
            self._send_listing()

    def do_PUT(self) -> None:
        body = self._body()
        if self.objects.refused_puts:
            self.objects.refused_puts -= 1
            self._fail(403, "AccessDenied")
        elif "uploadId" in self.query:
            number = int(self.query["partNumber"][0])
            self.objects.parts[self.query["uploadId"][0]][number] = body
            self._answer(200, headers={"ETag": f'"{number}"'})
        else:
            self.objects.put(self.name, body)
            self._answer(200, headers={"ETag": '"1"'})

    def do_POST(self) -> None:
        self._body()
        bucket, _, key = self.name.partition("/")
        if "uploads" in self.query:
            upload = f"upload-{len(self.objects.parts)}"
            self.objects.parts[upload] = {}
            inner = (
                f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            )
            self._answer_xml("InitiateMultipartUploadResult", inner)
        else:
            parts = self.objects.parts[self.query["uploadId"][0]]
            self.objects.put(self.name, b"".join(parts[number] for number in sorted(parts)))
            self._answer_xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key>")

    def do_DELETE(self) -> None:
        self.objects.contents.pop(self.name, None)
        self._answer(204)

    def _send_object(self) -> None:
        data = self.objects.contents.get(self.name)
        if data is None:
            self._fail(404, "NoSuchKey")
            return
        written_at = format_datetime(self.objects.written_at[self.name], usegmt=True)
        headers = {"ETag": '"1"', "Last-Modified": written_at}
        given = self.headers.get("Range")
        if given is None:
            self._answer(200, data, headers)
            return
        first, last = (int(text) for text in given.removeprefix("bytes=").split("-"))
        last = min(last, len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, data[first : last + 1], headers)

    def _send_listing(self) -> None:
        prefix = self.query.get("prefix", [""])[0]
        delimiter = self.query.get("delimiter", [""])[0]
        keys, prefixes = [], set()
        for name in sorted(self.objects.contents):
            bucket, _, key = name.partition("/")
            if bucket != self.name or not key.startswith(prefix):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                prefixes.add(prefix + head + delimiter)
            else:
                keys.append(key)
        after = self.query.get("continuation-token", [""])[0]
        page = [key for key in keys if key > after][: int(self.query.get("max-keys", ["1000"])[0])]
        more = bool(page) and page[-1] != keys[-1]
        inner = f"<Name>{self.name}</Name><KeyCount>{len(page)}</KeyCount>"
        inner += f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"
        if more:
            inner += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        for key in page:
            name = f"{self.name}/{key}"
            written_at = self.objects.written_at[name].strftime("%Y-%m-%dT%H:%M:%S.000Z")
            inner += (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{written_at}</LastModified>"
                f"<Size>{len(self.objects.contents[name])}</Size></Contents>"
            )
        for each in sorted(prefixes):
            inner += f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
        self._answer_xml("ListBucketResult", inner)

    def _body(self) -> bytes:
        data = self._raw_body()
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        body = b""
        while True:  # hex size;signature CRLF data CRLF ... 0, then trailers
            line, _, data = data.partition(b"\r\n")
            size = int(line.split(b";")[0], 16)
            if not size:
                return body
            body, data = body + data[:size], data[size + 2 :]

    def _raw_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer_xml(self, name: str, inner: str) -> None:
        self._answer(200, f'<?xml version="1.0"?><{name}>{inner}</{name}>'.encode())

    def _fail(self, status: int, code: str) -> None:
        self._answer(
            status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        )

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def s3_server(*buckets: str) -> Iterator[tuple[str, Objects]]:
    """The host:port of a running service on loopback, and what it stores."""
    objects = Objects(buckets=set(buckets))
    handler = type("Handler", (_Handler,), {"objects": objects})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
