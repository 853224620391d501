//! The little that must be known of a constant: whether two are equal, and what a single integer is.

/// The fields of a `LiteralProto` other than its shape, as they stand in the bytes.
///
/// Equal constants may carry different layouts in their shapes; their values are written alike.
pub(crate) fn values(literal: &[u8]) -> Option<Vec<u8>> {
    const SHAPE: u64 = 1;
    let mut kept = Vec::new();
    for (number, whole, _) in fields(literal)? {
        if number != SHAPE {
            kept.extend_from_slice(whole);
        }
    }
    Some(kept)
}

/// The value of a constant with one integer in it.
pub(crate) fn integer(literal: &[u8]) -> Option<i64> {
    const SHAPE: u64 = 1;
    let fields = fields(literal)?;
    let mut values = fields.iter().filter(|(number, ..)| *number != SHAPE);
    let (number, _, content) = values.next()?;
    if values.next().is_some() {
        return None;
    }
    match number {
        // s32s, s64s, u32s, u64s: packed varints.
        4..=7 => {
            let mut rest = *content;
            let value = varint(&mut rest)?;
            if rest.is_empty() {
                value.try_into().ok().or_else(|| (*number < 6).then_some(value.cast_signed()))
            } else {
                None
            }
        }
        // s8s and u8s: bytes. s16s and u16s: pairs of bytes, the low one first.
        15 => <[u8; 1]>::try_from(*content).ok().map(|bytes| i8::from_le_bytes(bytes).into()),
        3 => <[u8; 1]>::try_from(*content).ok().map(|[byte]| byte.into()),
        17 => <[u8; 2]>::try_from(*content).ok().map(|bytes| i16::from_le_bytes(bytes).into()),
        16 => <[u8; 2]>::try_from(*content).ok().map(|bytes| u16::from_le_bytes(bytes).into()),
        _ => None,
    }
}

/// A field's number, all its bytes, and its content.
type Field<'a> = (u64, &'a [u8], &'a [u8]);

/// Each length-delimited field. A literal from XLA has no other kind.
fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    const LENGTH_DELIMITED: u64 = 2;
    let mut rest = message;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let start = rest;
        let key = varint(&mut rest)?;
        if key & 7 != LENGTH_DELIMITED {
            return None;
        }
        let length = usize::try_from(varint(&mut rest)?).ok()?;
        let (content, after) = rest.split_at_checked(length)?;
        rest = after;
        fields.push((key >> 3, &start[..start.len() - rest.len()], content));
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
