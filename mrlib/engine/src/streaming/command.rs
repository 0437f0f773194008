//! Splits a command line into words like a shell, but without variables, patterns, pipes or
//! redirections.

/// Splits a command at white space. Quotes keep words together. A backslash escapes the next
/// character (within double quotes only a quote or a backslash). Unquoted characters that have a
/// meaning in a shell are refused.
pub fn split_command(command: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = command.chars().peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (None, ' ' | '\t' | '\n') => words.extend(word.take()),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == character => quote = None,
            (None, '\\') => {
                let next = characters.next().ok_or("the command ends with a backslash")?;
                word.get_or_insert_default().push(next);
            }
            (Some('"'), '\\') if matches!(characters.peek(), Some('"' | '\\')) => {
                let next = characters.next().expect("just seen");
                word.get_or_insert_default().push(next);
            }
            (None, '|' | '&' | ';' | '<' | '>') => {
                return Err(format!(
                    "there is no shell, so {character} has no meaning: write sh -c '...' around the command, or put \
                     {character} in quotes"
                ));
            }
            (_, character) => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err("the command has an unclosed quote".into());
    }
    words.extend(word);
    if words.is_empty() { Err("the command is empty".into()) } else { Ok(words) }
}
