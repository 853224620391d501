//! What XLA calls. Each handler takes whole batches: tokens and the other operand have the same number of batch dimensions in front,
//! each of the same size in both, or 1 in one of them (`vmap_method="expand_dims"` in JAX).
#![expect(clippy::needless_pass_by_value, reason = "handlers are given their parameters")]

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use faer::{c32, c64};
use xla_ffi::{Code, Error, Operand, Output, ThreadPool, export, handler};

use crate::factors::{Scalar, invalid};
use crate::objects::{self, Stored};

const REFACTORISED: &str = "sparse_lu: the factors were refactorised after the solve that is differentiated here, so its derivative \
    would be that of another matrix; compute it before `refactor`, or give each matrix factors of its own (without `ordered`, \
    XLA may also have moved the `refactor` forward)";

/// Which token and which element of the other operand belong to each element of a batch.
fn broadcast(tokens: &[i64], others: &[i64]) -> Result<Vec<(usize, usize)>, Error> {
    let mut pairs = vec![(0, 0)];
    if tokens.len() != others.len() {
        return Err(invalid(format!(
            "the batch dimensions are {tokens:?} of tokens and {others:?} of the other operand"
        )));
    }
    for (&of_tokens, &of_others) in tokens.iter().zip(others) {
        if of_tokens != of_others && of_tokens != 1 && of_others != 1 {
            return Err(invalid(format!(
                "the batch dimensions {tokens:?} of tokens do not fit {others:?} of the other operand"
            )));
        }
        let size = |dim: i64| usize::try_from(dim).unwrap_or(0);
        let (of_tokens, of_others) = (size(of_tokens), size(of_others));
        let count = if of_tokens == 1 { of_others } else { of_tokens };
        let next = |at: usize, size: usize, index: usize| at * size + if size == 1 { 0 } else { index };
        pairs = pairs
            .into_iter()
            .flat_map(|(token, other)| {
                (0..count).map(move |index| (next(token, of_tokens, index), next(other, of_others, index)))
            })
            .collect();
    }
    Ok(pairs)
}

