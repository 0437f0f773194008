//! Determines whether a destination is a file or a folder, by the rules of `cp` and `mv`, for local
//! paths and for paths in the cluster. Does no input or output.

use anyhow::{Result, bail};

/// What exists at the destination before the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    None,
    File,
    Folder,
}

/// How the destination path is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dest {
    /// There is one source, and the destination is the path of its copy.
    Exact,
    /// The destination is an existing folder. Each source keeps its name in this folder.
    Into,
    /// The destination is a folder that must be created first. Each source keeps its name in this
    /// folder.
    IntoNew,
}

/// Returns how `dest` is used for this number of sources. Fails if the sources need a folder and
/// `dest` is none.
pub(crate) fn plan(sources: usize, dest: &str, existing: Existing) -> Result<Dest> {
    let slash = dest.ends_with('/');
    match existing {
        Existing::Folder => Ok(Dest::Into),
        Existing::File if slash || sources > 1 => {
            bail!("{dest} is a file: {} need a folder", count_sources(sources))
        }
        Existing::None if slash => Ok(Dest::IntoNew),
        Existing::None if sources > 1 => {
            bail!(
                "{dest} does not exist: {} need a folder; end the path with / to create one",
                count_sources(sources)
            )
        }
        Existing::None | Existing::File => Ok(Dest::Exact),
    }
}

fn count_sources(sources: usize) -> String {
    if sources == 1 { "a name that ends with / would".into() } else { format!("{sources} sources") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_copied_into_an_existing_folder() {
        for dest in ["/d", "/d/"] {
            assert_eq!(plan(1, dest, Existing::Folder).unwrap(), Dest::Into);
            assert_eq!(plan(2, dest, Existing::Folder).unwrap(), Dest::Into);
        }
    }

    #[test]
    fn final_slash_means_a_folder() {
        assert_eq!(plan(1, "/d/", Existing::None).unwrap(), Dest::IntoNew);
        assert_eq!(plan(2, "/d/", Existing::None).unwrap(), Dest::IntoNew);
        assert!(plan(1, "/d/", Existing::File).is_err());
    }

    #[test]
    fn single_source_gets_the_destination_as_its_path() {
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
