//! Writes the jobs of a comparison as Parquet: the same rows and columns as CSV. Only with the
//! feature `parquet`, because its dependencies take long to compile.

use super::sim_json::{self, Details};
use anyhow::Result;
use parquet::{
    basic::{Compression, LogicalType, Repetition, Type as Physical},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type},
    file::{metadata::KeyValue, properties::WriterProperties, writer::SerializedFileWriter},
    schema::types::Type,
};
use serde_json::{Map, Value};
use sim::experiment::Comparison;
use std::{path::Path, sync::Arc};

/// Writes all jobs of all policies and seeds to a file. The key `made_by` of its metadata says how
/// they were made.
pub(crate) fn write(path: &Path, details: &Details, comparison: &Comparison) -> Result<()> {
    let rows = sim_json::job_rows(details, comparison);
    super::outputs::write_with(path, |file| Ok(write_rows(file, &rows, &details.provenance.line())?))
}

/// Writes objects with the same keys. A column may have nulls.
fn write_rows(
    file: impl std::io::Write + Send,
    rows: &[Map<String, Value>],
    made_by: &str,
) -> parquet::errors::Result<()> {
    let names: Vec<&String> = rows.first().into_iter().flat_map(Map::keys).collect();
    let column =
        |name: &str| rows.iter().map(|row| row.get(name).unwrap_or(&Value::Null)).collect::<Vec<_>>();
    let mut fields = Vec::new();
    for name in &names {
        let physical = physical_type(name);
        let logical = (physical == Physical::BYTE_ARRAY).then_some(LogicalType::String);
        let field = Type::primitive_type_builder(name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .build()?;
        fields.push(Arc::new(field));
    }
    let schema = Arc::new(Type::group_type_builder("jobs").with_fields(fields).build()?);
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_key_value_metadata(Some(vec![KeyValue::new("made_by".to_owned(), made_by.to_owned())]))
        .build();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for name in names {
        let Some(mut writer) = group.next_column()? else { break };
        let values = column(name);
        match physical_type(name) {
            Physical::BOOLEAN => write_column::<BoolType>(&mut writer, &values, Value::as_bool)?,
            Physical::INT64 => write_column::<Int64Type>(&mut writer, &values, Value::as_i64)?,
            Physical::DOUBLE => write_column::<DoubleType>(&mut writer, &values, Value::as_f64)?,
            _ => write_column::<ByteArrayType>(&mut writer, &values, |value| {
                value.as_str().map(ByteArray::from)
            })?,
        }
        writer.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

/// Returns the type of a column. It depends on the name only, so that files with different jobs have the
/// same schema.
fn physical_type(column: &str) -> Physical {
    match column {
        "policy" | "job" | "name" | "group" | "user" | "failure" => Physical::BYTE_ARRAY,
        "seed" | "maps" | "reduces" | "input_bytes" | "preempted" => Physical::INT64,
        "succeeded" => Physical::BOOLEAN,
        _ => Physical::DOUBLE,
    }
}

/// Writes the values of a column. The level of a null is 0, that of others 1.
fn write_column<T: DataType>(
    writer: &mut parquet::file::writer::SerializedColumnWriter<'_>,
    values: &[&Value],
    read: impl Fn(&Value) -> Option<T::T>,
) -> parquet::errors::Result<()> {
    let read: Vec<Option<T::T>> = values.iter().map(|value| read(value)).collect();
    let levels: Vec<i16> = read.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = read.into_iter().flatten().collect();
    writer.typed::<T>().write_batch(&present, Some(&levels), None).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::Field,
    };
    use serde_json::json;
    use sim::{
        PerPhase, Setup,
        experiment::{Experiment, Variant},
        profile,
        workload::papers,
    };

    #[test]
    fn rows_are_read_back_with_their_types_nulls_and_provenance() {
        let rows = [
            json!({"completion_s": 1.5, "job": "job_1", "maps": 3, "succeeded": true, "failure": null}),
            json!({"completion_s": null, "job": "job_2", "maps": 4, "succeeded": false, "failure": null}),
        ];
        let rows = rows.map(|row| row.as_object().cloned().expect("an object"));
        let mut file = tempfile::tempfile().expect("a temporary file");
        write_rows(&mut file, &rows, "a test").expect("valid rows");
        let reader = SerializedFileReader::new(file).expect("a Parquet file");
        let metadata = reader.metadata().file_metadata().key_value_metadata().expect("metadata");
        assert!(metadata.iter().any(|pair| pair.key == "made_by" && pair.value.as_deref() == Some("a test")));
        let schema = reader.metadata().file_metadata().schema_descr();
        let types: Vec<Physical> =
            (0..schema.num_columns()).map(|at| schema.column(at).physical_type()).collect();
        let (double, text) = (Physical::DOUBLE, Physical::BYTE_ARRAY);
        // In the order of the names; also a column of nulls has the type of its name.
        assert_eq!(types, [double, text, text, Physical::INT64, Physical::BOOLEAN]);
        let value = |field: &Field| match field {
            Field::Null => Value::Null,
            Field::Bool(value) => json!(value),
            Field::Long(value) => json!(value),
            Field::Double(value) => json!(value),
            Field::Str(value) => json!(value),
            other => panic!("unexpected type: {other:?}"),
        };
        let read: Vec<Map<String, Value>> = reader
            .get_row_iter(None)
            .expect("rows")
            .map(|row| {
                let row = row.expect("a row");
                row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
            })
            .collect();
        assert_eq!(read, rows);
    }

    /// Otherwise a value would be written as null.
    #[test]
    fn every_value_of_a_job_has_the_type_of_its_column() {
        let experiment = Experiment {
            setup: Setup::even(2, PerPhase { map: 2, reduce: 1 }, "fifo"),
            faults: None,
            workload: &|seed| papers::hsrtf(&profile::built_in(), seed),
            users: Vec::new(),
            variants: vec![Variant::plain("fifo")],
            seeds: 1..2,
            limit: Some(sim::Span::secs(200)),
            alone: false,
            monitor: None,
        };
        let comparison = experiment.run().expect("it runs");
        let Value::Array(jobs) = sim_json::jobs(&comparison, 0) else { panic!("an array") };
        assert!(jobs.iter().any(|job| !job["completion_s"].is_null()), "{jobs:?}");
        for (name, value) in jobs.iter().filter_map(Value::as_object).flatten() {
            let fits = match physical_type(name) {
                Physical::BOOLEAN => value.is_boolean(),
                Physical::INT64 => value.is_i64(),
                Physical::DOUBLE => value.is_f64(),
                _ => value.is_string(),
            };
            assert!(fits || value.is_null(), "{name}: {value}");
        }
    }
}
