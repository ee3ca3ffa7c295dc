"""Writes the packages of the command line. Python's standard library is enough.

pack.py OUT npm                         the npm package of all platforms
pack.py OUT TARGET PROGRAM DOCUMENTS    the archive, the npm package and the wheel of a target; DOCUMENTS has completions and man pages
pack.py OUT sums                        SHA256SUMS

The same files give the same bytes: times are SOURCE_DATE_EPOCH.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

here = Path(__file__).resolve().parent
root = here.parent
version = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["package"]["version"]
moment = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
licenses = ["LICENSE-MIT", "LICENSE-APACHE"]

# Per target: npm's platform, and the wheel's. A program with musl is static: it needs neither glibc nor musl.
static = "manylinux_2_17_{0}.manylinux2014_{0}.musllinux_1_1_{0}"
targets = {
    "x86_64-unknown-linux-musl": ("linux-x64", static.format("x86_64")),
    "aarch64-unknown-linux-musl": ("linux-arm64", static.format("aarch64")),
    "aarch64-unknown-linux-gnu": ("linux-arm64", "manylinux_{glibc}_aarch64"),
    "x86_64-apple-darwin": ("darwin-x64", "macosx_10_12_x86_64"),
    "aarch64-apple-darwin": ("darwin-arm64", "macosx_11_0_arm64"),
    "x86_64-pc-windows-msvc": ("win32-x64", "win_amd64"),
    "x86_64-pc-windows-gnu": ("win32-x64", "win_amd64"),
}


class Entry:
    def __init__(self, content: bytes | str, program: bool = False):
        self.content = content.encode() if isinstance(content, str) else content
        self.mode = 0o755 if program else 0o644


def write_tar(path: Path, entries: dict[str, Entry]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, entry in entries.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(entry.content), entry.mode, moment
            tar.addfile(info, io.BytesIO(entry.content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def write_zip(path: Path, entries: dict[str, Entry]) -> None:
    date = max(time.gmtime(moment)[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, entry in entries.items():
            info = zipfile.ZipInfo(name, date)
            info.create_system, info.external_attr = 3, (0o100000 | entry.mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, entry.content)


def files(*names: str) -> dict[str, Entry]:
    return {Path(name).name: Entry((root / name).read_bytes()) for name in names}


def below(folder: str, entries: dict[str, Entry]) -> dict[str, Entry]:
    return {f"{folder}/{name}": entry for name, entry in entries.items()}


def written(out: Path, kind: str, name: str, entries: dict[str, Entry]) -> None:
    (out / kind).mkdir(parents=True, exist_ok=True)
    path = out / kind / name
    (write_tar if name.endswith("gz") else write_zip)(path, entries)
    print(f"{kind}/{name}: {path.stat().st_size} bytes")


def archive(out: Path, target: str, program: Entry, suffix: str, documents: Path) -> None:
    entries = {f"rescind{suffix}": program} | files("README.md", "CHANGELOG.md", *licenses)
    for path in sorted(documents.rglob("*")):
        if path.is_file():
            entries[path.relative_to(documents).as_posix()] = Entry(path.read_bytes())
    name = f"rescind-{version}-{target}"
    written(out, "archives", name + (".zip" if suffix else ".tar.gz"), below(name, entries))


def npm(out: Path, manifest: dict, entries: dict[str, Entry]) -> None:
    name = manifest["name"].lstrip("@").replace("/", "-")
    entries = {"package.json": Entry(json.dumps(manifest, indent=2) + "\n")} | entries | files(*licenses)
    written(out, "npm", f"{name}-{version}.tgz", below("package", entries))


def npm_manifest() -> dict:
    manifest = json.loads((here / "npm/package.json").read_text())
    manifest["version"] = version
    manifest["optionalDependencies"] = {name: version for name in manifest["optionalDependencies"]}
    return manifest


def npm_platform(out: Path, platform: str, program: Entry, suffix: str) -> None:
    main = npm_manifest()
    name = f"@rescind/cli-{platform}"
    if name not in main["optionalDependencies"]:
        sys.exit(f"pack.py: npm/package.json does not name {name}")
    system, processor = platform.split("-")
    manifest = {
        "name": name,
        "version": version,
        "description": f"The program of rescind-cli for {platform}",
        **{key: main[key] for key in ("license", "repository")},
        "os": [system],
        "cpu": [processor],
        "preferUnplugged": True,
    }
    npm(out, manifest, {f"rescind{suffix}": program, "README.md": Entry(f"The program of `rescind-cli` for {platform}.\n")})


def glibc(program: Path) -> str:
    """The oldest glibc that has all symbols of the program."""
    table = subprocess.run(["readelf", "--version-info", program], check=True, capture_output=True, text=True).stdout
    return "2_%d" % max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", table))


def wheel(out: Path, tags: str, program: Entry, suffix: str) -> None:
    # 1.0.0-rc.1 is 1.0.0rc1 there.
    parts = re.fullmatch(r"(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.(\d+))?", version)
    if not parts:
        sys.exit(f"pack.py: {version} is not a version of PyPI")
    number = parts[1] + ({"alpha": "a", "beta": "b", "rc": "rc"}[parts[2]] + parts[3] if parts[2] else "")
    info = f"rescind_cli-{number}.dist-info"
    main = npm_manifest()
    metadata = [
        "Metadata-Version: 2.4",
        "Name: rescind-cli",
        f"Version: {number}",
        f"Summary: {main['description']}",
        f"Keywords: {','.join(main['keywords'])}",
        f"License-Expression: {main['license']}",
        *(f"License-File: {name}" for name in licenses),
        f"Project-URL: Source, {main['repository'].replace('github:', 'https://github.com/')}",
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
    ]
    kinds = ["Wheel-Version: 1.0", "Generator: packages/pack.py", "Root-Is-Purelib: false"]
    kinds += [f"Tag: py3-none-{tag}" for tag in tags.split(".")]
    entries = {
        "rescind_cli/__init__.py": Entry(""),
        "rescind_cli/__main__.py": Entry((here / "pypi/__main__.py").read_bytes()),
        f"rescind_cli-{number}.data/scripts/rescind{suffix}": program,
        **below(f"{info}/licenses", files(*licenses)),
        f"{info}/METADATA": Entry("\n".join(metadata) + "\n\n" + (here / "README.md").read_text()),
        f"{info}/WHEEL": Entry("\n".join(kinds) + "\n"),
        # `uvx rescind-cli` starts the command with the package's name.
        f"{info}/entry_points.txt": Entry("[console_scripts]\nrescind-cli = rescind_cli.__main__:main\n"),
    }
    record = ""
    for name, entry in entries.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.content).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(entry.content)}\n"
    entries[f"{info}/RECORD"] = Entry(f"{record}{info}/RECORD,,\n")
    written(out, "pypi", f"rescind_cli-{number}-py3-none-{tags}.whl", entries)


def main() -> None:
    out, kind, *rest = sys.argv[1:]
    out = Path(out)
    if kind == "npm":
        script = Entry((here / "npm/rescind.js").read_bytes(), program=True)
        npm(out, npm_manifest(), {"rescind.js": script, "README.md": Entry((here / "README.md").read_bytes())})
    elif kind == "sums":
        paths = sorted(path for path in out.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
        lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out).as_posix()}\n" for path in paths]
        (out / "SHA256SUMS").write_text("".join(lines))
    elif kind in targets and len(rest) == 2:
        path = Path(rest[0])
        platform, tags = targets[kind]
        if "{glibc}" in tags:
            tags = tags.format(glibc=glibc(path))
        suffix = ".exe" if "windows" in kind else ""
        program = Entry(path.read_bytes(), program=True)
        archive(out, kind, program, suffix, Path(rest[1]))
        npm_platform(out, platform, program, suffix)
        wheel(out, tags, program, suffix)
    else:
        sys.exit(__doc__)


main()
