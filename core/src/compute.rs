//! Long computations of policies, which run outside of the state machine.
//!
//! A policy that has to solve a large problem (a linear program, a clustering) passes a [`Problem`]
//! to the driver and continues with its last solution. The solution arrives as an event. The daemon
//! runs [`Problem::solve`] on another thread, the simulator calls it directly. Input and output are
//! named lists of numbers, so that effects and events can be compared and printed.

use std::{collections::BTreeMap, fmt};

/// Named lists of numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Numbers(BTreeMap<&'static str, Vec<f64>>);

impl Numbers {
    /// Adds or replaces a list.
    #[must_use]
    pub fn with(mut self, name: &'static str, list: Vec<f64>) -> Self {
        self.0.insert(name, list);
        self
    }

    /// Returns the list with this name, or an empty list.
    pub fn list(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the first number of the list with this name.
    pub fn first_number(&self, name: &str) -> Option<f64> {
        self.list(name).first().copied()
    }

    /// Returns whether there are no lists.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A computation to run outside of the state machine.
#[derive(Clone)]
pub struct Problem {
    /// The name of the problem, for logs.
    pub name: &'static str,
    pub input: Numbers,
    /// A pure function: the same input gives the same output.
    pub solve: fn(&Numbers) -> Numbers,
}

impl Problem {
    /// Computes the solution of the problem.
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
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}
