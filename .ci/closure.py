#!/usr/bin/env python3
"""closure.py FILE depends|rdepends NAME: what NAME needs, or what needs NAME, directly or through others, as JSON.

An independent answer to check ours against. FILE is a Packages file: plain, gzip or xz; lz4 where the lz4 command is
installed. An edge is a name mentioned in Depends or Pre-Depends, in any alternative, whatever its version, architecture or
build profile. A name mentioned but not defined is a node without edges. A list with two stanzas of one name is refused.
"""
import gzip, json, lzma, shutil, subprocess, sys


def unpack(path):
    data = open(path, "rb").read()
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.decompress(data)
    if data[:4] == b"\x04\x22\x4d\x18":
        if not shutil.which("lz4"):
            sys.exit("closure.py: this file is packed with lz4; install the lz4 command, or unpack the file first")
        return subprocess.run(["lz4", "-dc", path], check=True, stdout=subprocess.PIPE).stdout
    return data


def read_edges(data):
    edges, fields, last = {}, {}, None
    for line in data.decode("utf-8").split("\n") + [""]:
        line = line.rstrip("\r")
        if not line:
            if fields:
                relations = fields.get("depends", "") + "," + fields.get("pre-depends", "")
                words = (alternative.split("(")[0].split("[")[0].split("<")[0].split(":")[0].strip()
                         for alternative in relations.replace("|", ",").split(","))
                if fields["package"] in edges:
                    sys.exit(f"closure.py: {fields['package']} has two stanzas, and versions are not compared here")
                edges[fields["package"]] = {word for word in words if word}
            fields, last = {}, None
        elif line[0] in " \t":
            if last:
                fields[last] += " " + line.strip()
        else:
            last, value = line.split(":", 1)
            last = last.lower()
            fields[last] = value.strip()
    return edges


def closure(edges, root):
    found, waiting = {root}, [root]
    while waiting:
        new = set(edges.get(waiting.pop(), ())) - found
        found |= new
        waiting.extend(new)
    return sorted(found - {root}, key=str.encode)


def main():
    if len(sys.argv) != 4 or sys.argv[2] not in ("depends", "rdepends"):
        sys.exit(__doc__)
    path, direction, root = sys.argv[1:]
    edges = read_edges(unpack(path))
    users = {}
    for name, needed in edges.items():
        for other in needed:
            users.setdefault(other, set()).add(name)
    if root not in edges and root not in users:
        sys.exit(f"closure.py: no stanza defines or mentions {root}")
    names = closure(edges if direction == "depends" else users, root)
    print(json.dumps({"root": root, "count": len(names), "names": names}))


main()
