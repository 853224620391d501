//! `entangle_audit` for Python: its answers as classes with the names that they have there. `entangle_jax/_audit_report.py` says what they mean.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};

use entangle_audit::{CopyReason, Fate, Kind, Known, Module, Unproven};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// What some native calls do, and to which object: see `entangle_audit::Access`.
#[pyclass(frozen, eq, module = "entangle_jax._native")]
#[derive(Clone, PartialEq)]
pub(crate) struct Access(entangle_audit::Access);

#[pymethods]
impl Access {
    /// All that is given of `target`, `op_name` and `name` must hold for a call. Without `operands`, `attribute` and `whole` it touches all of
    /// the resource, or without a resource what its operand 0 holds.
    #[new]
    #[pyo3(signature = (
        *, writes, target=None, op_name=None, name=None, resource=None, operands=None, attribute=None, whole=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        writes: bool,
        target: Option<String>,
        op_name: Option<String>,
        name: Option<String>,
        resource: Option<String>,
        operands: Option<Vec<usize>>,
        attribute: Option<String>,
        whole: bool,
    ) -> PyResult<Self> {
        if target.is_none() && op_name.is_none() && name.is_none() {
            return Err(PyValueError::new_err("an access is of no call: wanted a target, an op_name or a name"));
        }
        let object = match (operands, attribute, whole) {
            (None, None, false) => entangle_audit::Object::Default,
            (None, None, true) => entangle_audit::Object::Whole,
            (Some(operands), None, false) => entangle_audit::Object::Operands(operands),
            (None, Some(attribute), false) => entangle_audit::Object::Attribute(attribute),
            _ => return Err(PyValueError::new_err("an object is named by operands, or an attribute, or is the whole")),
        };
        let calls = entangle_audit::Calls { target, op_name, name };
        Ok(Self(entangle_audit::Access { calls, writes, resource, object }))
    }

    /// Reads `[RESOURCE=]TARGET[:OBJECT]`.
    #[staticmethod]
    fn parse(text: &str, writes: bool) -> PyResult<Self> {
        entangle_audit::Access::parse(text, writes).map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn writes(&self) -> bool {
        self.0.writes
    }

    #[getter]
    fn target(&self) -> Option<&str> {
        self.0.calls.target.as_deref()
    }

    #[getter]
    fn resource(&self) -> Option<&str> {
        self.0.resource.as_deref()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A line of source code.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
#[derive(Clone)]
pub(crate) struct Source {
    file: String,
    line: u32,
    function: String,
}

impl From<entangle_audit::Source> for Source {
    fn from(source: entangle_audit::Source) -> Self {
        Self { file: source.file, line: source.line, function: source.function }
    }
}

/// A native call. Calls from the same lines share the tuples that say so.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
pub(crate) struct Call {
    name: String,
    target: String,
    kind: &'static str,
    place: Py<PyTuple>,
    sources: Py<PyTuple>,
    op_name: String,
    operand_types: Vec<String>,
    reads: Vec<usize>,
    writes: Vec<usize>,
}

/// Something that native calls touch.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
pub(crate) struct Object {
    name: String,
    may_be: Vec<usize>,
}

/// Two calls without a data path.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
#[derive(Clone)]
pub(crate) struct Race {
    first: usize,
    second: usize,
    handle: String,
    later_iteration_of: Option<String>,
    loop_sources: Vec<Source>,
    unproven: Option<&'static str>,
}

/// The races, and how many more there are than are listed.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
pub(crate) struct Races {
    list: Vec<Race>,
    more: usize,
}

/// A leaf of a payload.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
#[derive(Clone)]
pub(crate) struct PayloadLeaf {
    bytes: u64,
    has_elements: bool,
    copied_by: Option<String>,
    why: Option<&'static str>,
    whom: Option<String>,
}

/// What one call of `entangle` cost.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
pub(crate) struct Cost {
    call: usize,
    payload: Vec<PayloadLeaf>,
    witnesses: usize,
    dropped_witnesses: Vec<usize>,
    transposes: Vec<String>,
    collectives: Vec<String>,
}

/// Arrows between calls, without those that others imply, and how many calls were left out.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
pub(crate) struct Graph {
    edges: Vec<(usize, usize)>,
    more: usize,
}

/// A call that the compiled program lacks, and the one that it was merged with, if with one.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
pub(crate) struct Lost {
    call: usize,
    merged_with: Option<usize>,
    never_runs: bool,
}

/// A call that the compiled program makes outside of a loop that it was in.
#[pyclass(frozen, get_all, module = "entangle_jax._native")]
pub(crate) struct Moved {
    call: usize,
    to: usize,
    out_of: Vec<Source>,
}

/// One program, read and followed.
#[pyclass(frozen, module = "entangle_jax._native")]
pub(crate) struct Audit(entangle_audit::Audit);

#[pymethods]
impl Audit {
    /// Reads a serialized `HloModuleProto` or `HloProto`.
    #[new]
    #[pyo3(signature = (program, accesses, *, same=Vec::new(), pair_by_name=true))]
    #[expect(clippy::needless_pass_by_value, reason = "made of a Python list")]
    fn new(
        py: Python<'_>,
        program: &[u8],
        accesses: Vec<PyRef<'_, Access>>,
        same: Vec<Vec<usize>>,
        pair_by_name: bool,
    ) -> PyResult<Self> {
        let accesses = accesses.iter().map(|access| access.0.clone()).collect();
        let known = Known { accesses, same, pair_by_name, ..Known::default() };
        away(py, || Module::parse(program).and_then(|module| entangle_audit::Audit::new(module, &known)))?
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
    fn arguments(&self) -> Vec<String> {
        self.0.module().arguments()
    }

    #[getter]
    fn instructions(&self) -> usize {
        self.0.module().len()
    }

    #[getter]
    fn is_scheduled(&self) -> bool {
        self.0.module().is_scheduled()
    }

    fn calls(&self, py: Python<'_>) -> PyResult<Vec<Call>> {
        let mut places = HashMap::new();
        let mut sources = HashMap::new();
        let tuple = |tuple: PyResult<Bound<'_, PyTuple>>| tuple.map(Bound::unbind);
        let calls = self.0.calls().iter().enumerate().map(|(number, call)| {
            let place = made_once(py, &mut places, call.place.as_ptr(), || tuple(PyTuple::new(py, call.place.iter())))?;
            let sources = made_once(py, &mut sources, call.source.as_ptr(), || {
                let lines = call.source.iter().cloned();
                let lines = lines.map(|s| Py::new(py, Source::from(s)));
                tuple(PyTuple::new(py, lines.collect::<PyResult<Vec<_>>>()?))
            })?;
            Ok(Call {
                name: call.name.clone(),
                target: call.target.clone(),
                kind: match call.kind {
                    Kind::Read => "read",
                    Kind::Write => "write",
                    Kind::Entangle => "entangle",
                },
                place,
                sources,
                op_name: call.op_name.clone(),
                operand_types: self.0.operand_types(number),
                reads: call.reads.clone(),
                writes: call.writes.clone(),
            })
        });
        calls.collect()
    }

    /// For each call, when the program makes it.
    fn order_of_the_trace(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        away(py, || self.0.order_of_the_trace())
    }

    /// What the calls touch.
    fn objects(&self, py: Python<'_>) -> PyResult<Vec<Object>> {
        let objects = away(py, || self.0.objects())?;
        Ok(objects.into_iter().map(|object| Object { name: object.name, may_be: object.may_be }).collect())
    }

    fn races(&self, py: Python<'_>) -> PyResult<Races> {
        let races = away(py, || self.0.races())?;
        let list = races.list.into_iter().map(|race| Race {
            first: race.first,
            second: race.second,
            handle: race.handle,
            later_iteration_of: race.later_iteration_of,
            loop_sources: race.loop_source.into_iter().map(Source::from).collect(),
            unproven: race.unproven.map(|unproven| match unproven {
                Unproven::ControlEdge => "control edge",
                Unproven::Schedule => "schedule",
            }),
        });
        Ok(Races { list: list.collect(), more: races.more })
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

    /// Of each of these calls, in ascending order, the positions in the list of those that come before it by data.
    #[expect(clippy::needless_pass_by_value, reason = "made of a Python list")]
    fn before_each(&self, py: Python<'_>, calls: Vec<usize>) -> PyResult<Vec<Vec<usize>>> {
        away(py, || self.0.before_each(&calls))
    }

    fn costs(&self, py: Python<'_>) -> PyResult<Vec<Cost>> {
        let costs = away(py, || self.0.costs())?;
        let costs = costs.into_iter().map(|cost| Cost {
            call: cost.call,
            payload: cost.payload.into_iter().map(payload_leaf).collect(),
            witnesses: cost.witnesses,
            dropped_witnesses: cost.dropped_witnesses,
            transposes: cost.transposes,
            collectives: cost.collectives,
        });
        Ok(costs.collect())
    }

    fn graph(&self, py: Python<'_>) -> PyResult<Graph> {
        let graph = away(py, || self.0.graph())?;
        Ok(Graph { edges: graph.edges, more: graph.more })
    }

    /// Calls of this program, as written, that `compiled` lacks.
    fn lost(&self, py: Python<'_>, compiled: &Self) -> PyResult<Vec<Lost>> {
        let lost = away(py, || entangle_audit::lost(&self.0, &compiled.0))?;
        let lost = lost.into_iter().map(|lost| Lost {
            call: lost.call,
            merged_with: lost.merged_with,
            never_runs: lost.never_runs,
        });
        Ok(lost.collect())
    }

    /// For each call of `compiled`, the call of this program, as written, that it was.
    fn counterparts(&self, py: Python<'_>, compiled: &Self) -> PyResult<Vec<Option<usize>>> {
        away(py, || entangle_audit::counterparts(&self.0, &compiled.0))
    }

    /// Calls of this program, as written, that `compiled` makes outside of a loop that they were in.
    fn moved(&self, py: Python<'_>, compiled: &Self) -> PyResult<Vec<Moved>> {
        let moved = away(py, || entangle_audit::moved(&self.0, &compiled.0))?;
        let moved = moved.into_iter().map(|moved| Moved {
            call: moved.call,
            to: moved.to,
            out_of: moved.out_of.into_iter().map(Source::from).collect(),
        });
        Ok(moved.collect())
    }
}

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Access>()?;
    module.add_class::<Audit>()?;
    module.add_class::<Call>()?;
    module.add_class::<Cost>()?;
    module.add_class::<Graph>()?;
    module.add_class::<Lost>()?;
    module.add_class::<Moved>()?;
    module.add_class::<Object>()?;
    module.add_class::<PayloadLeaf>()?;
    module.add_class::<Race>()?;
    module.add_class::<Races>()?;
    module.add_class::<Source>()
}

/// What was made for this key, which is made now if it was not.
fn made_once<K: Eq + Hash, V>(
    py: Python<'_>,
    known: &mut HashMap<K, Py<V>>,
    key: K,
    make: impl FnOnce() -> PyResult<Py<V>>,
) -> PyResult<Py<V>> {
    Ok(match known.entry(key) {
        Entry::Occupied(there) => there.get().clone_ref(py),
        Entry::Vacant(place) => place.insert(make()?).clone_ref(py),
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

fn payload_leaf(leaf: entangle_audit::PayloadLeaf) -> PayloadLeaf {
    let plain = PayloadLeaf { bytes: leaf.bytes, has_elements: true, copied_by: None, why: None, whom: None };
    match leaf.fate {
        Fate::InPlace => plain,
        Fate::NoElements => PayloadLeaf { has_elements: false, ..plain },
        Fate::Copied { by, why } => {
            let (why, whom) = match why {
                CopyReason::NotDonated { argument } => ("argument not donated", Some(argument)),
                CopyReason::PassedTwice => ("passed twice", None),
                CopyReason::StillUsed { by } => ("still used", Some(by)),
                CopyReason::Constant => ("constant", None),
                CopyReason::Layout => ("layout", None),
                CopyReason::Unknown => ("unknown", None),
            };
            PayloadLeaf { copied_by: Some(by), why: Some(why), whom, ..plain }
        }
    }
}
