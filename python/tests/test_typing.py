from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_package_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_users_of_the_package_are_checked(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(
        "import fermata\n"
        "result = fermata.Job(len).run('in')\n"
        "frame: int = result.counters['x']\n"
        "wrong: str = result.counters['x']\n"
        "fermata.Job(len, redcer=len)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "user.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in ran.stdout.splitlines() if ": error: " in line]
    assert [error.split(":")[1] for error in errors] == ["4", "5"], ran.stdout


def test_tasks_need_nothing_but_python() -> None:
    """What tasks import must not import packages that only the client has."""
    check = (
        "import sys, fermata, fermata.worker, fermata.local\n"
        "for name in ('cloudpickle', 'fsspec', 'urllib3', 'pandas'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
