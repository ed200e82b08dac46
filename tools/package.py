#!/usr/bin/env python3
"""Makes the packages of a binary that is built: a .deb and a tarball with the same contents, and their checksums, in
build/packages. The manual and the shells' completions come from the binary's own --help (package_texts.py). Run by `make package`;
standard library, dpkg-deb and binutils only."""

import argparse
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

from package_texts import bash_completion, fish_completion, manual, read_commands, zsh_completion

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDS = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libdl.so.2", "libpthread.so.0",
         "librt.so.1"}
# What the binary has in it, by the distribution's package that it is built from.
BUNDLED = ("libfmt-dev", "libspdlog-dev", "libcli11-dev", "libpcre2-dev", "libutf8proc-dev", "zlib1g-dev", "libssl-dev",
           "libexpected-dev", "libboost*-dev", "gcc-*-base")
MAINTAINER = "The Rudder authors <rudder@localhost>"


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def licences():
    """The licence of Rudder and of all that its binary has in it, as the distribution has them."""
    parts = ["Rudder is licensed under the Apache License, Version 2.0, below. Its binary has parts of the libraries that\n"
             "follow it, each under its own licence.\n", (ROOT / "LICENSE").read_text()]
    for pattern in BUNDLED:
        found = sorted(pathlib.Path("/usr/share/doc").glob(f"{pattern}/copyright"))
        if not found:
            sys.exit(f"package: /usr/share/doc/{pattern}/copyright is missing; the licence must be in the package")
        parts += [f"\n{'=' * 30} {path.parent.name} {'=' * 30}\n\n" + path.read_text(errors="replace") for path in found]
    return "\n".join(parts)


def needed_glibc(binary):
    """The least glibc that has every symbol; nothing else may be needed."""
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", binary)))
    if needed - NEEDS:
        sys.exit(f"package: the binary needs {sorted(needed - NEEDS)} beside glibc")
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", run("readelf", "-V", binary))
    return "{}.{}".format(*max((int(a), int(b)) for a, b in versions))


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def stage_usr(usr, binary, commands, version, has_symbols):
    """What both packages have below /usr."""
    (usr / "bin").mkdir(parents=True)
    for program in ("rudder", "rudder-bench"):
        target = usr / "bin" / program
        shutil.copy(binary.with_name(program), target)
        target.chmod(0o755)
        if not has_symbols:
            run("strip", "--strip-unneeded", target)
    page = usr / "share" / "man" / "man1" / "rudder.1.gz"
    page.parent.mkdir(parents=True)
    page.write_bytes(gzip.compress(manual(commands, version).encode(), mtime=0))
    share = usr / "share"
    write(share / "bash-completion" / "completions" / "rudder", bash_completion(commands))
    write(share / "zsh" / "vendor-completions" / "_rudder", zsh_completion(commands))
    write(share / "fish" / "vendor_completions.d" / "rudder.fish", fish_completion(commands))
    write(share / "doc" / "rudder" / "copyright", licences())
    shutil.copy(ROOT / "README.md", share / "doc" / "rudder" / "README.md")
    unit = (ROOT / "deploy" / "systemd" / "rudder.service").read_text()
    packaged = unit.replace("ExecStart=/usr/local/bin/rudder", "ExecStart=/usr/bin/rudder")
    if packaged == unit:
        sys.exit("package: deploy/systemd/rudder.service does not start /usr/local/bin/rudder")
    write(usr / "lib" / "systemd" / "system" / "rudder.service", packaged)


WITH_SYSTEMD = '[ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]'  # of the machine that it is installed on
SCRIPTS = {
    "postinst": f"if {WITH_SYSTEMD}; then systemctl daemon-reload || true; fi",
    "prerm": f"if [ \"$1\" = remove ] && {WITH_SYSTEMD}; then systemctl stop rudder.service || true; fi",
    "postrm": f"""if {WITH_SYSTEMD}; then systemctl daemon-reload || true; fi
if [ "$1" = purge ]; then
  for folder in lib cache; do
    rm -rf "${{DPKG_ROOT:-}}/var/$folder/rudder" "${{DPKG_ROOT:-}}/var/$folder/private/rudder"
  done
fi""",
}


def make_deb(out, tree, version, glibc, compression):
    architecture = run("dpkg", "--print-architecture").strip()
    write(tree / "etc" / "rudder" / "rudder.env",
          "# Flags of the service as variables: see rudder(1) and `rudder serve --help`.\n"
          "# RUDDER_MODEL=Qwen/Qwen3-8B\n# RUDDER_HOST=0.0.0.0\n# RUDDER_API_KEY_FILE=/etc/rudder/keys\n")
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    write(tree / "DEBIAN" / "control", f"""Package: rudder
Version: {version}
Architecture: {architecture}
Maintainer: {MAINTAINER}
Installed-Size: {size}
Depends: libc6 (>= {glibc})
Recommends: libcurl4t64 | libcurl4, ca-certificates
Suggests: libzmq5
Section: net
Priority: optional
Description: LLM inference server with steering and capture
 Serves open-weight models over OpenAI's and Anthropic's API, and reads and
 steers their activations. One binary; an embedded demo model needs no download.
""")
    write(tree / "DEBIAN" / "conffiles", "/etc/rudder/rudder.env\n")
    for name, body in SCRIPTS.items():
        write(tree / "DEBIAN" / name, f"#!/bin/sh\nset -e\n{body}\n", 0o755)
    package = out / f"rudder_{version}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", tree, package)
    return package


def make_tarball(out, usr, version, time):
    """The same below one folder, to be unpacked anywhere: bin/rudder runs where it lies."""
    name = f"rudder-{version}-linux-{os.uname().machine}"
    package = out / f"{name}.tar.gz"

    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = time
        return entry

    with open(package, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=time, compresslevel=6) as packed, \
            tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(usr.rglob("*")):
            tar.add(path, f"{name}/{path.relative_to(usr)}", recursive=False, filter=plain)
    return package


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "release" / "apps" / "rudder")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "packages")
    parser.add_argument("--compression", default="xz", choices=("xz", "gzip", "none"))
    parser.add_argument("--keep-symbols", action="store_true")
    arguments = parser.parse_args()
    os.umask(0o022)
    version = run(arguments.binary, "--version").split()[1]
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(time)  # dpkg-deb reads it: the same sources give the same package
    tree = arguments.out / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    commands = read_commands(arguments.binary)
    stage_usr(tree / "usr", arguments.binary, commands, version, arguments.keep_symbols)
    packages = [make_tarball(arguments.out, tree / "usr", version, time),
                make_deb(arguments.out, tree, version, needed_glibc(tree / "usr" / "bin" / "rudder"), arguments.compression)]
    shutil.rmtree(tree)
    sums = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in packages)
    (arguments.out / "SHA256SUMS").write_text(sums)
    for package in packages:
        print(f"{package}  {package.stat().st_size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
