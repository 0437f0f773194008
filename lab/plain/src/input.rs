//! Maps input files into memory.

use anyhow::{Context, Result};
use memmap2::Mmap;
use std::{fs::File, path::Path};

#[allow(unsafe_code, reason = "the plain program maps its input, like any program of its kind")]
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    // SAFETY: the benchmark owns the file; no process writes or truncates it while it is mapped.
    let map = unsafe { Mmap::map(&file) };
    map.with_context(|| format!("cannot map {}", path.display()))
}
