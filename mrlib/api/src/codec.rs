//! Recognises compressed input files by their names and first bytes.
//!
//! gzip is decoded. Files with any other compression are refused, because they would be read as
//! meaningless text. A file whose name contradicts its contents is refused too. With
//! `input.codec=none` every file is read unchanged.

use crate::format::InputFormat;
use std::{fmt, path::Path, str::FromStr};

/// Number of bytes at the start of a file that are enough to recognise every compression.
pub const MAGIC_BYTES: usize = 16;

/// The setting `input.codec`: how input files are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    /// `.gz` files are decoded; other compressed files are refused.
    #[default]
    Auto,
    /// No file is decoded or refused.
    None,
    /// Every file is gzip, whatever its name.
    Gzip,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Unchanged.
    Plain,
    /// Decompressed. Such a file is always one split.
    Gzip,
}

/// Why an input file cannot be read. Every attempt would fail with the same error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnreadableInput(String);

/// Unsupported compressions by file extension.
const EXTENSIONS: [(&str, &str); 20] = [
    ("bz2", "bzip2"),
    ("bz", "bzip2"),
    ("zst", "Zstandard"),
    ("zstd", "Zstandard"),
    ("lz4", "LZ4"),
    ("xz", "xz"),
    ("lzma", "LZMA"),
    ("snappy", "Snappy"),
    ("sz", "Snappy"),
    ("z", "compress"),
    ("zip", "ZIP"),
    ("7z", "7-Zip"),
    ("rar", "RAR"),
    ("lzo", "LZO"),
    ("lz", "lzip"),
    ("br", "Brotli"),
    ("tgz", "gzip, as a tar archive,"),
    ("tbz2", "bzip2, as a tar archive,"),
    ("txz", "xz, as a tar archive,"),
    ("deflate", "DEFLATE"),
];

const GZIP_MAGIC: &[u8] = b"\x1f\x8b";

/// Compressions by first bytes. No text begins with any of these.
const MAGIC: [(&[u8], &str); 14] = [
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"\x50\x2a\x4d\x18", "Zstandard"),
    (b"\x04\x22\x4d\x18", "LZ4"),
    (b"\x02\x21\x4c\x18", "LZ4"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\xff\x06\0\0sNaPpY", "Snappy"),
    (b"\x1f\x9d", "compress"),
    (b"\x1f\xa0", "compress"),
    (b"PK\x03\x04", "ZIP"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (b"Rar!\x1a\x07", "RAR"),
    (b"\x89LZO\0\r\n\x1a\n", "LZO"),
    (b"LZIP\x01", "lzip"),
];

impl Codec {
    /// Returns how a file with this name is read, or why it is refused.
    pub fn coding_by_name(self, path: &str) -> Result<Coding, UnreadableInput> {
        match self {
            Self::None => return Ok(Coding::Plain),
            Self::Gzip => return Ok(Coding::Gzip),
            Self::Auto => {}
        }
        let extension =
            Path::new(path).extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        if extension == "gz" {
            return Ok(Coding::Gzip);
        }
        match EXTENSIONS.iter().find(|(end, _)| *end == extension) {
            None => Ok(Coding::Plain),
            Some((_, name)) => Err(UnreadableInput(format!(
                "input {path} is compressed with {name} according to its name, and Fermata cannot decode that: decompress it first, \
                 or set input.codec=none to read it unchanged"
            ))),
        }
    }

    /// Checks that the first [`MAGIC_BYTES`] bytes of a file (fewer if it is shorter) agree with
    /// its name. Files of formats other than lines may begin with any bytes.
    pub fn check_start(self, path: &str, format: InputFormat, start: &[u8]) -> Result<(), UnreadableInput> {
        let coding = self.coding_by_name(path)?;
        if start.is_empty() || self == Self::None {
            return Ok(());
        }
        if coding == Coding::Gzip {
            if start.starts_with(GZIP_MAGIC) {
                return Ok(());
            }
            let why = if self == Self::Gzip { "input.codec is gzip" } else { "its name ends with .gz" };
            let what = compression_by_magic(start)
                .map_or_else(|| "not gzip".into(), |name| format!("{name}, not gzip"));
            return Err(UnreadableInput(format!(
                "input {path} is {what}, but {why}: rename it, or set input.codec=none to read it unchanged"
            )));
        }
        let lines = matches!(format, InputFormat::Lines | InputFormat::KeyValueLines);
        match compression_by_magic(start).filter(|_| lines) {
            None => Ok(()),
            Some("gzip") => Err(UnreadableInput(format!(
                "input {path} is gzip according to its first bytes, but its name does not end in .gz: rename it, or set \
                 input.codec=gzip to decode it or input.codec=none to read it unchanged"
            ))),
            Some(name) => Err(UnreadableInput(format!(
                "input {path} is compressed with {name} according to its first bytes, and Fermata cannot decode that: decompress it \
                 first, or set input.codec=none to read it unchanged"
            ))),
        }
    }
}

/// Returns the name of the compression of a file that begins with these bytes.
fn compression_by_magic(start: &[u8]) -> Option<&'static str> {
    // The byte after `BZh` is the block size; a block begins with the digits of pi.
    if start.starts_with(b"BZh") && start.get(4..10) == Some(b"\x31\x41\x59\x26\x53\x59") {
        return Some("bzip2");
    }
    MAGIC.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, name)| *name)
}

