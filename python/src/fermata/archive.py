"""The archive of a job: one file that `python3 FILE map` runs on a node that has only Python.

It is a zip file with this package, cloudpickle, and the pickled functions. Modules of the user that
are not installed as packages are pickled too, as parts of the functions that use them.
"""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap
import importlib.util
import io
import linecache
import os
import sys
import sysconfig
import types
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle

from fermata.errors import FermataError
from fermata.worker import Step

NAME = "fermata-job.pyz"
_PACKAGE = ("__init__", "codec", "context", "errors", "local", "worker")
_SOURCE_BYTES_MAX = 1 << 20

# Every version of Python 3 must be able to read this, to report that it is another one.
_MAIN = """\
import sys
WANTED = {wanted!r}
if sys.version_info[:2] != WANTED:
    sys.exit("fermata: this node runs Python %d.%d (%s), but the job was submitted with Python %d.%d, "
             "and functions run only in the version that they were sent from: name an interpreter of the "
             "nodes with Cluster(python=...)" % (sys.version_info[:2] + (sys.executable,) + WANTED))
import glob, os, pickle, zipfile
def use_wheels():
    for wheel in sorted(glob.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            if any(name.endswith(".so") for name in archive.namelist()):
                # Compiled modules cannot be imported from an archive.
                folder = os.path.abspath(wheel + ".%d" % os.getpid())
                archive.extractall(folder)
                wheel = folder
        sys.path.insert(1, os.path.abspath(wheel))
use_wheels()
from fermata import local, worker
with zipfile.ZipFile(sys.argv[0]) as archive:
    step = archive.read("step.pickle")
if sys.argv[1] == "local":
    sys.exit(local.serve(step, sys.argv[2]))
try:
    step = pickle.loads(step)
except Exception as error:
    sys.exit("fermata: the functions of the job cannot be loaded on this node: %s: %s; send what they "
             "import with wheels=[...] of run()" % (type(error).__name__, error))
sys.exit(worker.serve(step, sys.argv[1]))
"""


def pickle_step(step: Step) -> bytes:
    """Pickles the functions of a job, with the modules of the user that they use."""
    own = [module for module in list(sys.modules.values()) if _is_of_user(module)]
    registered = []
    for module in own:
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    step.sources = _sources(step)
    try:
        return bytes(cloudpickle.dumps(step))
    except Exception as error:
        raise FermataError(
            f"the functions of the job cannot be pickled: {type(error).__name__}: {error}; make "
            "what cannot be pickled in setup() of a class, which runs in the task"
        ) from error
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_of_user(module: types.ModuleType) -> bool:
    """Whether a module is a file of the user rather than of an installed package."""
    path = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    if not path or name == "__main__" or name.split(".")[0] in ("fermata", "cloudpickle"):
        return False
    paths = sysconfig.get_paths()
    installed = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    real = os.path.realpath(path)
    return path.endswith(".py") and not any(
        path.startswith(folder + os.sep) or real.startswith(os.path.realpath(folder) + os.sep)
        for folder in installed
    )


def _sources(step: Step) -> dict[str, list[str]]:
    """Returns the source files of the functions, so that tracebacks show their lines."""
    found: dict[str, list[str]] = {}
    for given in (step.mapper, step.reducer, step.combiner):
        methods = [given, *vars(given if isinstance(given, type) else type(given)).values()]
        for code in [getattr(one, "__code__", None) for one in methods]:
            if isinstance(code, types.CodeType) and code.co_filename not in found:
                lines = linecache.getlines(code.co_filename)
                if sum(map(len, lines)) <= _SOURCE_BYTES_MAX:
                    found[code.co_filename] = lines
    return found


def build(step: Step) -> bytes:
    """Returns the archive of a job."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("step.pickle", pickle_step(step))
        archive.writestr("__main__.py", _MAIN.format(wanted=sys.version_info[:2]))
        _add_package(archive, Path(__file__).parent, "fermata", _PACKAGE)
        folder = Path(cloudpickle.__file__).parent
        _add_package(archive, folder, "cloudpickle", [path.stem for path in folder.glob("*.py")])
    return made.getvalue()


def _add_package(archive: zipfile.ZipFile, folder: Path, package: str, names: Any) -> None:
    """Adds modules, compiled, because Python compiles what it imports from an archive each time."""
    for name in names:
        source = (folder / f"{name}.py").read_bytes()
        code = compile(source, f"{package}/{name}.py", "exec", dont_inherit=True)
        hashed = importlib.util.source_hash(source)
        compiled = bootstrap._code_to_hash_pyc(code, hashed, False)  # type: ignore[attr-defined]
        archive.writestr(f"{package}/{name}.pyc", compiled)
