//! `entangle_audit` for Python: the answers as tuples and dictionaries, which `entangle_jax/_audit.py` gives names and words.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};

use entangle_audit::{CopyReason, Cost, Fate, Kind, Module, Target, Targets, Unproven};
use layout::backends::svg::SVGWriter;
use layout::gv::{DotParser, GraphBuilder};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// One program, read and followed.
#[pyclass(frozen, module = "entangle_jax._native")]
pub(crate) struct Audit(entangle_audit::Audit);

/// (name, target, kind, place, sources as (file, line, function), `op_name`, handles); all lists are tuples, and calls from the same lines share them
type Call<'py> =
    (&'py str, &'py str, &'static str, Bound<'py, PyTuple>, Bound<'py, PyTuple>, &'py str, Bound<'py, PyTuple>);
/// (first, second, handle, loop, what orders them without proof)
type Race = (usize, usize, String, Option<String>, Option<&'static str>);
/// (bytes, (copy, why, by whom) if it was copied, whether it has elements)
type Leaf = (u64, Option<(String, &'static str, Option<String>)>, bool);
/// (call, payload, witnesses, dropped witnesses, transposes, collectives)
type CostOfCall = (usize, Vec<Leaf>, usize, Vec<usize>, Vec<String>, Vec<String>);

#[pymethods]
impl Audit {
    /// Reads a serialized `HloModuleProto` or `HloProto`. A target is a name and the operands that hold its handles.
    #[new]
    fn new(
        py: Python<'_>,
        program: &[u8],
        reads: Vec<(String, Vec<usize>)>,
        writes: Vec<(String, Vec<usize>)>,
        others: Vec<String>,
    ) -> PyResult<Self> {
        let targets = |list: Vec<(String, Vec<usize>)>| {
            list.into_iter().map(|(name, operands)| Target { name, operands }).collect()
        };
        let targets = Targets { reads: targets(reads), writes: targets(writes), others, ..Targets::default() };
        away(py, || Module::parse(program).and_then(|module| entangle_audit::Audit::new(module, &targets)))?
            .map(Self)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn module(&self) -> &str {
        self.0.module().name()
    }

    #[getter]
    fn id(&self) -> i64 {
        self.0.module().id()
    }

    #[getter]
    fn targets(&self) -> Vec<&str> {
        self.0.module().targets().into_iter().collect()
    }

    #[getter]
    fn instructions(&self) -> usize {
        self.0.module().len()
    }

    #[getter]
    fn is_scheduled(&self) -> bool {
        self.0.module().is_scheduled()
    }

    fn calls<'py>(&'py self, py: Python<'py>) -> PyResult<Vec<Call<'py>>> {
        let mut places = HashMap::new();
        let mut sources = HashMap::new();
        self.0
            .calls()
            .iter()
            .map(|call| {
                let place = made_once(&mut places, call.place.as_ptr(), || PyTuple::new(py, call.place.iter()))?;
                let source = made_once(&mut sources, call.source.as_ptr(), || {
                    PyTuple::new(py, call.source.iter().map(|s| (&s.file, s.line, &s.function)))
                })?;
                let kind = match call.kind {
                    Kind::Read => "read",
                    Kind::Write => "write",
                    Kind::Entangle => "entangle",
                    Kind::Other => "other",
                };
                Ok((
                    call.name.as_str(),
                    call.target.as_str(),
                    kind,
                    place,
                    source,
                    call.op_name.as_str(),
                    PyTuple::new(py, call.handles.iter())?,
                ))
            })
            .collect()
    }

    /// The races, and how many more there are than are listed.
    fn races(&self, py: Python<'_>) -> PyResult<(Vec<Race>, usize)> {
        let races = away(py, || self.0.races())?;
        let list = races
            .list
            .into_iter()
            .map(|race| {
                let unproven = match race.unproven {
                    Unproven::Nothing => None,
                    Unproven::ControlEdge => Some("control edge"),
                    Unproven::Schedule => Some("schedule"),
                };
                (race.first, race.second, race.handle, race.later_iteration_of, unproven)
            })
            .collect();
        Ok((list, races.more))
    }

    /// Whether each of `seconds` comes after each of `firsts` by data, in later iterations of the loops around both if so asked; None if
    /// there is no such pair.
    #[expect(clippy::needless_pass_by_value, reason = "made of Python lists")]
    fn all_ordered(
        &self,
        py: Python<'_>,
        firsts: Vec<usize>,
        seconds: Vec<usize>,
        later_iteration: bool,
    ) -> PyResult<Option<bool>> {
        away(py, || self.0.all_ordered(&firsts, &seconds, later_iteration))
    }

    fn costs(&self, py: Python<'_>) -> PyResult<Vec<CostOfCall>> {
        Ok(away(py, || self.0.costs())?.into_iter().map(cost).collect())
    }

    /// Arrows between calls, without those that others imply, and how many calls were left out.
    fn graph(&self, py: Python<'_>) -> PyResult<(Vec<(usize, usize)>, usize)> {
        let graph = away(py, || self.0.graph())?;
        Ok((graph.edges, graph.more))
    }

    /// Calls of this program, as written, that `compiled` lacks, and in which call each was merged if in one.
    fn lost(&self, py: Python<'_>, compiled: &Self) -> PyResult<Vec<(usize, Option<usize>)>> {
        let lost = away(py, || entangle_audit::lost(&self.0, &compiled.0))?;
        Ok(lost.into_iter().map(|lost| (lost.call, lost.merged_with)).collect())
    }
}

/// What was made for this key, which is made now if it was not.
fn made_once<K: Eq + Hash, V: Clone>(
    known: &mut HashMap<K, V>,
    key: K,
    make: impl FnOnce() -> PyResult<V>,
) -> PyResult<V> {
    Ok(match known.entry(key) {
        Entry::Occupied(there) => there.get().clone(),
        Entry::Vacant(place) => place.insert(make()?).clone(),
    })
}

/// Works while other Python threads run. A panic is a fault of the audit, which a caller may catch like other errors.
fn away<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work))).map_err(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        PyRuntimeError::new_err(format!(
            "a fault in entangle_jax.audit: {}; please report it with the program",
            said.unwrap_or("it does not say what")
        ))
    })
}

