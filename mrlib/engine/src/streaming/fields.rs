//! How lines are divided into keys and values and joined again, and which parts of keys decide about
//! partition and order.
//!
//! The names of the settings of lines are those of Hadoop streaming, and so are their meanings:
//! the key of a line are its first fields, and a line with fewer separators is a key without a
//! value.

use super::lines::split_pair;
use memchr::memmem;
use mrlib_api::{Conf, Job, KeyFields, KeyOrder, Partitioner, TaskError, settings::invalid_value};

/// The separator between key and value in the input of the mapper.
pub const MAP_INPUT_SEPARATOR: &str = "stream.map.input.field.separator";
/// The separator of fields in the output of the mapper.
pub const MAP_OUTPUT_SEPARATOR: &str = "stream.map.output.field.separator";
/// The number of fields of the key in the output of the mapper.
pub const MAP_OUTPUT_FIELDS: &str = "stream.num.map.output.key.fields";
/// The separator between key and value in the input of combiner and reducer.
pub const REDUCE_INPUT_SEPARATOR: &str = "stream.reduce.input.field.separator";
/// The separator of fields in the output of the reducer.
pub const REDUCE_OUTPUT_SEPARATOR: &str = "stream.reduce.output.field.separator";
/// The number of fields of the key in the output of the reducer.
pub const REDUCE_OUTPUT_FIELDS: &str = "stream.num.reduce.output.key.fields";
/// The separator between key and value in the output of the job.
pub const OUTPUT_SEPARATOR: &str = "stream.output.field.separator";
/// Whether the mapper gets only the values of records that have keys.
pub const IGNORE_KEY: &str = "stream.map.input.ignoreKey";
/// The separator of fields within a key, for [`PARTITION_FIELDS`] and [`SORT_FIELDS`].
pub const KEY_SEPARATOR: &str = "stream.key.field.separator";
/// The parts of a key that decide about its partition.
pub const PARTITION_FIELDS: &str = "stream.partition.fields";
/// The parts of a key by which pairs are sorted.
pub const SORT_FIELDS: &str = "stream.sort.fields";

const TAB: &[u8] = b"\t";

/// Returns the separator of this setting.
pub(super) fn separator(conf: &Conf, name: &str) -> Result<Vec<u8>, TaskError> {
    match conf.get(name) {
        Some("") => Err(invalid_value(name, "", "at least one character").into()),
        text => Ok(text.map_or(TAB, str::as_bytes).to_vec()),
    }
}

/// How lines are divided into key and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LineFormat {
    separator: Vec<u8>,
    /// The number of fields of a key.
    fields: usize,
}

impl LineFormat {
    pub(super) fn of_map_output(conf: &Conf) -> Result<Self, TaskError> {
        Self::of(conf, MAP_OUTPUT_SEPARATOR, MAP_OUTPUT_FIELDS)
    }

    pub(super) fn of_reduce_output(conf: &Conf) -> Result<Self, TaskError> {
        Self::of(conf, REDUCE_OUTPUT_SEPARATOR, REDUCE_OUTPUT_FIELDS)
    }

    /// Returns the format of the output of a combiner. If it reads keys as the mapper has written
    /// them, its keys have as many fields as those of the mapper.
    pub(super) fn of_combiner_output(conf: &Conf) -> Result<Self, TaskError> {
        let map = Self::of_map_output(conf)?;
        let same = map.separator == separator(conf, REDUCE_INPUT_SEPARATOR)?;
        if same { Ok(map) } else { Self::of_reduce_output(conf) }
    }

    fn of(conf: &Conf, name: &str, fields: &str) -> Result<Self, TaskError> {
        Ok(Self { separator: separator(conf, name)?, fields: conf.parse(fields, 1)? })
    }

    /// Divides a line into key and value.
    pub(super) fn split<'a>(&self, line: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        if self.fields == 1 && self.separator == TAB {
            return split_pair(line);
        }
        let end = match self.fields.checked_sub(1) {
            Some(before) => memmem::find_iter(line, &self.separator).nth(before),
            None => None,
        };
        match end {
            Some(end) => (&line[..end], &line[end + self.separator.len()..]),
            None => (line, b""),
        }
    }
}

/// How lines of a program become lines of the output of the job.
#[derive(Debug)]
pub(super) struct OutputLines {
    format: LineFormat,
    /// The separator of the output, if it differs from that of the program.
    separator: Option<Vec<u8>>,
    line: Vec<u8>,
}

