//! Counts words with at least `word.length` letters. The default of this setting is 1.
//!
//! Run it locally:
//!
//!     cargo run --release -- --local some.txt out --conf word.length=4
//!
//! Run it on a cluster:
//!
//!     mrctl submit target/release/wordcount-job --input /books --output /counts --reduces 2

use mrlib::{Conf, Context, Counter, Emit, Job, Mapper, Reducer, TaskError, Values, settings::Kind};

/// Emits each word with the count 1.
struct Words {
    min_length: usize,
    short_words: Option<Counter>,
}

impl Mapper for Words {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        _offset: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let short_words = *self.short_words.get_or_insert_with(|| context.counter("SHORT_WORDS"));
        for word in line.split(|byte| !byte.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
            if word.len() >= self.min_length {
                out.emit(&word.to_ascii_lowercase(), b"1")?;
            } else {
                context.add(short_words, 1);
            }
        }
        Ok(())
    }
}

/// Adds up the counts of a word. It is also the combiner, because its output has the format of its
/// input.
struct Sum;

impl Reducer for Sum {
    fn reduce(
        &mut self,
        word: &[u8],
        counts: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut sum = 0;
        while let Some(count) = counts.next()? {
            let text = str::from_utf8(count).map_err(|error| error.to_string())?;
            sum += text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"))?;
        }
        out.emit(word, sum.to_string().as_bytes())
    }
}

/// Creates the job.
pub fn job(_conf: &Conf) -> Job {
    let words = |conf: &Conf| Ok(Words { min_length: conf.parse("word.length", 1)?, short_words: None });
    let length = Kind::Count { min: 1, max: 1000 };
    let job = Job::map(words).declare_setting("word.length", length, "the shortest word that counts");
    job.combine(|_| Ok(Sum)).reduce(|_| Ok(Sum))
}

fn main() {
    mrlib::run(job)
}
