//! The sort benchmark: generates records, sorts them, and checks the result.

use super::gensort::{Checksum, KEY_BYTES, RECORD_BYTES, Records};
use mrlib_api::{
    Conf, Context, Counter, Emit, IdentityReducer, InputFormat, Job, Mapper, OutputFormat, Reducer,
    StateBetweenKeys, TaskError, Values,
};

/// Generates records. Each input line is `FIRST COUNT`: the number of the first record, and how
/// many records to generate.
struct Generate {
    records_made: Option<Counter>,
}

impl Mapper for Generate {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        _key: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let wrong = || {
            TaskError::from(
                "teragen reads lines FIRST COUNT (the number of the first row, and how many rows); without --input it makes \
                 them from --conf rows=N",
            )
        };
        let text = std::str::from_utf8(line).map_err(|_| wrong())?;
        let (first, count) = text.split_once(' ').ok_or_else(wrong)?;
        let (first, count): (u64, u64) =
            (first.parse().map_err(|_| wrong())?, count.parse().map_err(|_| wrong())?);
        let made = *self.records_made.get_or_insert_with(|| context.counter("RECORDS_MADE"));
        let mut records = Records::from(first);
        let mut record = [0; RECORD_BYTES];
        for _ in 0..count {
            records.fill(&mut record);
            let (key, value) = record.split_at(KEY_BYTES);
            out.emit(key, value)?;
        }
        context.add(made, count);
        Ok(())
    }
}

pub(super) fn generate(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(Generate { records_made: None })).write(OutputFormat::Raw))
}

struct Identity;

impl Mapper for Identity {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(key, value)
    }
}

const TERA_FORMAT: InputFormat = InputFormat::Fixed { record: RECORD_BYTES, key: KEY_BYTES };

pub(super) fn sort(_conf: &Conf) -> Result<Job, TaskError> {
    let job = Job::map(|_| Ok(Identity)).reduce(|_| Ok(IdentityReducer));
    Ok(job.read(TERA_FORMAT).write(OutputFormat::Raw).totally_ordered())
}

/// Summary of the records that a map has read, enough to check the order across maps.
#[derive(Default)]
struct Summary {
    source: String,
    start: u64,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    records: u64,
    checksum: Checksum,
    out_of_order: u64,
}

/// Checks the order within a split.
#[derive(Default)]
struct Validate {
    summary: Summary,
    record: Vec<u8>,
}

impl Mapper for Validate {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        _out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let summary = &mut self.summary;
        if summary.records == 0 {
            context.source().clone_into(&mut summary.source);
            summary.start = context.start();
            summary.first_key = key.to_vec();
        } else if key < summary.last_key.as_slice() {
            summary.out_of_order += 1;
        }
        summary.last_key.clear();
        summary.last_key.extend_from_slice(key);
        summary.records += 1;
        self.record.clear();
        self.record.extend_from_slice(key);
        self.record.extend_from_slice(value);
        summary.checksum.add(&self.record);
        Ok(())
    }

    /// Emits one pair per map, sorted by file and offset: first key, last key, records, checksum,
    /// records out of order.
    fn finish(&mut self, out: &mut dyn Emit, _context: &mut Context) -> Result<(), TaskError> {
        let summary = &self.summary;
        if summary.records == 0 {
            return Ok(());
        }
        let mut file_and_offset = summary.source.clone().into_bytes();
        file_and_offset.push(0);
        file_and_offset.extend_from_slice(&summary.start.to_be_bytes());
        let mut value = [summary.first_key.as_slice(), &summary.last_key].concat();
        value.extend_from_slice(&summary.records.to_le_bytes());
        value.extend_from_slice(&summary.checksum.0.to_le_bytes());
        value.extend_from_slice(&summary.out_of_order.to_le_bytes());
        out.emit(&file_and_offset, &value)
    }
}

/// Checks the order between maps, and adds up the counts.
#[derive(Default)]
struct ValidateReducer {
    last_key: Vec<u8>,
    records: u64,
    checksum: Checksum,
    out_of_order: u64,
}

impl Reducer for ValidateReducer {
    fn reduce(
        &mut self,
        file_and_offset: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        const LEN: usize = 2 * KEY_BYTES + 8 + 16 + 8;
        while let Some(value) = values.next()? {
            let value: &[u8; LEN] =
                value.try_into().map_err(|_| TaskError::from("a summary has an invalid length"))?;
            let (first, rest) = value.split_at(KEY_BYTES);
            let (last, rest) = rest.split_at(KEY_BYTES);
            if first < self.last_key.as_slice() {
                self.out_of_order += 1;
                let file = file_and_offset.split(|byte| *byte == 0).next().unwrap_or_default();
                out.emit(b"misplaced", file)?;
            }
            self.last_key = last.to_vec();
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| rest[at + i]));
            self.records += number(0);
            self.checksum.0 += u128::from_le_bytes(std::array::from_fn(|i| rest[8 + i]));
            self.out_of_order += number(24);
        }
        Ok(())
    }

    fn state_between_keys(&self) -> StateBetweenKeys {
        StateBetweenKeys::Savable
    }

    fn save(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<Vec<u8>, TaskError> {
        let mut state = self.records.to_le_bytes().to_vec();
        state.extend_from_slice(&self.out_of_order.to_le_bytes());
        state.extend_from_slice(&self.checksum.0.to_le_bytes());
        state.extend_from_slice(&self.last_key);
        Ok(state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), TaskError> {
        let short = || TaskError::from("the saved state has an invalid length");
        let (records, rest) = state.split_first_chunk().ok_or_else(short)?;
        let (out_of_order, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (checksum, last) = rest.split_first_chunk().ok_or_else(short)?;
        (self.records, self.out_of_order) = (u64::from_le_bytes(*records), u64::from_le_bytes(*out_of_order));
        (self.checksum.0, self.last_key) = (u128::from_le_bytes(*checksum), last.to_vec());
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let out_of_order = context.counter("RECORDS_OUT_OF_ORDER");
        context.add(out_of_order, self.out_of_order);
        out.emit(b"records", self.records.to_string().as_bytes())?;
        out.emit(b"checksum", self.checksum.to_string().as_bytes())?;
        out.emit(b"out-of-order", self.out_of_order.to_string().as_bytes())
    }
}

/// Uses one reduce, which sees all summaries in order.
pub(super) fn validate(_conf: &Conf) -> Result<Job, TaskError> {
    Ok(Job::map(|_| Ok(Validate::default())).reduce(|_| Ok(ValidateReducer::default())).read(TERA_FORMAT))
}