impl OutputLines {
    pub(super) fn new(format: LineFormat, conf: &Conf) -> Result<Self, TaskError> {
        let separator = Some(separator(conf, OUTPUT_SEPARATOR)?).filter(|text| *text != format.separator);
        Ok(Self { format, separator, line: Vec::new() })
    }

    /// Returns the line of the output for a line of the program.
    pub(super) fn line<'a>(&'a mut self, line: &'a [u8]) -> &'a [u8] {
        let Some(separator) = &self.separator else { return line };
        let (key, value) = self.format.split(line);
        if key.len() == line.len() {
            return line;
        }
        self.line.clear();
        for part in [key, separator, value] {
            self.line.extend_from_slice(part);
        }
        &self.line
    }
}

/// Sets partitioner and order of keys.
pub(super) fn apply(conf: &Conf, mut job: Job) -> Result<Job, TaskError> {
    let [separator] = separator(conf, KEY_SEPARATOR)?[..] else {
        let text = conf.get(KEY_SEPARATOR).unwrap_or_default();
        return Err(invalid_value(KEY_SEPARATOR, text, "one byte").into());
    };
    let fields = |name: &str| {
        let parse = |text| KeyFields::parse(text, separator).map_err(|why| format!("setting {name} = {why}"));
        conf.get(name).map(parse).transpose()
    };
    if let Some(fields) = fields(SORT_FIELDS)? {
        job.order = KeyOrder::Fields(fields);
    }
    if let Some(fields) = fields(PARTITION_FIELDS)? {
        job = job.partition(move |_| Ok(FieldPartitioner(fields)));
    }
    Ok(job)
}

/// Partitions by a hash of parts of the key: the one of Hadoop's `KeyFieldBasedPartitioner`.
struct FieldPartitioner(KeyFields);

impl Partitioner for FieldPartitioner {
    fn partition(&self, key: &[u8], _value: &[u8], partitions: u32) -> u32 {
        let mut hash = 0_i32;
        for byte in self.0.of(key).flatten() {
            hash = hash.wrapping_mul(31).wrapping_add(i32::from(byte.cast_signed()));
        }
        hash.cast_unsigned() % (1 << 31) % partitions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(settings: &[(&str, &str)]) -> Conf {
        settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn text<'a>((key, value): (&'a [u8], &'a [u8])) -> (&'a str, &'a str) {
        (std::str::from_utf8(key).unwrap(), std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn key_has_as_many_fields_as_set() {
        let format = |separator, fields| {
            LineFormat::of_map_output(&conf(&[
                (MAP_OUTPUT_SEPARATOR, separator),
                (MAP_OUTPUT_FIELDS, fields),
            ]))
            .unwrap()
        };
        assert_eq!(text(format(".", "4").split(b"11.12.1.2.3")), ("11.12.1.2", "3"));
        assert_eq!(text(format(".", "4").split(b"11.12")), ("11.12", ""));
        assert_eq!(text(format("::", "1").split(b"a:b::c::d")), ("a:b", "c::d"));
        assert_eq!(text(format("\t", "2").split(b"a\tb\tc")), ("a\tb", "c"));
        assert!(LineFormat::of_map_output(&conf(&[(MAP_OUTPUT_SEPARATOR, "")])).is_err());
    }

    #[test]
    fn output_has_its_own_separator() {
        let conf = conf(&[(REDUCE_OUTPUT_SEPARATOR, ","), (OUTPUT_SEPARATOR, "=")]);
        let mut lines = OutputLines::new(LineFormat::of_reduce_output(&conf).unwrap(), &conf).unwrap();
        assert_eq!(lines.line(b"a,b,c"), b"a=b,c");
        assert_eq!(lines.line(b"abc"), b"abc");
    }

    #[test]
    fn equal_parts_go_to_the_same_partition() {
        let conf = conf(&[(PARTITION_FIELDS, "-k1,2"), (KEY_SEPARATOR, ".")]);
        let job = apply(&conf, super::super::job(&self::conf(&[(super::super::MAPPER, "cat")])).unwrap());
        let partitioner = (job.unwrap().partitioner.unwrap())(&conf).unwrap();
        let of = |key: &[u8]| partitioner.partition(key, b"", 7);
        assert_eq!(of(b"11.12.1.2"), of(b"11.12.9"));
        let all: std::collections::BTreeSet<u32> =
            (0..100).map(|n| of(format!("{n}.a.b").as_bytes())).collect();
        assert_eq!(all, (0..7).collect());
        // 31 * (31 * 'a' + '.') + 'b' = 31 * (31 * 97 + 46) + 98 = 94,741.
        assert_eq!(partitioner.partition(b"a.b", b"", 1_000_000), 94_741);
    }
}
