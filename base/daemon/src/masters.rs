//! The addresses of the masters of one kind: of the NameNode, or of all members of its group.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, ops::Deref};

/// One or more addresses, `host:port`. In files a string or a list of strings, in flags and
/// environment variables one text with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterAddrs(Vec<String>);

impl Deref for MasterAddrs {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl From<&str> for MasterAddrs {
    fn from(text: &str) -> Self {
        Self(text.split(',').map(|addr| addr.trim().to_owned()).collect())
    }
}

impl From<String> for MasterAddrs {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&String> for MasterAddrs {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<&Self> for MasterAddrs {
    fn from(addrs: &Self) -> Self {
        addrs.clone()
    }
}

/// The list of a message. An empty one becomes an empty address, which no client can connect to.
impl From<&[String]> for MasterAddrs {
    fn from(addrs: &[String]) -> Self {
        if addrs.is_empty() { "".into() } else { Self(addrs.to_vec()) }
    }
}

impl fmt::Display for MasterAddrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl Serialize for MasterAddrs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [addr] => addr.serialize(to),
            all => all.serialize(to),
        }
    }
}

/// How addresses are written in a file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "write host:port, or a list of them")]
enum Written {
    Text(String),
    List(Vec<String>),
}

impl<'de> Deserialize<'de> for MasterAddrs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Written::deserialize(from)? {
            Written::Text(text) => Ok(text.into()),
            Written::List(addrs) if addrs.is_empty() => {
                Err(de::Error::custom("the list of addresses is empty: write host:port"))
            }
            Written::List(addrs) => Ok(Self(addrs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    fn parse(setting: &str) -> Result<MasterAddrs, String> {
        let text = format!("[cluster]\nnamenode = {setting}\n");
        let config = Config::parse(&text, Path::new("fermata.toml")).map_err(|error| error.to_string())?;
        Ok(config.cluster.namenode)
    }

    #[test]
    fn string_list_and_text_with_commas_give_the_same_addresses() {
        let both = MasterAddrs::from("a:1,b:2");
        assert_eq!((both.len(), both.to_string().as_str()), (2, "a:1,b:2"));
        assert_eq!(parse("[\"a:1\", \"b:2\"]").unwrap(), both);
        assert_eq!(parse("\"a:1, b:2\"").unwrap(), both);
        assert_eq!(parse("\"a:1\"").unwrap(), MasterAddrs::from("a:1"));
    }

    #[test]
    fn empty_list_and_other_types_are_refused_with_their_line() {
        for (setting, why) in
            [("[]", "the list of addresses is empty"), ("7", "write host:port, or a list of them")]
        {
            let error = parse(setting).unwrap_err();
            assert!(error.starts_with("fermata.toml:2: ") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn one_address_is_printed_as_a_string_and_several_as_a_list() {
        let printed = |addrs: &str| {
            let mut config = Config::default();
            config.cluster.jobtracker = addrs.into();
            let text = config.print();
            assert_eq!(Config::parse(&text, Path::new("fermata.toml")).unwrap(), config);
            text.lines().find(|line| line.starts_with("jobtracker = ")).unwrap().to_owned()
        };
        assert_eq!(printed("a:1"), "jobtracker = \"a:1\"");
        assert_eq!(printed("a:1,b:2"), "jobtracker = [");
    }
}