/// Does `count` pieces of work, several at once, and returns the first error.
fn each(pool: &ThreadPool<'_>, count: usize, work: impl Fn(usize) -> Result<(), Error> + Sync) -> Result<(), Error> {
    if count == 1 {
        return work(0);
    }
    let failed = Mutex::new(None);
    pool.for_each(count, |index| {
        if let Err(error) = work(index) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    })?;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// `refactor(tokens: int32[...], values: T[..., nnz]) -> int32[...]`: the result is the tokens.
fn refactor<T: Stored>(
    pool: ThreadPool<'_>,
    tokens: Operand<'_, i32>,
    values: Operand<'_, T::Xla>,
    mut result: Output<'_, i32>,
) -> Result<(), Error> {
    let Some((&nnz, batch)) = values.dims().split_last() else {
        return Err(invalid("the values are a scalar, wanted a vector"));
    };
    let nnz = usize::try_from(nnz).unwrap_or(0);
    let pairs = broadcast(tokens.dims(), batch)?;
    let (tokens, values) = (tokens.as_slice(), values.as_slice()); // threads share slices, and no views
    if pairs.len() > tokens.len() {
        return Err(invalid(format!(
            "{} matrices do not fit into the factors of {} tokens: in a batch of values, each needs a token of its own",
            pairs.len(),
            tokens.len()
        )));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = tokens.iter().find(|&&token| !seen.insert(token)) {
        return Err(invalid(format!("token {twice} is there twice in one batch, and would be given two matrices")));
    }
    each(&pool, pairs.len(), |index| {
        let (token, other) = pairs[index];
        let object = objects::find(tokens[token])?;
        let mut lu = object.lu::<T>()?.write().unwrap_or_else(PoisonError::into_inner);
        object.next_version();
        lu.refactor(&object.pattern, &values[other * nnz..][..nnz])
    })?;
    result.fill_with(|index| tokens[pairs[index].0]);
    Ok(())
}

/// `solve(tokens: int32[...], versions: int32[...], b: T[..., k, n]) -> T[..., k, n]`, of `k` right-hand sides, or of the transposed
/// matrix. A version other than zero is the one that the factors must have.
fn solve<T: Stored>(
    pool: ThreadPool<'_>,
    tokens: Operand<'_, i32>,
    versions: Operand<'_, i32>,
    b: Operand<'_, T::Xla>,
    mut x: Output<'_, T::Xla>,
    transposed: bool,
) -> Result<(), Error> {
    let [batch @ .., k, n] = b.dims() else {
        return Err(invalid("the right-hand sides have fewer than two dimensions"));
    };
    let (k, n) = (usize::try_from(*k).unwrap_or(0), usize::try_from(*n).unwrap_or(0));
    let pairs = broadcast(tokens.dims(), batch)?;
    let of_versions = broadcast(tokens.dims(), versions.dims())?;
    if of_versions.len() != tokens.len() {
        return Err(invalid(format!("there are {} tokens and {} versions", tokens.len(), of_versions.len())));
    }
    let (tokens, versions, b) = (tokens.as_slice(), versions.as_slice(), b.as_slice()); // threads share slices, and no views
    // All right-hand sides of one token are solved at once, wherever they are in the batch.
    let mut of_token = vec![Vec::new(); tokens.len()];
    for (index, &(token, other)) in pairs.iter().enumerate() {
        of_token[token].push((index, other));
    }
    let solutions: Vec<_> = of_token.iter().map(|_| Mutex::new(Vec::<T>::new())).collect();
    each(&pool, of_token.len(), |token| {
        let (version, object) = (versions[of_versions[token].1], objects::find(tokens[token])?);
        if object.pattern.n() != n {
            return Err(invalid(format!("the right-hand side has {n} rows, the matrix has {}", object.pattern.n())));
        }
        let sides = of_token[token].iter().flat_map(|&(_, other)| &b[other * k * n..][..k * n]);
        let mut sides: Vec<T> = sides.map(|&value| T::from_xla(value)).collect();
        let lu = object.lu::<T>()?.read().unwrap_or_else(PoisonError::into_inner);
        if version != 0 && version != object.version() {
            return Err(Error::new(Code::FailedPrecondition, REFACTORISED));
        }
        lu.solve(&object.pattern, &mut sides, transposed)?;
        *solutions[token].lock().unwrap_or_else(PoisonError::into_inner) = sides;
        Ok(())
    })?;
    let out = x.as_uninit();
    for (items, solved) in of_token.iter().zip(solutions) {
        let solved = solved.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (&(index, _), solution) in items.iter().zip(solved.chunks(k * n)) {
            for (place, &value) in out[index * k * n..][..k * n].iter_mut().zip(solution) {
                place.write(value.into_xla());
            }
        }
    }
    Ok(())
}

/// `version(tokens: int32[...]) -> int32[...]`: which refactorisation the factors come from.
fn version(tokens: Operand<'_, i32>, mut result: Output<'_, i32>) -> Result<(), Error> {
    let versions =
        tokens.iter().map(|&token| Ok(objects::find(token)?.version())).collect::<Result<Vec<_>, Error>>()?;
    result.write(&versions)
}

/// `indices(tokens: int32[...]) -> (int32[..., nnz], int32[..., nnz])`: the rows and the columns of the elements.
fn indices(tokens: Operand<'_, i32>, mut rows: Output<'_, i32>, mut columns: Output<'_, i32>) -> Result<(), Error> {
    let nnz = rows.len() / tokens.len().max(1);
    let (mut all_rows, mut all_columns) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for &token in tokens.iter() {
        let object = objects::find(token)?;
        if object.pattern.nnz() != nnz {
            let wanted = object.pattern.nnz();
            return Err(invalid(format!("there are {nnz} values, and the pattern has {wanted} elements")));
        }
        all_rows.extend_from_slice(&object.pattern.rows);
        all_columns.extend_from_slice(&object.pattern.columns);
    }
    rows.write(&all_rows)?;
    columns.write(&all_columns)
}

/// `free(tokens: int32[...]) -> int32[...]`: the result is the tokens.
fn free(tokens: Operand<'_, i32>, mut result: Output<'_, i32>) -> Result<(), Error> {
    for &token in tokens.iter() {
        drop(objects::remove(token)?);
    }
    result.write(&tokens)
}

handler!(Version = version(tokens, result));
handler!(Indices = indices(tokens, rows, columns));
handler!(Free = free(tokens, result));
export!(Version as sparse_lu_version, Indices as sparse_lu_indices, Free as sparse_lu_free);

/// A handler has one signature, so there is one for each element type.
macro_rules! handlers {
    ($($type:ty: $refactor:ident $refactor_handler:ident, $solve:ident $solve_handler:ident;)*) => {
        $(fn $refactor(
            pool: ThreadPool<'_>,
            tokens: Operand<'_, i32>,
            values: Operand<'_, <$type as Scalar>::Xla>,
            result: Output<'_, i32>,
        ) -> Result<(), Error> {
            refactor::<$type>(pool, tokens, values, result)
        }

        fn $solve(
            pool: ThreadPool<'_>,
            tokens: Operand<'_, i32>,
            versions: Operand<'_, i32>,
            b: Operand<'_, <$type as Scalar>::Xla>,
            x: Output<'_, <$type as Scalar>::Xla>,
            transposed: bool,
        ) -> Result<(), Error> {
            solve::<$type>(pool, tokens, versions, b, x, transposed)
        }

        handler!($refactor_handler = $refactor(pool, tokens, values, result));
        handler!($solve_handler = $solve(pool, tokens, versions, b, x; transposed));
        export!($refactor_handler as $refactor, $solve_handler as $solve);)*
    };
}

handlers! {
    f32: sparse_lu_refactor_float32 RefactorF32, sparse_lu_solve_float32 SolveF32;
    f64: sparse_lu_refactor_float64 RefactorF64, sparse_lu_solve_float64 SolveF64;
    c32: sparse_lu_refactor_complex64 RefactorC64, sparse_lu_solve_complex64 SolveC64;
    c64: sparse_lu_refactor_complex128 RefactorC128, sparse_lu_solve_complex128 SolveC128;
}
