//! The query parameters of a request. Their names do not depend on the case of letters, as in
//! Hadoop.

use std::str::FromStr;

/// The decoded query parameters of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Params(Vec<(String, String)>);

/// A parameter that is missing or has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParamError {
    #[error("Invalid value for webhdfs parameter \"{name}\": {value:?} is not {expected}")]
    Invalid { name: &'static str, value: String, expected: &'static str },
    #[error("Required param {0} is missing: add {0}=VALUE to the query")]
    Missing(&'static str),
}

impl Params {
    /// Decodes a query.
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.into_owned())).collect())
    }

    /// Returns the first value of a parameter; None if it is missing or empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let value = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        value.filter(|value| !value.is_empty())
    }

    /// Returns a parameter that must be there.
    pub(crate) fn required(&self, name: &'static str) -> Result<&str, ParamError> {
        self.text(name).ok_or(ParamError::Missing(name))
    }

    fn parsed<T>(
        &self,
        name: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ParamError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let invalid = || ParamError::Invalid { name, value: value.chars().take(100).collect(), expected };
        parse(value).map(Some).ok_or_else(invalid)
    }

    /// Returns a number.
    pub(crate) fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, ParamError> {
        self.parsed(name, "a number of the accepted range", |text| text.parse().ok())
    }

    /// Returns `true` or `false`.
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, ParamError> {
        self.parsed(name, "true or false", |text| match text.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        })
    }

    /// Returns permission bits, in octal.
    pub(crate) fn mode(&self, name: &'static str) -> Result<Option<u32>, ParamError> {
        self.parsed(name, "an octal number up to 1777", |text| {
            let digits = text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
            u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o1777)
        })
    }

    /// Returns the bits of a file system action such as `r-x`.
    pub(crate) fn action(&self, name: &'static str) -> Result<Option<u32>, ParamError> {
        self.parsed(name, "an action such as r-x", |text| {
            let bit = |byte: u8, letter: u8, value: u32| match byte {
                b'-' => Some(0),
                byte if byte == letter => Some(value),
                _ => None,
            };
            let [read, write, execute] = *text.as_bytes() else { return None };
            Some(bit(read, b'r', 4)? | bit(write, b'w', 2)? | bit(execute, b'x', 1)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Params {
        Params::parse(Some(query))
    }

    #[test]
    fn names_ignore_case_and_values_are_decoded() {
        let params = of("OP=OPEN&User.Name=a%2Fb+c&x=1&x=2&empty=");
        assert_eq!(params.text("op"), Some("OPEN"));
        assert_eq!(params.text("user.name"), Some("a/b c"));
        assert_eq!(params.text("x"), Some("1"));
        assert_eq!((params.text("empty"), params.text("y")), (None, None));
        assert_eq!(Params::parse(None), Params::default());
    }

    #[test]
    fn wrong_values_are_refused_with_their_name() {
        assert_eq!(of("offset=7").number::<u64>("offset"), Ok(Some(7)));
        assert_eq!(of("").number::<u64>("offset"), Ok(None));
        for bad in ["-1", "x", "18446744073709551616", "1.5"] {
            let error = of(&format!("offset={bad}")).number::<u64>("offset").unwrap_err().to_string();
            assert!(error.starts_with("Invalid value for webhdfs parameter \"offset\""), "{error}");
        }
        assert_eq!(of("o=TRUE").flag("o"), Ok(Some(true)));
        assert!(of("o=1").flag("o").is_err());
        assert_eq!(of("").required("op"), Err(ParamError::Missing("op")));
    }

    #[test]
    fn modes_are_octal() {
        for (text, mode) in [("755", 0o755), ("0", 0), ("1777", 0o1777), ("0644", 0o644)] {
            assert_eq!(of(&format!("permission={text}")).mode("permission"), Ok(Some(mode)));
        }
        for bad in ["8", "2000", "0o755", "rwx", "-1", "+755", "00755"] {
            assert!(Params(vec![("permission".into(), bad.into())]).mode("permission").is_err(), "{bad}");
        }
    }

    #[test]
    fn actions_are_three_letters() {
        for (text, bits) in [("rwx", 7), ("r--", 4), ("-w-", 2), ("--x", 1), ("---", 0)] {
            assert_eq!(of(&format!("fsaction={text}")).action("fsaction"), Ok(Some(bits)));
        }
        for bad in ["r", "xwr", "rwxr", "READ"] {
            assert!(of(&format!("fsaction={bad}")).action("fsaction").is_err(), "{bad}");
        }
    }
}
