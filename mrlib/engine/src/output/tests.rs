//! Tests the output formats, and pieces on a local disk.

use super::*;
use std::fs;

fn write_records(format: OutputFormat, records: &[(&str, &str)]) -> (Vec<u8>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("piece");
    let mut writer = Box::new(RecordWriter::new(format, PieceWriter::new(Target::Local(path.clone()))));
    for (key, value) in records {
        writer.write(key.as_bytes(), value.as_bytes()).expect("a working disk");
    }
    let bytes = writer.bytes();
    let pieces = writer.finish().expect("a working disk");
    let file = fs::read(path).unwrap_or_default();
    assert_eq!(file.len() as u64, bytes);
    (file, pieces)
}

#[test]
fn text_format_omits_the_tab_of_an_empty_key_or_value() {
    let (bytes, pieces) = write_records(OutputFormat::Text, &[("k", "v"), ("k", ""), ("", "v"), ("", "")]);
    assert_eq!(bytes, b"k\tv\nk\nv\n\n");
    assert_eq!(pieces.len(), 1);
}

#[test]
fn key_value_format_includes_the_lengths() {
    let (bytes, _) = write_records(OutputFormat::KeyValue, &[("key", "v"), ("", "")]);
    assert_eq!(bytes, b"\x03\0\0\0\x01\0\0\0keyv\0\0\0\0\0\0\0\0");
}

#[test]
fn raw_format_writes_key_and_value_only() {
    let (bytes, _) = write_records(OutputFormat::Raw, &[("key", "v"), ("", "\n")]);
    assert_eq!(bytes, b"keyv\n");
}

#[test]
fn empty_output_makes_no_piece() {
    let (_, pieces) = write_records(OutputFormat::Text, &[]);
    assert!(pieces.is_empty());
}

#[test]
fn large_and_small_records_keep_their_order() {
    let large = "x".repeat(3 << 20);
    let (bytes, _) = write_records(OutputFormat::Raw, &[("a", ""), (&large, "b"), ("c", "d")]);
    assert_eq!(bytes.len(), large.len() + 4);
    assert_eq!((bytes[0], &bytes[large.len() + 1..]), (b'a', b"bcd".as_slice()));
}

#[test]
fn output_without_a_target_is_counted() {
    let mut writer = Box::new(RecordWriter::new(OutputFormat::Text, PieceWriter::new(Target::None)));
    writer.write(b"k", b"v").expect("nothing can fail");
    assert_eq!(writer.bytes(), 4);
    assert!(writer.finish().expect("nothing can fail").is_empty());
}

#[test]
fn writer_continues_after_existing_pieces() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("piece").display().to_string();
    let there = vec!["/out/part-r-00000.0".to_owned()];
    let mut writer = PieceWriter::continue_after(there.clone(), Target::Local(path.clone().into()));
    assert!(writer.is_empty(), "earlier pieces do not count");
    writer.write(b"more").expect("a working disk");
    assert_eq!(writer.finish().expect("a working disk"), [there[0].clone(), path]);
    assert_eq!(
        PieceWriter::continue_after(there.clone(), Target::None).finish().expect("nothing can fail"),
        there
    );
}
