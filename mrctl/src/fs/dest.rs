//! The destination of each copied source, by the rules of `cp` and `mv`, for local paths and paths
//! of the cluster. No input or output.

use anyhow::{Result, bail};

/// What exists at the destination before the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    None,
    File,
    Folder,
}

/// The meaning of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dest {
    /// The path of the one copy.
    Exact,
    /// An existing folder; each source keeps its name in it.
    Into,
    /// A folder that must be created first; each source keeps its name in it.
    IntoNew,
}

/// The meaning of `dest` for this number of sources.
pub(super) fn plan(sources: usize, dest: &str, existing: Existing) -> Result<Dest> {
    let slash = dest.ends_with('/');
    match existing {
        Existing::Folder => Ok(Dest::Into),
        Existing::File if slash || sources > 1 => bail!("{dest} is a file: {} need a folder", count(sources)),
        Existing::None if slash => Ok(Dest::IntoNew),
        Existing::None if sources > 1 => {
            bail!(
                "{dest} does not exist: {} need a folder; end the path with / to create one",
                count(sources)
            )
        }
        Existing::None | Existing::File => Ok(Dest::Exact),
    }
}

fn count(sources: usize) -> String {
    if sources == 1 { "a name that ends with / would".into() } else { format!("{sources} sources") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_go_into_an_existing_folder() {
        for dest in ["/d", "/d/"] {
            assert_eq!(plan(1, dest, Existing::Folder).unwrap(), Dest::Into);
            assert_eq!(plan(2, dest, Existing::Folder).unwrap(), Dest::Into);
        }
    }

    #[test]
    fn a_slash_means_a_folder() {
        assert_eq!(plan(1, "/d/", Existing::None).unwrap(), Dest::IntoNew);
        assert_eq!(plan(2, "/d/", Existing::None).unwrap(), Dest::IntoNew);
        assert!(plan(1, "/d/", Existing::File).is_err());
    }

    #[test]
    fn one_source_takes_the_name() {
        assert_eq!(plan(1, "/d", Existing::None).unwrap(), Dest::Exact);
        assert_eq!(plan(1, "/d", Existing::File).unwrap(), Dest::Exact);
    }

    #[test]
    fn several_sources_need_a_folder() {
        let error = plan(2, "/d", Existing::None).unwrap_err().to_string();
        assert_eq!(error, "/d does not exist: 2 sources need a folder; end the path with / to create one");
        assert!(plan(2, "/d", Existing::File).is_err());
    }
}
