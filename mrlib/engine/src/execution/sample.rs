//! Samples the keys of a job, to divide them into ranges of similar size.

use crate::{
    input::{self, ByteSource, Flow, SplitSpec},
    settings::Settings,
};
use mrlib_api::{Conf, Context, Emit, Job, TaskError, codec::Coding};

/// Bytes read at each sampled position.
const SAMPLE_BYTES: u64 = 64 << 10;
/// Number of sampled positions.
const SAMPLED_POSITIONS: u64 = 64;

/// Opens an input file by its path.
pub type OpenInput<'a> = dyn FnMut(&str) -> Result<Box<dyn ByteSource>, TaskError> + 'a;

/// Samples about `keys` keys that the mapper emits for records at positions spread evenly over the
/// input `files` (path and length). `open` opens an input file. Pass the result to
/// [`crate::partition::encode_splits`].
pub fn sample_keys(
    job: &Job,
    conf: &Conf,
    files: &[(String, u64)],
    keys: usize,
    open: &mut OpenInput<'_>,
) -> Result<Vec<Vec<u8>>, TaskError> {
    let settings = Settings::new(job, conf)?;
    let total: u64 = files.iter().map(|file| file.1).sum();
    let places = SAMPLED_POSITIONS.min(total.div_ceil(SAMPLE_BYTES));
    let mut sample = Sample { keys: Vec::new(), until: 0 };
    let mut context = Context::default();
    for place in 0..places {
        let mut at = total / places * place;
        let Some((path, length)) = files.iter().find(|file| {
            let here = at < file.1;
            at -= if here { 0 } else { file.1 };
            here
        }) else {
            break;
        };
        // A compressed file can only be read from its start.
        let coding =
            settings.codec.coding_by_name(path).map_err(|error| TaskError::Fatal(error.to_string()))?;
        let start = if coding == Coding::Gzip { 0 } else { at };
        let spec = SplitSpec {
            path: path.clone(),
            range: start..length.min(&(start + SAMPLE_BYTES)).to_owned(),
            format: settings.input,
            record_bytes_max: settings.record_bytes_max,
            codec: settings.codec,
            skip_bad: settings.skip_records > 0,
        };
        sample.until = keys * (place as usize + 1) / places as usize;
        let mut mapper = (job.mapper)(conf)?;
        let mut records = input::open_split(spec, open(path)?)?;
        let mut full = false;
        while !full
            && records.pump(&mut |record| {
                match mapper.map(record.key, record.value, &mut sample, &mut context) {
                    Err(TaskError::Program(_) | TaskError::Record { .. }) if settings.skip_records > 0 => {}
                    mapped => mapped?,
                }
                full = sample.keys.len() >= sample.until;
                Ok(if full { Flow::Stop } else { Flow::Go })
            })?
        {}
    }
    Ok(sample.keys)
}

struct Sample {
    keys: Vec<Vec<u8>>,
    /// Total number of keys at which sampling moves to the next position.
    until: usize,
}

impl Emit for Sample {
    fn emit(&mut self, key: &[u8], _value: &[u8]) -> Result<(), TaskError> {
        if self.keys.len() < self.until {
            self.keys.push(key.to_vec());
        }
        Ok(())
    }
}
