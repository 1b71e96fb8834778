"""Pack a PDF as Chromium writes it: objects without a stream go, compressed, into object streams.

Two thirds of a tagged PDF are the hundred thousand little objects that tell a screen reader what is a heading
and what is a paragraph. PDF 1.5 can hold them compressed (ISO 32000-1, 7.5.7 and 7.5.8).
"""

from __future__ import annotations

import re
import struct
import zlib

TOGETHER = 400  # objects in a stream


class Unpackable(ValueError):
    """The file does not have the plain form that is expected."""


def read_objects(data: bytes) -> tuple[dict[int, bytes], dict[str, int]]:
    """Return the objects of a PDF with one plain cross-reference table, and what its trailer refers to."""
    start = int(data[data.rindex(b"startxref") :].split()[1])
    head = re.compile(rb"xref\s+0 (\d+)\s+").match(data, start)
    if head is None:
        raise Unpackable("no plain cross-reference table")
    count, table = int(head[1]), head.end()
    rows = [data[table + 20 * i : table + 20 * (i + 1)] for i in range(count)]
    offsets = {number: int(row[:10]) for number, row in enumerate(rows) if row[17:18] == b"n"}
    trailer = data[table + 20 * count : data.rindex(b"startxref")]
    if b"/Encrypt" in trailer or b"/Prev" in trailer:
        raise Unpackable("encrypted, or written in several parts")
    ends = dict(zip(sorted(offsets.values()), [*sorted(offsets.values())[1:], start], strict=True))
    objects = {}
    for number, offset in offsets.items():
        found = re.compile(rb"(\d+) 0 obj\s*").match(data, offset)
        end = data.rindex(b"endobj", offset, ends[offset])
        if found is None or int(found[1]) != number:
            raise Unpackable(f"object {number} is not where the table says")
        objects[number] = data[found.end() : end].strip(b"\r\n")
    roots = {
        name.decode(): int(number)
        for name, number in re.findall(rb"/(Root|Info)\s+(\d+) 0 R", trailer)
    }
    if "Root" not in roots:
        raise Unpackable("no root")
    return objects, roots


def pack(data: bytes, information: dict[str, str] | None = None) -> bytes:
    """Return the same PDF, smaller; ``information`` is added to its title, such as ``{"Author": …}``."""
    objects, roots = read_objects(data)
    for key, value in (information or {}).items():
        text = ("\ufeff" + value).encode("utf-16-be").hex().encode()
        info = objects[roots["Info"]]
        objects[roots["Info"]] = (
            info[: info.rindex(b">>")] + b"/" + key.encode() + b" <" + text + b">>>"
        )
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    places: dict[int, tuple[int, int, int]] = {0: (0, 0, 65535)}
    streams = [n for n, body in objects.items() if body.endswith(b"endstream")]
    plain = [n for n in objects if n not in set(streams)]
    for number in streams:
        places[number] = (1, len(out), 0)
        out += b"%d 0 obj\n%b\nendobj\n" % (number, objects[number])
    last = max(objects)
    for first in range(0, len(plain), TOGETHER):
        last += 1
        index, bodies = [], b""
        for position, number in enumerate(plain[first : first + TOGETHER]):
            index.append(b"%d %d" % (number, len(bodies)))
            bodies += objects[number] + b"\n"
            places[number] = (2, last, position)
        header = b" ".join(index) + b"\n"
        places[last] = (1, len(out), 0)
        out += stream(
            last, b"/Type /ObjStm /N %d /First %d" % (len(index), len(header)), header + bodies
        )
    last += 1
    places[last] = (1, len(out), 0)
    start = len(out)
    rows = b"".join(
        struct.pack(">BIH", *places.get(number, (0, 0, 65535))) for number in range(last + 1)
    )
    refers = b" ".join(b"/%b %d 0 R" % (name.encode(), number) for name, number in roots.items())
    out += stream(last, b"/Type /XRef /W [1 4 2] /Size %d %b" % (last + 1, refers), rows)
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % start)


def stream(number: int, entries: bytes, content: bytes) -> bytes:
    """Return a compressed stream object."""
    small = zlib.compress(content, 9)
    return b"%d 0 obj\n<<%b /Filter /FlateDecode /Length %d>>\nstream\n%b\nendstream\nendobj\n" % (
        number,
        entries,
        len(small),
        small,
    )
