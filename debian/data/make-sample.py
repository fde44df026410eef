#!/usr/bin/env python3
"""Makes sample-packages.xz from a full Packages file of Debian.

    make-sample.py PACKAGES > sample-packages.xz

PACKAGES is one of apt's lists (plain, .gz, .xz, or .lz4 where the lz4 command is installed). The sample holds ROOTS, then the
packages that need libssl3, directly or through others, nearest first and by name within one distance; each with all that it
depends on. It stops before the packed file would exceed BYTES_MAX. Stanzas keep the order of the index and only the fields
in FIELDS, descriptions their first line. The same index and the same liblzma give the same bytes.
"""
import gzip, lzma, re, subprocess, sys

ROOTS = ["libc6", "libssl3"]
FIELDS = ["Package", "Version", "Installed-Size", "Maintainer", "Architecture", "Depends", "Pre-Depends", "Description",
          "Homepage", "Section", "Size"]
BYTES_MAX = 2_000_000


def read(path):
    """The text of the file, unpacked by what its first bytes say."""
    data = open(path, "rb").read()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    elif data.startswith(b"\xfd7zXZ"):
        data = lzma.decompress(data)
    elif data.startswith(b"\x04\x22\x4d\x18"):
        data = subprocess.run(["lz4", "-dc", path], check=True, capture_output=True).stdout
    return data.decode("utf-8")


def stanzas(text):
    """Name -> its fields, in the order of the file. The last stanza of a name wins."""
    found = {}
    for block in text.split("\n\n"):
        fields, key = {}, None
        for line in block.splitlines():
            if line[0] in " \t":
                if key != "Description":
                    fields[key] += " " + line.strip()
            else:
                key, value = line.split(":", 1)
                fields[key] = value.strip()
        if fields:
            found[fields["Package"]] = fields
    return found


def needs(fields):
    """The names in Depends and Pre-Depends."""
    clauses = re.split("[,|]", fields.get("Depends", "") + "," + fields.get("Pre-Depends", ""))
    return {re.match(r"[^\s:(\[<]*", clause.strip())[0] for clause in clauses} - {""}


def order(index):
    """Every candidate once, nearest first, each followed by what it depends on."""
    needed_by = {}
    for name, fields in index.items():
        for other in needs(fields):
            needed_by.setdefault(other, []).append(name)
    ordered, seen = [], set()

    def add(name):
        stack = [name]
        while stack:
            name = stack.pop()
            if name in index and name not in seen:
                seen.add(name)
                ordered.append(name)
                stack.extend(sorted(needs(index[name]), reverse=True))

    for root in ROOTS:
        add(root)
    level, reached = ["libssl3"], {"libssl3"}
    while level:
        level = sorted({user for name in level for user in needed_by.get(name, [])} - reached)
        reached.update(level)
        for name in level:
            add(name)
    return ordered


def pack(index, names):
    """The chosen stanzas as an xz file."""
    names = set(names)
    lines = []
    for name, fields in index.items():
        if name in names:
            lines += [f"{field}: {fields[field]}" for field in FIELDS if field in fields] + [""]
    return lzma.compress("\n".join(lines).encode() + b"\n", preset=9 | lzma.PRESET_EXTREME)


def main():
    index = stanzas(read(sys.argv[1]))
    ordered = order(index)
    low, high = 1, len(ordered) + 1  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(pack(index, ordered[:middle])) <= BYTES_MAX else (low, middle)
    packed = pack(index, ordered[:low])
    sys.stdout.buffer.write(packed)
    print(f"{low} of {len(ordered)} candidates, {len(index)} in the index; {len(packed)} bytes", file=sys.stderr)


main()
