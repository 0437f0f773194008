//! Packs several files into one input, for readers of folders.

/// Names and contents of files, in order.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// Packs files into one input. The format of a file is: the length of its name as u8, the name, the
/// length of its content as little-endian u32, the content.
pub(crate) fn pack<N: AsRef<str>, C: AsRef<[u8]>>(files: impl IntoIterator<Item = (N, C)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, content) in files {
        let (name, content) = (name.as_ref(), content.as_ref());
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(content.len() as u32).to_le_bytes());
        out.extend_from_slice(content);
    }
    out
}

/// Unpacks what [`pack`] has packed. Accepts any bytes: a length beyond the end of the input is
/// reduced, so that every input is a list of files.
pub(crate) fn unpack(mut input: &[u8]) -> Files {
    let mut files = Files::new();
    let mut take = |length: usize| {
        let (taken, rest) = input.split_at(length.min(input.len()));
        input = rest;
        taken
    };
    while let [length] = take(1) {
        let name = String::from_utf8_lossy(take(usize::from(*length))).into_owned();
        let mut length = [0; 4];
        let given = take(4);
        length[..given.len()].copy_from_slice(given);
        let content = take(u32::from_le_bytes(length) as usize).to_vec();
        files.push((name, content));
    }
    files
}
