//! A command line cut into words as a shell would, without a shell: no variables, patterns, pipes or redirections.

/// Cuts a command at white space. Quotes keep words together, a backslash takes the next character as it is (within
/// double quotes only before a quote or a backslash). What a shell would act on is refused unless it is quoted.
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
                let next = characters.next().ok_or("a backslash at the end")?;
                word.get_or_insert_default().push(next);
            }
            (Some('"'), '\\') if matches!(characters.peek(), Some('"' | '\\')) => {
                let next = characters.next().expect("just seen");
                word.get_or_insert_default().push(next);
            }
            (None, '|' | '&' | ';' | '<' | '>') => {
                return Err(format!(
                    "there is no shell that would know what {character} means: write sh -c '...' around the command, or put \
                     {character} in quotes"
                ));
            }
            (_, character) => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".into());
    }
    words.extend(word);
    if words.is_empty() { Err("there is no command".into()) } else { Ok(words) }
}
