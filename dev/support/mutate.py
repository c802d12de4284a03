"""Broken copies of a memory file: bytes, headers and tensors, many with a checksum that fits."""

import json
import struct
import zlib

VALUES = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    2**63,
    2**70,
    1e308,
    float("nan"),
    "",
    "history",
    [],
    {},
    [[]],
    [0, 0, 0],
    {"@": "/latents"},
    {"@": "/nothing"},
    {"@": 5},
    "\0" * 9,
)
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "X9")


def mutations(data: bytes, draw, count: int):
    """`count` of them; `draw` is a random.Random."""
    (size,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + size], data[8 + size :]
    for _ in range(count):
        yield draw.choice((_bytes, _header, _header, _parts, _parts, _parts, _tensor, _tensor))(
            header, body, draw
        )


def assemble(header: dict, body: bytes, fix: bool) -> bytes:
    """A file; with `fix` its checksum fits."""
    if fix:
        header_fields = header.get("__metadata__", {})
        total = zlib.crc32(str(header_fields.get("parts", "")).encode())
        for name in sorted(name for name in header if name != "__metadata__"):
            first, last = header[name]["data_offsets"]
            total = zlib.crc32(body[first:last], total)
        header_fields["crc32"] = f"{total:08x}"
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _bytes(header, body, draw):
    """Cut, flipped, doubled or swapped bytes."""
    data = bytearray(struct.pack("<Q", len(header)) + header + body)
    kind = draw.randrange(4)
    if kind == 0:
        del data[draw.randrange(len(data)) :]
    for _ in range(draw.randint(1, 8)):
        if kind == 1 and data:
            data[draw.randrange(min(len(data), draw.choice((16, 200, len(data)))))] = (
                draw.randrange(256)
            )
        if kind == 2:
            at = draw.randrange(len(data))
            data[at:at] = data[at : at + draw.randint(1, 99)]
    if kind == 3:
        data[:8] = struct.pack(
            "<Q", draw.choice((0, 1, 2**20, 2**33, 2**63, len(header) - 1, len(header) + 1))
        )
    return bytes(data)


def _header(header, body, draw):
    """Another dtype, shape or place of a tensor, or one that is gone; or other metadata."""
    header_fields = json.loads(header)
    name = draw.choice([name for name in header_fields if name != "__metadata__"])
    kind = draw.randrange(6)
    if kind == 0:
        header_fields[name]["dtype"] = draw.choice(DTYPES)
    elif kind == 1:
        header_fields[name]["shape"] = draw.choice(
            (
                [],
                [0],
                [2**40, 2**40],
                [1, *header_fields[name]["shape"]],
                header_fields[name]["shape"][::-1],
                [-1],
            )
        )
    elif kind == 2:
        header_fields[name]["data_offsets"] = draw.choice(([0, 0], [0, 2**60], [5, 1], [-4, 4]))
    elif kind == 3:
        del header_fields[name]
    elif kind == 4:
        header_fields[draw.choice(("/x", "/latents/x", "__metadata__"))] = header_fields.pop(name)
    else:
        header_fields["__metadata__"][draw.choice(("format", "version", "crc32", "parts"))] = (
            draw.choice(("", "2", "[]", "{}", "[" * 5000, "null", "1"))
        )
    try:
        return assemble(header_fields, body, draw.random() < 0.5)
    except (TypeError, KeyError, AttributeError):
        return assemble(header_fields, body, False)


def _parts(header, body, draw):
    """Another value somewhere in the header's tree, an entry that is gone or one too many; the
    checksum fits.
    """
    header_fields = json.loads(header)
    tree = json.loads(header_fields["__metadata__"]["parts"])
    places = list(_places(tree))
    for _ in range(draw.randint(1, 3)):
        parent, key = draw.choice(places)
        if draw.random() < 0.2 and (
            isinstance(parent, dict)
            and key in parent
            or isinstance(parent, list)
            and key < len(parent)
        ):
            del parent[key]
        elif parent and (isinstance(parent, dict) or key < len(parent)):
            parent[key] = draw.choice(
                (
                    *VALUES,
                    parent[key - 1]
                    if isinstance(parent, list)
                    else next(iter(parent.values()), None),
                )
            )
    header_fields["__metadata__"]["parts"] = json.dumps(tree)
    return assemble(header_fields, body, True)


def _places(tree):
    for key in (
        tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    ):
        yield tree, key
        yield from _places(tree[key])


def _tensor(header, body, draw):
    """Other bytes in a tensor, or two tensors with each other's names; the checksum fits."""
    header_fields, changed = json.loads(header), bytearray(body)
    names = [name for name in header_fields if name != "__metadata__"]
    if draw.random() < 0.5:
        first, last = header_fields[draw.choice(names)]["data_offsets"]
        for _ in range(draw.randint(1, 20)):
            if last > first:
                changed[draw.randrange(first, last)] = draw.choice((0, 1, 127, 128, 255))
    else:
        one, other = draw.choice(names), draw.choice(names)
        header_fields[one], header_fields[other] = header_fields[other], header_fields[one]
    return assemble(header_fields, bytes(changed), True)