impl FromStr for Codec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            "gzip" => Ok(Self::Gzip),
            _ => Err("use auto, none or gzip".into()),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Gzip => "gzip",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: InputFormat = InputFormat::Lines;

    fn refusal_text(path: &str, start: &[u8]) -> String {
        Codec::Auto.check_start(path, LINES, start).expect_err(path).to_string()
    }

    #[test]
    fn compressed_files_are_recognised_by_name_and_by_first_bytes() {
        for (path, start, name) in [
            ("/a.bz2", &b"BZh91AY&SY"[..], "bzip2"),
            ("/a.dat", b"BZh91AY&SY", "bzip2"),
            ("/a.zst", b"\x28\xb5\x2f\xfd", "Zstandard"),
            ("/a", b"\x28\xb5\x2f\xfd", "Zstandard"),
            ("/a.XZ", b"", "xz"),
            ("/a.txt", b"\xfd7zXZ\0", "xz"),
            ("/a.txt", b"\x04\x22\x4d\x18", "LZ4"),
            ("/a.txt", b"PK\x03\x04", "ZIP"),
            ("/a.txt", b"\x1f\x9d\x90", "compress"),
            ("/a.Z", b"", "compress"),
            ("/a.snappy", b"plain text", "Snappy"),
            ("/a.txt", b"\x1f\x8b\x08\0", "gzip"),
        ] {
            let why = refusal_text(path, start);
            assert!(why.contains(&format!("input {path} ")) && why.contains(name), "{why}");
            assert!(why.contains("input.codec="), "{why}");
            assert_eq!(Codec::None.check_start(path, LINES, start), Ok(()));
        }
        assert_eq!(Codec::Auto.check_start("/a.gz", LINES, b"\x1f\x8b\x08\0"), Ok(()));
        assert!(refusal_text("/a.gz", b"plain text").contains("not gzip"));
        assert!(refusal_text("/a.gz", b"\x28\xb5\x2f\xfd").contains("Zstandard, not gzip"));
    }

    #[test]
    fn plain_text_and_formats_without_lines_are_not_refused() {
        for start in [&b"PK stands for"[..], b"BZh9 is no bzip2", b"LZIP", b"7z", b"\xef\xbb\xbfBOM", b"\0\0"]
        {
            assert_eq!(Codec::Auto.check_start("/a.txt", LINES, start), Ok(()));
        }
        let fixed = InputFormat::Fixed { record: 100, key: 10 };
        for format in [fixed, InputFormat::WholeFile] {
            assert_eq!(Codec::Auto.check_start("/part-r-00000", format, b"\x28\xb5\x2f\xfd"), Ok(()));
        }
        assert_eq!(Codec::Gzip.coding_by_name("/a.dat"), Ok(Coding::Gzip));
        assert_eq!(Codec::None.coding_by_name("/a.gz"), Ok(Coding::Plain));
    }
}
