//! The Python package in `python/`, on a real cluster, with packages of `PyPI`. Its tests are Python
//! programs; here they get a virtual environment and a cluster.

use fermata_tests::{Cluster, Up, binaries, copy_folder, is_root, skip};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The `PATH` of tasks that have another account than their tracker, as the tracker sets it.
const TASK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Makes a virtual environment in the build folder in which `packages` are installed and `imports`
/// can be imported. Returns its Python, or None if it cannot be made.
pub(super) fn virtual_environment(packages: &[&str], imports: &str) -> Option<PathBuf> {
    let folder = temporary_folder().keep();
    let python = folder.join("bin/python3");
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(&folder);
    if is_root() {
        // Functions run only in the version of Python that they were sent from.
        venv.env("PATH", TASK_PATH);
    }
    let made = venv.output();
    let pip = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(packages)
        .output();
    let works = made.is_ok() && pip.is_ok() && can_import(&python, imports);
    if !works {
        let _ = fs::remove_dir_all(&folder);
    }
    works.then_some(python)
}

fn temporary_folder() -> tempfile::TempDir {
    let space = binaries().with_file_name("tmp");
    fs::create_dir_all(&space).expect("a writable build folder");
    tempfile::tempdir_in(space).expect("a temporary folder")
}

/// Returns whether a Python can import these modules.
pub(super) fn can_import(python: &Path, imports: &str) -> bool {
    let ran = Command::new(python).args(["-c", &format!("import {imports}")]).output();
    ran.is_ok_and(|ran| ran.status.success())
}

#[test]
fn tests_of_the_package_pass_on_a_cluster() {
    let package =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../python").canonicalize().expect("the package");
    // pip writes next to what it installs.
    let copy = temporary_folder();
    copy_folder(&package, &copy.path().join("python"));
    let source = format!("{}[test]", copy.path().join("python").display());
    let imports = "fermata.cluster, pytest, mypy, pandas, pyarrow, dask.dataframe, nbclient, ipykernel";
    let Some(python) = virtual_environment(&[&source], imports) else {
        skip("python-package", "the packages that python/ needs cannot be installed from PyPI");
        return;
    };
    let cluster = Cluster::up(Up { nodes: 2, ..Up::default() });
    let ran = Command::new(&python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir"])
        .args([&package, &package.join("tests")])
        .current_dir(cluster.path(""))
        .env("FERMATA_TEST_CLUSTER", "1")
        .env("FERMATA_MRCTL", binaries().join("mrctl"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("FERMATA_CONFIG")
        .stdin(Stdio::null())
        .output()
        .expect("python3 runs");
    let (out, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    println!("{out}");
    assert!(ran.status.success(), "{out}{errors}{}", cluster.log("gateway"));
    assert!(!out.contains(" skipped"), "{out}");
    if let Some(folder) = python.ancestors().nth(2) {
        let _ = fs::remove_dir_all(folder);
    }
}
