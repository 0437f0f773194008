//! Experiments on real clusters: benchmarks, faults and soak tests, and trials that compare the
//! simulator with a cluster. The commands are `mrctl bench`, `mrctl chaos` and `mrctl verify`.

pub mod bench;
pub mod chaos;
pub mod trial;
pub mod verify;

use anyhow::Result;
use serde_json::Value;
use view::output;

/// Prints a result as JSON that is also an archive ([`sim::report::archive`]). `provenance` has the
/// command, the version and the commit.
fn print_archive(mut result: Value, provenance: &Value) -> Result<()> {
    if let (Value::Object(result), Value::Object(provenance)) = (&mut result, provenance) {
        result.extend(provenance.clone());
    }
    output::json(&result)
}
