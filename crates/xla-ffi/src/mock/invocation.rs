//! Calls of handlers with operands and results of their own, in safe code.

use core::ffi::c_int;

use super::attribute::{Attribute, Elements};
use super::{Context, Failure, Frame};
use crate::{DType, Element, Handler, entry};

/// A place in a program that calls a target: its handlers share their state.
///
/// ```
/// use xla_ffi::mock::{CallSite, Invocation};
/// use xla_ffi::{NewState, Operand, Output, State, handler};
///
/// fn remember(factor: f64) -> NewState<f64> {
///     NewState(factor)
/// }
///
/// fn scale(x: Operand<'_, f64, 1>, mut y: Output<'_, f64, 1>, factor: State<'_, f64>) {
///     y.fill_with(|index| *factor * x[index]);
/// }
///
/// handler!(Remember = remember(; factor), stage = Instantiate);
/// handler!(Scale = scale(x, y, factor; ..));
///
/// let mut site = CallSite::new();
/// site.run::<Remember>(Invocation::new().scalar("factor", 3.0_f64))?;
/// let results = site.run::<Scale>(Invocation::new().operand(&[2], &[1.0_f64, 2.0]).result::<f64>(&[2]))?;
/// assert_eq!(results.get::<f64>(0), [3.0, 6.0]);
/// # Ok::<(), xla_ffi::mock::Failure>(())
/// ```
pub struct CallSite(Context);

impl CallSite {
    /// A call site whose handlers have not run yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Context::new())
    }

    /// Calls a handler, in the stage that it is for.
    ///
    /// # Errors
    /// What the handler reported.
    pub fn run<H: Handler>(&mut self, call: Invocation) -> Result<Results, Failure> {
        self.run_in::<H>(H::STAGE.as_c(), call)
    }

    /// How many pieces of device memory are not freed.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.0.allocated.len()
    }

    /// Calls a handler in a stage of that number.
    ///
    /// # Errors
    /// What the handler reported.
    pub fn run_in<H: Handler>(&mut self, stage: c_int, call: Invocation) -> Result<Results, Failure> {
        let Invocation { mut operands, mut results, attributes, stream } = call;
        let mut frame = Frame::new().tweak(move |frame| frame.stage = stage);
        for (dtype, dims, elements) in &mut operands {
            frame = frame.arg(*dtype, dims, elements.as_mut_ptr());
        }
        for Place { dtype, dims, of_operand, elements, .. } in &mut results {
            let data = match of_operand {
                Some(index) => operands[*index].2.as_mut_ptr(),
                None => elements.as_mut_ptr(),
            };
            frame = frame.ret(*dtype, dims, data);
        }
        for (name, value) in attributes {
            frame = frame.attribute(&name, value);
        }
        core::mem::swap(&mut self.0, &mut frame.context);
        frame = frame.stream(core::ptr::without_provenance_mut(stream));
        // SAFETY: the handler is safe code behind `entry`. All memory is there, as large as it is said to be, aligned and set; what shares memory
        // is a result with the operand that `in_place` names. Handlers of GPUs get addresses of the host, which safe code cannot follow.
        let outcome = unsafe { frame.call(entry::<H>) };
        core::mem::swap(&mut self.0, &mut frame.context);
        outcome.map(|()| Results { operands, results })
    }
}

impl Default for CallSite {
    fn default() -> Self {
        Self::new()
    }
}

struct Place {
    dtype: c_int,
    dims: Vec<i64>,
    len: usize,
    of_operand: Option<usize>,
    elements: Elements,
}

/// The operands, results and attributes of one call.
#[derive(Default)]
pub struct Invocation {
    operands: Vec<(c_int, Vec<i64>, Elements)>,
    results: Vec<Place>,
    attributes: Vec<(String, Attribute)>,
    stream: usize,
}

impl Invocation {
    /// A call without any.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operand.
    ///
    /// # Panics
    /// There are not as many values as the dimensions say.
    #[must_use]
    pub fn operand<T: Element>(mut self, dims: &[i64], values: &[T]) -> Self {
        assert_eq!(values.len(), count(dims), "an operand of dimensions {dims:?}");
        self.operands.push((T::DTYPE.0, dims.to_vec(), Elements::new(values)));
        self
    }

    /// Adds an operand of bytes that claims to be of another type.
    ///
    /// # Panics
    /// There are not as many bytes as the dimensions and that type say.
    #[must_use]
    pub fn operand_as(mut self, dtype: DType, dims: &[i64], bytes: &[u8]) -> Self {
        assert_eq!(
            Some(bytes.len()),
            dtype.bytes().map(|width| width * count(dims)),
            "an operand {dtype} of dimensions {dims:?}"
        );
        self.operands.push((dtype.0, dims.to_vec(), Elements::new(bytes)));
        self
    }

    /// Adds an XLA token as an operand.
    #[must_use]
    pub fn token(mut self) -> Self {
        self.operands.push((DType::TOKEN.0, Vec::new(), Elements::unset(1)));
        self
    }

    /// Adds a result.
    #[must_use]
    pub fn result<T: Element>(mut self, dims: &[i64]) -> Self {
        let len = count(dims);
        let elements = Elements::unset(len * size_of::<T>());
        self.results.push(Place { dtype: T::DTYPE.0, dims: dims.to_vec(), len, of_operand: None, elements });
        self
    }

    /// Adds a result of the type, dimensions and memory of an operand.
    ///
    /// # Panics
    /// There is no operand of that index.
    #[must_use]
    pub fn in_place(mut self, operand: usize) -> Self {
        let (dtype, dims, _) = &self.operands[operand];
        let (dtype, dims, elements) = (*dtype, dims.clone(), Elements::unset(0));
        self.results.push(Place { dtype, len: count(&dims), dims, of_operand: Some(operand), elements });
        self
    }

    /// The runtime has a stream, which is at that address.
    #[must_use]
    pub fn stream(mut self, address: usize) -> Self {
        self.stream = address;
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, name: &str, value: Attribute) -> Self {
        self.attributes.push((name.into(), value));
        self
    }

    /// Adds a scalar as an attribute.
    #[must_use]
    pub fn scalar<T: Element>(self, name: &str, value: T) -> Self {
        self.attribute(name, Attribute::scalar(value))
    }
}

/// What a call has left in its results.
pub struct Results {
    operands: Vec<(c_int, Vec<i64>, Elements)>,
    results: Vec<Place>,
}

impl Results {
    /// The elements of a result.
    ///
    /// # Panics
    /// There is no result of that index, it has another element type, or a `bool` in it is neither 0 nor 1.
    #[must_use]
    pub fn get<T: Element>(&self, index: usize) -> Vec<T> {
        let place = &self.results[index];
        assert_eq!(place.dtype, T::DTYPE.0, "result {index} is {}, not {}", DType(place.dtype), T::DTYPE);
        let elements = match place.of_operand {
            Some(index) => &self.operands[index].2,
            None => &place.elements,
        };
        if T::DTYPE == bool::DTYPE {
            // SAFETY: there is a byte for each element, and it is set.
            let bytes = unsafe { core::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), place.len) };
            assert!(bytes.iter().all(|&byte| byte < 2), "result {index} has a bool that is neither 0 nor 1");
        }
        // SAFETY: as many elements of this type are there; the memory was set before the call.
        unsafe { core::slice::from_raw_parts(elements.as_ptr().cast::<T>(), place.len) }.to_vec()
    }
}

fn count(dims: &[i64]) -> usize {
    dims.iter().map(|&dim| usize::try_from(dim).expect("no dimension is negative")).product()
}
