#!/usr/bin/env bash
# fetch-step.sh [DIR]: puts the QFP models of Debian's package kicad-packages3d into DIR (step-qfp): 68 STEP files, 188 MB,
# 4.01 million instances. The package (379 MB) comes from the mirror that apt is set up with, or from the address in the
# variable DEB_URL. It is checked before anything of it is unpacked.
set -euo pipefail
dir=${1:-step-qfp}
version=6.0.10-1
sha256=e4ee3179c3935885a262e41543a675208ad5b3077d348728cac46f534d01109a
if [ -e "$dir" ] && [ -n "$(ls -A "$dir")" ]; then
  echo "$dir is not empty: name a directory that is empty or does not exist" >&2
  exit 2
fi
mkdir -p "$dir"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deb=$work/models.deb
if [ -n "${DEB_URL:-}" ]; then
  curl --fail --silent --show-error --location --output "$deb" "$DEB_URL"
else
  (cd "$work" && apt-get download "kicad-packages3d=$version")
  mv "$work"/kicad-packages3d_*.deb "$deb"
fi
echo "$sha256  $deb" | sha256sum --check --quiet
# 5.5 GB are packed in it; one folder is taken out.
dpkg-deb --fsys-tarfile "$deb" \
  | tar --extract --directory "$dir" --strip-components 6 --wildcards './usr/share/kicad/3dmodels/Package_QFP.3dshapes/*.step'
echo "$(find "$dir" -name '*.step' | wc -l) files are in $dir; next: tercel import step $dir --data ./models"
