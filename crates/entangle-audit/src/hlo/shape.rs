//! Shapes: arrays, and tuples of them, counted leaf by leaf.

use std::ops::Range;

use super::proto::ShapeProto;

/// `TUPLE` of XLA's `PrimitiveType`.
const TUPLE: i32 = 13;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    element_type: i32,
    pub(crate) dimensions: Vec<i64>,
    pub(crate) minor_to_major: Vec<i64>,
    pub(crate) elements: Vec<Shape>,
    leaves: usize,
}

impl Shape {
    /// The depth of the recursion is bounded: prost reads no message nested deeper than 100.
    pub(super) fn new(proto: ShapeProto) -> Self {
        let elements: Vec<Self> = proto.tuple_shapes.into_iter().map(Self::new).collect();
        let is_tuple = proto.element_type == TUPLE;
        Self {
            element_type: proto.element_type,
            dimensions: proto.dimensions,
            minor_to_major: proto.layout.map(|layout| layout.minor_to_major).unwrap_or_default(),
            leaves: if is_tuple { elements.iter().map(|element| element.leaves).sum() } else { 1 },
            elements,
        }
    }

    /// How many arrays, tokens and opaque values it holds.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves
    }

    pub(crate) fn is_tuple(&self) -> bool {
        self.element_type == TUPLE
    }

    /// The leaf at this position, counted through all nested tuples.
    pub(crate) fn leaf(&self, position: usize) -> Option<&Self> {
        if !self.is_tuple() {
            return (position == 0).then_some(self);
        }
        let mut first = 0;
        for element in &self.elements {
            if position < first + element.leaves {
                return element.leaf(position - first);
            }
            first += element.leaves;
        }
        None
    }

    /// The leaf that a shape index such as `{1, 0}` names.
    pub(super) fn leaf_at(&self, index: &[i64]) -> Option<usize> {
        let mut shape = self;
        let mut first = 0;
        for &step in index {
            let step = usize::try_from(step).ok()?;
            first += shape.elements.get(..step)?.iter().map(Self::leaves).sum::<usize>();
            shape = shape.elements.get(step)?;
        }
        Some(first)
    }

    /// The leaves of a tuple's element.
    pub(crate) fn element_leaves(&self, element: usize) -> Option<Range<usize>> {
        let count = self.elements.get(element)?.leaves;
        let first = self.elements[..element].iter().map(Self::leaves).sum::<usize>();
        Some(first..first + count)
    }

    /// No element: XLA puts a constant in its place before the program runs.
    pub(crate) fn has_no_elements(&self) -> bool {
        self.dimensions.contains(&0)
    }

    /// The type of an array's elements.
    pub(crate) fn elements_type(&self) -> TypeOfElements {
        TypeOfElements(self.element_type)
    }

    /// The type of an array, such as `f32[3,4]`, by the names that XLA prints; empty for what has none of the usual ones.
    pub(crate) fn type_name(&self) -> String {
        let name = match self.element_type {
            1 => "pred",
            2 => "s8",
            3 => "s16",
            4 => "s32",
            5 => "s64",
            6 => "u8",
            7 => "u16",
            8 => "u32",
            9 => "u64",
            10 => "f16",
            11 => "f32",
            12 => "f64",
            15 => "c64",
            16 => "bf16",
            18 => "c128",
            _ => return String::new(),
        };
        let dimensions: Vec<String> = self.dimensions.iter().map(i64::to_string).collect();
        format!("{name}[{}]", dimensions.join(","))
    }

    /// How many elements an array has.
    pub(crate) fn count(&self) -> usize {
        self.dimensions.iter().fold(1, |count: usize, &size| count.saturating_mul(size.try_into().unwrap_or(0)))
    }

    /// Whether the elements lie in memory in the order of their places.
    pub(crate) fn is_row_major(&self) -> bool {
        let long = |dimension: &&i64| {
            let size = usize::try_from(**dimension).ok().and_then(|dimension| self.dimensions.get(dimension));
            size != Some(&1)
        };
        self.minor_to_major.iter().filter(long).is_sorted_by(|a, b| a > b)
    }

    /// The bytes of all leaves, without padding.
    pub(crate) fn bytes(&self) -> u64 {
        if self.is_tuple() {
            return self.elements.iter().fold(0, |sum, element| sum.saturating_add(element.bytes()));
        }
        let elements =
            self.dimensions.iter().fold(1_u64, |product, &size| product.saturating_mul(size.try_into().unwrap_or(0)));
        // By XLA's `PrimitiveType`; types narrower than a byte are counted as a byte each.
        let bytes = match self.element_type {
            1 | 2 | 6 | 19..=33 => 1, // pred, s8, u8, every 8-bit float and everything narrower
            3 | 7 | 10 | 16 => 2,     // s16, u16, f16, bf16
            4 | 8 | 11 => 4,          // s32, u32, f32
            5 | 9 | 12 | 15 => 8,     // s64, u64, f64, c64
            18 => 16,                 // c128
            _ => 0,                   // tokens and opaque values
        };
        elements.saturating_mul(bytes)
    }
}

/// A type of elements, by XLA's `PrimitiveType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TypeOfElements(i32);

impl TypeOfElements {
    const U64: Self = Self(9);

    /// `pred`.
    pub(crate) fn is_truth(self) -> bool {
        self.0 == 1
    }

    pub(crate) fn is_integer(self) -> bool {
        self.integers().is_some_and(|(_, fraction)| !fraction)
    }

    /// Whether each value of this type has one in the other that is equal to it as a number.
    pub(crate) fn fits_into(self, other: Self) -> bool {
        let range = |of: Self| if of.is_integer() { of.integers() } else { None };
        self == other
            || range(self)
                .zip(other.integers())
                .is_some_and(|((from, _), (to, _))| to.start() <= from.start() && from.end() <= to.end())
    }

    /// Whether this integer, which a constant of this type stands for, is the same number in the other type.
    pub(crate) fn keeps(self, value: i64, other: Self) -> bool {
        // One beyond the largest `i64` stands as a negative number.
        let readable = self != Self::U64 || value >= 0;
        self == other || readable && other.integers().is_some_and(|(range, _)| range.contains(&value.into()))
    }

    /// The integers that the type holds exactly, all from the least to the largest; and whether it holds fractions too.
    fn integers(self) -> Option<(std::ops::RangeInclusive<i128>, bool)> {
        let signed = |bits: u32| (-(1_i128 << (bits - 1))..=(1_i128 << (bits - 1)) - 1, false);
        let unsigned = |bits: u32| (0..=(1_i128 << bits) - 1, false);
        let float = |bits: u32| (-(1_i128 << bits)..=1_i128 << bits, true);
        Some(match self.0 {
            2 => signed(8),
            3 => signed(16),
            4 => signed(32),
            5 => signed(64),
            6 => unsigned(8),
            7 => unsigned(16),
            8 => unsigned(32),
            9 => unsigned(64),
            10 => float(11),
            11 => float(24),
            12 => float(53),
            16 => float(8), // bf16
            _ => return None,
        })
    }
}
