//! The structure of a matrix: where its elements are, and the symbolic factorisation, which all its factors share.

use faer::sparse::SymbolicSparseColMat;
use faer::sparse::linalg::lu::{LuSymbolicParams, SymbolicLu, factorize_symbolic_lu};

/// Made by `analyze`, and never changed.
pub(crate) struct Pattern {
    /// The positions as the user gave them, in any order; elements at the same position are added up.
    pub(crate) rows: Vec<i32>,
    pub(crate) columns: Vec<i32>,
    /// Where each of these elements is in `matrix`.
    pub(crate) places: Vec<u32>,
    /// By columns, each with ascending rows and without duplicates.
    pub(crate) matrix: SymbolicSparseColMat<u32>,
    pub(crate) symbolic: SymbolicLu<u32>,
}

impl Pattern {
    /// Checks the structure and analyses it.
    pub(crate) fn new(rows: Vec<i32>, columns: Vec<i32>, n: i64) -> Result<Self, String> {
        if rows.len() != columns.len() {
            return Err(format!(
                "there are {} row indices and {} column indices, wanted one of each for every element",
                rows.len(),
                columns.len()
            ));
        }
        let Some(limit) = i32::try_from(n).ok().filter(|&n| n > 0).map(i32::cast_unsigned) else {
            return Err(format!("n is {n}, wanted 1 to {}", i32::MAX));
        };
        let n = limit as usize;
        if i32::try_from(rows.len()).is_err() {
            return Err(format!("there are {} elements, wanted at most {}", rows.len(), i32::MAX));
        }
        let mut elements = Vec::with_capacity(rows.len());
        for (index, (&row, &column)) in (0_u32..).zip(rows.iter().zip(&columns)) {
            for (what, position) in [("row", row), ("column", column)] {
                if u32::try_from(position).is_ok_and(|position| position < limit) {
                    continue;
                }
                return Err(format!("element {index} is in {what} {position}, wanted 0 to {}", limit - 1));
            }
            elements.push((column.cast_unsigned(), row.cast_unsigned(), index));
        }
        elements.sort_unstable();

        let mut places = vec![0; elements.len()];
        let mut starts = vec![0_u32; n + 1];
        let mut row_indices: Vec<u32> = Vec::with_capacity(elements.len());
        let (mut last, mut place) = (None, 0);
        for (column, row, index) in elements {
            if last != Some((column, row)) {
                last = Some((column, row));
                place = u32::try_from(row_indices.len()).map_err(|_| "there are too many elements")?;
                row_indices.push(row);
                starts[column as usize + 1] += 1;
            }
            places[index as usize] = place;
        }
        for column in 0..n {
            starts[column + 1] += starts[column];
        }
        let matrix = SymbolicSparseColMat::new_checked(n, n, starts, None, row_indices);
        let symbolic = factorize_symbolic_lu(matrix.as_ref(), LuSymbolicParams::default())
            .map_err(|error| format!("the analysis failed: {error}"))?;
        Ok(Self { rows, columns, places, matrix, symbolic })
    }

    pub(crate) fn n(&self) -> usize {
        self.matrix.nrows()
    }

    pub(crate) fn nnz(&self) -> usize {
        self.places.len()
    }
}
