//! Long computations, as plain data on their way out and back.
//!
//! A policy that has to solve something large (a linear program, a clustering) hands a [`Problem`] to whoever drives the core
//! and continues with the last solution; the answer comes back as an event. Daemon and simulator run
//! [`Problem::solve`] wherever they like. Named lists of numbers keep effects and events comparable and printable.

use std::{collections::BTreeMap, fmt};

/// Named lists of numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Numbers(BTreeMap<&'static str, Vec<f64>>);

impl Numbers {
    /// With this list too.
    #[must_use]
    pub fn with(mut self, name: &'static str, list: Vec<f64>) -> Self {
        self.0.insert(name, list);
        self
    }

    /// The list of this name; empty if there is none.
    pub fn list(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// The first number of this list.
    pub fn one(&self, name: &str) -> Option<f64> {
        self.list(name).first().copied()
    }

    /// Whether there is no list.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Something to be solved.
#[derive(Clone)]
pub struct Problem {
    /// What, for logs.
    pub name: &'static str,
    /// What is known.
    pub input: Numbers,
    /// How it is solved: pure, and the same for the same input.
    pub solve: fn(&Numbers) -> Numbers,
}

impl Problem {
    /// The answer.
    pub fn solve(&self) -> Numbers {
        (self.solve)(&self.input)
    }
}

impl PartialEq for Problem {
    fn eq(&self, other: &Self) -> bool {
        (self.name, &self.input) == (other.name, &other.input)
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Problem")
            .field("name", &self.name)
            .field("given", &self.input)
            .finish_non_exhaustive()
    }
}
