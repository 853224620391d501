//! The little that must be known of a constant: its elements, if they are integers.

/// The elements, in the order of their places. Numbers that are integers count as such whatever their type; `None` if one is not, or if
/// there are more than `most`.
///
/// A `u64` beyond the largest `i64` stands as a negative number: as that, it is still equal to itself alone among its own kind.
pub(crate) fn values(literal: &[u8], most: usize) -> Option<Vec<i64>> {
    let (number, content) = content(literal)?;
    // No element is shorter than a byte.
    if content.len() > most.saturating_mul(size_of::<u64>() + 2) {
        return None;
    }
    let values = match number {
        // preds, s32s, s64s, u32s, u64s: packed varints.
        2 | 4..=7 => {
            let mut rest = content;
            let mut values = Vec::new();
            while !rest.is_empty() {
                values.push(varint(&mut rest)?.cast_signed());
            }
            values
        }
        // u8s and s8s: bytes. u16s and s16s: pairs of bytes, the low one first.
        3 => content.iter().map(|&byte| byte.into()).collect(),
        15 => content.iter().map(|&byte| byte.cast_signed().into()).collect(),
        16 => elements(content, |bytes| Some(u16::from_le_bytes(bytes).into()))?,
        17 => elements(content, |bytes| Some(i16::from_le_bytes(bytes).into()))?,
        // f32s and f64s.
        8 => elements(content, |bytes| whole(f32::from_le_bytes(bytes).into()))?,
        9 => elements(content, |bytes| whole(f64::from_le_bytes(bytes)))?,
        _ => return None,
    };
    (values.len() <= most).then_some(values)
}

/// The value of a constant with one integer in it.
pub(crate) fn integer(literal: &[u8]) -> Option<i64> {
    const U64S: u64 = 7;
    const F32S: u64 = 8;
    const F64S: u64 = 9;
    let (number, _) = content(literal)?;
    match values(literal, 1)?[..] {
        [value] if number != F32S && number != F64S && (number != U64S || value >= 0) => Some(value),
        _ => None,
    }
}

/// The number and content of the one field that holds the elements. Equal constants may differ in the layouts of their shapes.
fn content(literal: &[u8]) -> Option<(u64, &[u8])> {
    const SHAPE: u64 = 1;
    let fields = fields(literal)?;
    let mut fields = fields.into_iter().filter(|(number, _)| *number != SHAPE);
    let field = fields.next()?;
    fields.next().is_none().then_some(field)
}

fn elements<const SIZE: usize>(content: &[u8], value: impl Fn([u8; SIZE]) -> Option<i64>) -> Option<Vec<i64>> {
    content.chunks(SIZE).map(|bytes| value(bytes.try_into().ok()?)).collect()
}

/// The integer that a floating-point number is.
#[expect(clippy::cast_possible_truncation, reason = "it is an integer, and not too large")]
fn whole(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2 to the 53rd
    (value.fract() == 0.0 && value.abs() < EXACT).then_some(value as i64)
}

/// A field's number and its content.
type Field<'a> = (u64, &'a [u8]);

/// Each length-delimited field. A literal from XLA has no other kind.
fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    const LENGTH_DELIMITED: u64 = 2;
    let mut rest = message;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        if key & 7 != LENGTH_DELIMITED {
            return None;
        }
        let length = usize::try_from(varint(&mut rest)?).ok()?;
        let (content, after) = rest.split_at_checked(length)?;
        rest = after;
        fields.push((key >> 3, content));
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
