//! Who runs this process.

/// The user that the environment names (`FERMATA_USER`, `USER`), else the account.
pub fn user() -> String {
    let set = |key| std::env::var(key).ok().filter(|user| !user.is_empty());
    set("FERMATA_USER").or_else(|| set("USER")).unwrap_or_else(account)
}

/// The name of the account this process runs as, where the environment does not say.
fn account() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let own = |row: &[&str]| (row[2] == uid).then(|| row[0].to_owned());
    find_row(own).unwrap_or_else(|| format!("uid{uid}"))
}

/// User and group number of an account.
pub fn find(name: &str) -> Option<(u32, u32)> {
    find_row(|row| (row[0] == name).then_some((row[2].parse().ok()?, row[3].parse().ok()?)))
}

fn find_row<T>(look: impl Fn(&[&str]) -> Option<T>) -> Option<T> {
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let rows = table.lines().map(|row| row.split(':').collect::<Vec<_>>());
    rows.filter(|row| row.len() > 3).find_map(|row| look(&row))
}
