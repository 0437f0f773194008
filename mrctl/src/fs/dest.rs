//! Where the copies of sources go: the rules of `cp` and `mv`, for both sides of the wire. Pure.

use anyhow::{Result, bail};

/// What is at a destination before anything is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// Nothing.
    None,
    /// A file.
    File,
    /// A folder.
    Folder,
}

/// How the destination is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dest {
    /// The one source becomes exactly this.
    Exact,
    /// Each source keeps its name inside this folder, which is there.
    Into,
    /// The same, but the folder must be made first.
    IntoNew,
}

/// What `sources` sources to `dest` mean.
pub(super) fn plan(sources: usize, dest: &str, existing: Existing) -> Result<Dest> {
    let slash = dest.ends_with('/');
    match existing {
        Existing::Folder => Ok(Dest::Into),
        Existing::File if slash || sources > 1 => bail!("{dest} is a file: {} need a folder", count(sources)),
        Existing::None if slash => Ok(Dest::IntoNew),
        Existing::None if sources > 1 => {
            bail!("{dest} does not exist: {} need a folder; end it with / to have it made", count(sources))
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
    fn an_existing_folder_takes_all() {
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
        assert_eq!(error, "/d does not exist: 2 sources need a folder; end it with / to have it made");
        assert!(plan(2, "/d", Existing::File).is_err());
    }
}
