//! HTML with automatic escaping. [`Html`] is written only by the [`html!`](crate::html) macro,
//! which escapes every argument that is not `Html` itself.
//!
//! The format literal cannot contain variables (`{x}` does not compile). Each argument follows the
//! literal, and its type determines the escaping. Attributes may use either kind of quotes. Nothing
//! checks that tags are closed.

use std::fmt::{self, Write};

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Html(String);

/// A value that can be written to a page.
pub trait ToHtml {
    /// Writes the value, escaped if necessary.
    fn show(&self, out: &mut dyn Write) -> fmt::Result;
}

impl ToHtml for str {
    fn show(&self, out: &mut dyn Write) -> fmt::Result {
        for letter in self.chars() {
            match letter {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                '\n' | '\t' => out.write_char(letter)?,
                // Replace control characters, such as terminal escapes and NUL.
                letter if letter.is_control() => out.write_char('\u{fffd}')?,
                letter => out.write_char(letter)?,
            }
        }
        Ok(())
    }
}

impl ToHtml for String {
    fn show(&self, out: &mut dyn Write) -> fmt::Result {
        self.as_str().show(out)
    }
}

impl<T: ToHtml + ?Sized> ToHtml for &T {
    fn show(&self, out: &mut dyn Write) -> fmt::Result {
        (**self).show(out)
    }
}

impl ToHtml for Html {
    fn show(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str(&self.0)
    }
}

macro_rules! numbers {
    ($($kind:ty),*) => {
        $(impl ToHtml for $kind {
            fn show(&self, out: &mut dyn Write) -> fmt::Result {
                write!(out, "{self}")
            }
        })*
    };
}

numbers!(u16, u32, u64, usize);

/// Writes a number with one decimal, which is enough for coordinates; 0 if it is not finite.
impl ToHtml for f64 {
    fn show(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{:.1}", if self.is_finite() { *self } else { 0.0 })
    }
}

/// Displays a value through [`ToHtml`]; for the macro.
#[doc(hidden)]
#[derive(Debug)]
pub struct Part<'a, T: ?Sized>(pub &'a T);

impl<T: ToHtml + ?Sized> fmt::Display for Part<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

impl Html {
    /// Creates an empty part.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends formatted markup; for the macro.
    #[doc(hidden)]
    pub fn put(&mut self, parts: fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(parts);
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the markup.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the markup.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Escapes text for a page.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let _ = text.show(&mut out);
    out
}

/// Appends a literal with markup to a page, and the values for its `{}`.
///
/// ```
/// use fermata_sim::{html, report::html::Html};
/// let mut page = Html::new();
/// html!(page, "<td class='{}'>{}</td>", "name", "<b>");
/// assert_eq!(page.as_str(), "<td class='name'>&lt;b&gt;</td>");
/// ```
///
/// A variable cannot be named in the literal, where it would not be escaped:
///
/// ```compile_fail
/// let (mut page, name) = (fermata_sim::report::html::Html::new(), "<b>");
/// fermata_sim::html!(page, "<td>{name}</td>");
/// ```
#[macro_export]
macro_rules! html {
    ($out:expr, $markup:literal $(, $part:expr)* $(,)?) => {
        $out.put(format_args!(concat!($markup), $($crate::report::html::Part(&$part)),*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        let evil = "<script>alert('1')</script> & \"x\"\0\u{1b}[31m\nnext";
        let mut page = Html::new();
        crate::html!(page, "<p title='{}'>{}</p>", evil, evil.to_owned());
        let shown =
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot;\u{fffd}\u{fffd}[31m\nnext";
        assert_eq!(page.as_str(), format!("<p title='{shown}'>{shown}</p>"));
        assert_eq!(escape(evil), shown);
    }

    #[test]
    fn nested_markup_and_numbers_are_written_unescaped() {
        let mut inner = Html::new();
        assert!(inner.is_empty());
        crate::html!(inner, "<b>{}</b>", 7_u32);
        let mut page = Html::new();
        crate::html!(page, "<p>{} {} {}</p>", inner, 1.25_f64, f64::NAN);
        assert_eq!(page.into_string(), "<p><b>7</b> 1.2 0.0</p>");
    }
}
