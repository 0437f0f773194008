//! A table that assigns numbers to the names of hosts and racks.

use std::collections::BTreeMap;

/// A table of reference-counted strings. Names of hosts and racks are few and compared often, so
/// the cluster stores their numbers. A string keeps its number while it is in use. After that, the
/// number is assigned to another string, so the table grows only with the number of strings that
/// are in use at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct NameTable {
    numbers: BTreeMap<String, u32>,
    /// The string and the reference count of each number. Unused numbers have an empty string.
    texts: Vec<(String, u64)>,
    unused_numbers: Vec<u32>,
}

impl NameTable {
    /// Returns the number of a string and increments its reference count.
    pub(super) fn acquire(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            self.texts[*number as usize].1 += 1;
            return *number;
        }
        let number = self.unused_numbers.pop().unwrap_or_else(|| {
            self.texts.push((String::new(), 0));
            self.texts.len() as u32 - 1
        });
        self.numbers.insert(text.to_owned(), number);
        self.texts[number as usize] = (text.to_owned(), 1);
        number
    }

    /// Decrements the reference count of a number.
    pub(super) fn release(&mut self, number: u32) {
        let (text, uses) = &mut self.texts[number as usize];
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(&std::mem::take(text));
            self.unused_numbers.push(number);
        }
    }

    /// Returns the string with this number, which must be in use.
    pub(super) fn text(&self, number: u32) -> &str {
        &self.texts[number as usize].0
    }

    /// Returns the number of entries in the table, used and unused: the maximum number of strings
    /// that were in use at the same time.
    #[cfg(test)]
    pub(super) fn entry_count(&self) -> usize {
        self.texts.len()
    }

    /// Returns the reference count of every string.
    pub(super) fn reference_counts(&self) -> BTreeMap<&str, u64> {
        self.numbers.iter().map(|(text, number)| (text.as_str(), self.texts[*number as usize].1)).collect()
    }
}
