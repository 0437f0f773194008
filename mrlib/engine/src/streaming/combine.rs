//! Runs the combiner program over sorted portions of the output of the mapper program.

use super::{COMBINER, StreamReducer, fields::LineFormat};
use mrlib_api::{Conf, Context, Emit, Reducer as _, TaskError};

/// Bytes of keys and values in a portion.
const PORTION_BYTES: usize = 16 << 20;

/// Collects pairs. Each full portion is processed by a new combiner process.
pub(super) struct PortionCombiner {
    conf: Conf,
    /// The format of the lines of the mapper.
    format: LineFormat,
    bytes: Vec<u8>,
    pairs: Vec<Pair>,
}

struct Pair {
    start: usize,
    key_bytes: usize,
    value_bytes: usize,
}

impl PortionCombiner {
    pub(super) fn new(conf: Conf, format: LineFormat) -> Self {
        Self { conf, format, bytes: Vec::new(), pairs: Vec::new() }
    }

    /// Adds a line of the mapper.
    pub(super) fn add(
        &mut self,
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let (key, value) = self.format.split(line);
        self.pairs.push(Pair { start: self.bytes.len(), key_bytes: key.len(), value_bytes: value.len() });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        if self.bytes.len() >= PORTION_BYTES { self.flush(out, context) } else { Ok(()) }
    }

    /// Combines the collected pairs.
    pub(super) fn flush(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        let bytes = &self.bytes;
        let key = |pair: &Pair| &bytes[pair.start..pair.start + pair.key_bytes];
        self.pairs.sort_by(|a, b| key(a).cmp(key(b)));
        let mut combiner = StreamReducer::of(COMBINER, &self.conf)?;
        let mut counted = CountedOutput { out, records: 0 };
        for pair in &self.pairs {
            let value_start = pair.start + pair.key_bytes;
            let value = &bytes[value_start..value_start + pair.value_bytes];
            combiner.add(key(pair), value, &mut counted, context)?;
        }
        combiner.finish(&mut counted, context)?;
        context.add_map_output(self.pairs.len() as u64, self.bytes.len() as u64);
        let combined =
            [("COMBINE_INPUT_RECORDS", self.pairs.len() as u64), ("COMBINE_OUTPUT_RECORDS", counted.records)];
        for (name, records) in combined {
            let counter = context.counter(name);
            context.add(counter, records);
        }
        self.pairs.clear();
        self.bytes.clear();
        Ok(())
    }
}

struct CountedOutput<'a> {
    out: &'a mut dyn Emit,
    records: u64,
}

impl Emit for CountedOutput<'_> {
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.records += 1;
        self.out.emit(key, value)
    }
}
