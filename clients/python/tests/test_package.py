"""The package as it is installed: `pip install ./clients/python`, without the network."""

import pathlib
import subprocess
import sys
import zipfile

import rudder_client

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def test_the_wheel_is_whole_and_works(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
             "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(PACKAGE)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    [wheel] = tmp_path.glob("rudder_client-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        sources = {path.name for path in (PACKAGE / "src" / "rudder_client").iterdir() if path.is_file()}
        assert {name.split("/")[1] for name in archive.namelist() if name.startswith("rudder_client/")} == sources
        archive.extractall(tmp_path / "installed")
    assert "py.typed" in sources and f"-{rudder_client.__version__}-" in wheel.name
    code = "import rudder_client; print(rudder_client.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path / "installed")}, check=True,
                          capture_output=True, text=True)
    assert str(tmp_path) in done.stdout


def test_everything_that_is_exported_is_there_and_documented():
    for name in rudder_client.__all__:
        assert getattr(rudder_client, name).__doc__, name
