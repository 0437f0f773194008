//! The records of the sort benchmark: 100 bytes with a random key of 10 bytes, the number of the
//! record, and filler.
//!
//! Random numbers are a 128-bit linear congruential sequence that starts at zero. Record n uses
//! X(n+1), and any record can be computed in about 128 steps. The checksum of a set of records is
//! the sum of their CRC-32s, so the checksums of parts can be added.

/// Bytes in a record.
pub const RECORD_BYTES: usize = 100;
/// Bytes of the key of a record.
pub(super) const KEY_BYTES: usize = 10;

/// The multiplier of the random sequence.
const A: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
/// The increment of the random sequence.
const C: u128 = 0x4a69_6d47_7261_7952_4950_2020_2020_2001;

/// Generates records, starting with any record.
#[derive(Debug, Clone)]
pub struct Records {
    /// The number of the next record.
    next: u128,
    /// The last random number.
    random: u128,
}

impl Records {
    /// Starts at record `first`.
    pub fn from(first: u64) -> Self {
        Self { next: u128::from(first), random: jump(u128::from(first)) }
    }

    /// Writes the next record.
    pub fn fill(&mut self, record: &mut [u8; RECORD_BYTES]) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        self.random = self.random.wrapping_mul(A).wrapping_add(C);
        let random = self.random.to_be_bytes();
        record[..10].copy_from_slice(&random[..10]);
        record[10..12].copy_from_slice(&[0x00, 0x11]);
        for (at, byte) in record[12..44].iter_mut().enumerate() {
            *byte = DIGITS[(self.next >> (4 * (31 - at))) as usize & 15];
        }
        record[44..48].copy_from_slice(&[0x88, 0x99, 0xaa, 0xbb]);
        for (at, four) in record[48..96].chunks_exact_mut(4).enumerate() {
            let byte = random[10 + at / 2];
            let nibble = if at % 2 == 0 { byte >> 4 } else { byte & 15 };
            four.fill(DIGITS[usize::from(nibble)]);
        }
        record[96..].copy_from_slice(&[0xcc, 0xdd, 0xee, 0xff]);
        self.next += 1;
    }
}

/// Computes X(n) by repeatedly composing the step x → A·x + C with itself.
fn jump(n: u128) -> u128 {
    let (mut scale, mut shift) = (1_u128, 0_u128);
    let (mut step_scale, mut step_shift) = (A, C);
    let mut left = n;
    while left > 0 {
        if left & 1 == 1 {
            scale = scale.wrapping_mul(step_scale);
            shift = shift.wrapping_mul(step_scale).wrapping_add(step_shift);
        }
        step_shift = step_shift.wrapping_mul(step_scale).wrapping_add(step_shift);
        step_scale = step_scale.wrapping_mul(step_scale);
        left >>= 1;
    }
    // X(0) is zero, so only the shift remains.
    shift
}

/// The sum of the CRC-32s of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checksum(pub u128);

impl Checksum {
    /// Adds a record.
    pub fn add(&mut self, record: &[u8]) {
        self.0 += u128::from(crc32fast::hash(record));
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    fn record(number: u64) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        Records::from(number).fill(&mut record);
        record
    }

    #[test]
    fn first_records_equal_those_of_the_benchmark() {
        assert!(hex(&record(0)).starts_with("4a696d47726179524950001130303030"));
        assert!(hex(&record(0)).ends_with("30303030303030303131313 1ccddeeff".replace(' ', "").as_str()));
        assert!(hex(&record(1)).starts_with("95e0e48262b3edfe04470011"));
        assert!(hex(&record(2)).starts_with("45979353dbed5329365c0011"));
    }

    #[test]
    fn generator_starts_at_any_record_and_checksums_match_the_benchmark() {
        let mut run = Records::from(0);
        let mut sum = Checksum::default();
        let mut one = [0; RECORD_BYTES];
        for number in 0..10_000 {
            run.fill(&mut one);
            sum.add(&one);
            if number % 997 == 0 {
                assert_eq!(one, record(number), "record {number}");
            }
            if number == 999 {
                assert_eq!(sum.to_string(), "1f9ffe645ec");
            }
        }
        assert_eq!(sum.to_string(), "139abefd74b2");
    }
}