fn cost(cost: Cost) -> CostOfCall {
    let leaf = |leaf: entangle_audit::PayloadLeaf| match leaf.fate {
        Fate::InPlace => (leaf.bytes, None, true),
        Fate::NoElements => (leaf.bytes, None, false),
        Fate::Copied { by, why } => {
            let (why, whom) = match why {
                CopyReason::NotDonated { argument } => ("argument not donated", Some(argument)),
                CopyReason::PassedTwice => ("passed twice", None),
                CopyReason::StillUsed { by } => ("still used", Some(by)),
                CopyReason::Constant => ("constant", None),
                CopyReason::Layout => ("layout", None),
                CopyReason::Unknown => ("unknown", None),
            };
            (leaf.bytes, Some((by, why, whom)), true)
        }
    };
    let payload = cost.payload.into_iter().map(leaf).collect();
    (cost.call, payload, cost.witnesses, cost.dropped_witnesses, cost.transposes, cost.collectives)
}

/// Draws a graph in the DOT language as SVG.
#[pyfunction]
pub(crate) fn draw(py: Python<'_>, dot: &str) -> PyResult<String> {
    py.detach(|| {
        catch_unwind(|| {
            let graph = DotParser::new(dot).process()?;
            let mut builder = GraphBuilder::new();
            builder.visit_graph(&graph);
            let mut svg = SVGWriter::new();
            builder.get().do_it(false, false, false, &mut svg);
            Ok(svg.finalize())
        })
        .unwrap_or_else(|_| Err("the layout failed".into()))
    })
    .map_err(|error: String| PyValueError::new_err(format!("cannot draw this graph: {error}")))
}
