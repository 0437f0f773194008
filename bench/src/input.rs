//! A file as memory.

use anyhow::{Context, Result};
use memmap2::Mmap;
use std::{fs::File, path::Path};

#[allow(unsafe_code, reason = "the plain program maps its input, as anybody's would")]
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    // SAFETY: the file is the benchmark's own; nobody writes or cuts it while it is mapped.
    let map = unsafe { Mmap::map(&file) };
    map.with_context(|| format!("cannot map {}", path.display()))
}
