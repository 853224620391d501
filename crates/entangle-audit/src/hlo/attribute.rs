//! The attributes of a native call, which stand in its `backend_config` as text.

/// What an attribute holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attribute {
    Integer(i64),
    /// Anything else, as it is written.
    Text(String),
}

/// The attribute of this name: of `{index = 0 : ui64, scene = "main"}`, or of the same as a string in the JSON that XLA:GPU writes.
pub(crate) fn attribute(backend_config: &[u8], name: &str) -> Option<Attribute> {
    let text = std::str::from_utf8(backend_config).ok()?;
    let unpacked;
    let text = match text.split_once("\"attributes\":\"") {
        Some((_, json)) if text.starts_with("{\"") => {
            unpacked = unquoted(json);
            unpacked.as_str()
        }
        _ => text,
    };
    let entries = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let value = split(entries).find_map(|entry| {
        let (key, value) = entry.split_once('=')?;
        (key.trim().trim_matches('"') == name).then_some(value.trim())
    })?;
    let number = value.split_once(':').map_or(value, |(number, _)| number).trim();
    Some(number.parse().map_or_else(|_| Attribute::Text(value.to_owned()), Attribute::Integer))
}

/// A JSON string up to its closing quote, without escapes.
fn unquoted(json: &str) -> String {
    let mut text = String::new();
    let mut characters = json.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => text.extend(characters.next()),
            _ => text.push(character),
        }
    }
    text
}

/// The parts between commas that stand in no string and in no brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    text.split(move |character| {
        let was_escaped = std::mem::take(&mut escaped);
        match character {
            '\\' => escaped = quoted && !was_escaped,
            '"' if !was_escaped => quoted = !quoted,
            '[' | '{' | '<' | '(' if !quoted => depth += 1,
            ']' | '}' | '>' | ')' if !quoted => depth = depth.saturating_sub(1),
            ',' => return !quoted && depth == 0,
            _ => {}
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::{Attribute, attribute};

    #[test]
    fn an_attribute_is_not_taken_for_another_with_its_name_inside() {
        let plain = br#"{a = "x, index = 7 : ui64", b = [1, 2], index = -3 : i64, scene = "main"}"#;
        let json =
            br#"{"operation_queue_id":"0","custom_call_config":{"attributes":"{index = -3 : i64, scene = \"main\"}"}}"#;
        for config in [&plain[..], &json[..]] {
            assert_eq!(attribute(config, "index"), Some(Attribute::Integer(-3)));
            assert_eq!(attribute(config, "scene"), Some(Attribute::Text("\"main\"".into())));
            assert_eq!(attribute(config, "dex"), None);
        }
        assert_eq!(attribute(plain, "b"), Some(Attribute::Text("[1, 2]".into())));
        assert_eq!(attribute(b"opaque", "index"), None);
        assert_eq!(attribute(&[0xff], "index"), None);
    }
}
