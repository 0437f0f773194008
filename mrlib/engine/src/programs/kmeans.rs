//! One round of k-means over lines of numbers.
//!
//! The centroids are lines of numbers in a side file (`--file`), named by `kmeans.centroids`. Each
//! point is assigned to the nearest centroid. The output has one new centroid per line: its index,
//! a tab, its coordinates. Run the program again with this output for the next round.

use mrlib_api::{Conf, Context, Counter, Emit, Job, Mapper, Reducer, TaskError, Values};

fn parse_numbers(line: &str) -> Option<Vec<f64>> {
    let parts = line.split(|c: char| c == ',' || c.is_ascii_whitespace()).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().ok().filter(|number: &f64| number.is_finite())).collect()
}

/// Returns the name of the file with the centroids.
pub(crate) fn side_file(conf: &Conf) -> &str {
    conf.get("kmeans.centroids").unwrap_or("centroids")
}

fn read_centroids(file: &str) -> Result<Vec<Vec<f64>>, TaskError> {
    let text = std::fs::read_to_string(file).map_err(TaskError::io(format!("read centroids {file}")))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    // The output of a round has the index of the centroid and a tab before the coordinates.
    let rows = lines.map(|line| parse_numbers(line.split_once('\t').map_or(line, |(_, rest)| rest)));
    let centroids: Option<Vec<Vec<f64>>> = rows.collect();
    let centroids =
        centroids.filter(|rows| rows.iter().all(|row| !row.is_empty() && row.len() == rows[0].len()));
    match centroids {
        Some(rows) if !rows.is_empty() => Ok(rows),
        _ => Err(format!("centroids {file}: all lines must have the same number of coordinates").into()),
    }
}

struct Assign {
    centroids: Vec<Vec<f64>>,
    skipped: Option<Counter>,
}

/// Not divisible: sums of floating-point numbers depend on where the input is divided.
impl Mapper for Assign {
    fn map(
        &mut self,
        _key: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let point = std::str::from_utf8(line).ok().and_then(parse_numbers);
        let Some(point) = point.filter(|point| point.len() == self.centroids[0].len()) else {
            let skipped = *self.skipped.get_or_insert_with(|| context.counter("POINTS_SKIPPED"));
            context.add(skipped, 1);
            return Ok(());
        };
        let distance =
            |centroid: &[f64]| -> f64 { centroid.iter().zip(&point).map(|(a, b)| (a - b) * (a - b)).sum() };
        let distances = self.centroids.iter().map(|centroid| distance(centroid)).enumerate();
        let nearest = distances.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(at, _)| at);
        out.emit(&(nearest as u32).to_be_bytes(), &encode(1, &point))
    }
}

/// Encodes a number of points and the sums of their coordinates.
fn encode(points: u64, sums: &[f64]) -> Vec<u8> {
    let mut bytes = points.to_le_bytes().to_vec();
    for sum in sums {
        bytes.extend_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// Adds up encoded sums of points.
fn add_up(values: &mut dyn Values) -> Result<(u64, Vec<f64>), TaskError> {
    let (mut points, mut sums) = (0, Vec::new());
    while let Some(value) = values.next()? {
        let (chunks, rest) = value.as_chunks::<8>();
        let Some((count, coordinates)) = chunks.split_first().filter(|_| rest.is_empty()) else {
            return Err("a sum of points has an invalid length".into());
        };
        points += u64::from_le_bytes(*count);
        sums.resize(coordinates.len(), 0.0);
        for (sum, coordinate) in sums.iter_mut().zip(coordinates) {
            *sum += f64::from_le_bytes(*coordinate);
        }
    }
    Ok((points, sums))
}

struct Add;

impl Reducer for Add {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let (points, sums) = add_up(values)?;
        out.emit(key, &encode(points, &sums))
    }
}

struct Mean;

impl Reducer for Mean {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let (points, sums) = add_up(values)?;
        let number =
            u32::from_be_bytes(key.try_into().map_err(|_| "the index of a centroid has an invalid length")?);
        let means: Vec<String> = sums.iter().map(|sum| format!("{:.6}", sum / points as f64)).collect();
        out.emit(number.to_string().as_bytes(), means.join(" ").as_bytes())
    }
}

pub(super) fn job(conf: &Conf) -> Result<Job, TaskError> {
    let file = side_file(conf).to_owned();
    let map = Job::map(move |_| Ok(Assign { centroids: read_centroids(&file)?, skipped: None }));
    // The values are sorted, so that the order of additions is fixed. Otherwise the last digits
    // could differ between runs.
    Ok(map.combine(|_| Ok(Add)).reduce(|_| Ok(Mean)).sorted_values())
}
