//! One page for each concept, with an example that runs.
//!
//! | page | what it is about |
//! | --- | --- |
//! | [`registration`] | how JAX finds a handler, with and without pyo3 |
//! | [`buffers`] | operands and results: types, ranks, options, the rest, changes in place, GPUs |
//! | [`attributes`] | what a program says to a handler when it is compiled |
//! | [`context`] | stream, device, run, scratch memory, threads |
//! | [`state`] | what is made once for each call site, and the stages before the call |
//! | [`futures`] | results that come later |
//! | [`errors`] | codes, messages, panics, and what `panic = "abort"` means |
//! | [`testing`] | tests without a runtime |

/// How JAX finds a handler.
///
/// JAX takes a handler as a *capsule*, a Python object that holds the address of a C function. `Scale::FUNCTION` of a handler `Scale` is that
/// function.
///
/// # Without pyo3
///
/// [`export!`](crate::export!) makes it a symbol of a shared library (`crate-type = ["cdylib"]`):
///
/// ```
/// use xla_ffi::{Operand, Output, export, handler};
///
/// fn scale(x: Operand<'_, f64, 1>, mut y: Output<'_, f64, 1>, factor: f64) {
///     y.fill_with(|index| factor * x[index]);
/// }
///
/// handler!(pub Scale = scale(x, y; factor));
/// export!(Scale as scale);
/// ```
///
/// ```python
/// library = ctypes.CDLL("target/release/libscale.so")
/// jax.ffi.register_ffi_target("scale", jax.ffi.pycapsule(library.scale), platform="cpu")
/// ```
///
/// # With pyo3
///
/// An extension module is a shared library too, so the same works with its file:
///
/// ```python
/// library = ctypes.CDLL(my_extension.__file__)
/// jax.ffi.register_ffi_target("scale", jax.ffi.pycapsule(library.scale), platform="cpu")
/// ```
///
/// Or it makes the capsules itself. Then no symbol is needed, but one line that is unsafe. jaxlib asks a capsule for its own name, so any will do.
///
/// ```text
/// #[pyfunction]
/// fn scale_capsule(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
///     let function = NonNull::new(Scale::FUNCTION as *mut c_void).expect("a function has an address");
///     // SAFETY: it points to code, which is never unloaded, and nothing has to be freed.
///     unsafe { PyCapsule::new_with_pointer(py, function, c"xla_ffi") }
/// }
/// ```
///
/// ```python
/// jax.ffi.register_ffi_target("scale", my_extension.scale_capsule(), platform="cpu")
/// ```
///
/// # Platforms and stages
///
/// `platform` is `"cpu"`, `"CUDA"` or `"ROCM"`, and a name can have a handler for each. Handlers for more than one [`Stage`](crate::Stage) are registered
/// together: `jax.ffi.register_ffi_target(name, {"instantiate": capsule, "execute": capsule})`. JAX ignores a stage whose name it does not know.
/// A handler that is called in a stage, or on a platform, that it is not for is an error that says so.
pub mod registration {}

/// Operands and results.
///
/// A parameter says what it takes: the element type, the rank, and where the elements are. A call with anything else is an error, such as
/// ``operand 0 (`x`) is f32[3,4], wanted f64[_]``.
///
/// | type | takes |
/// | --- | --- |
/// | [`Operand<T, RANK>`](crate::Operand) | an operand, on the host a slice `[T]` in row-major order |
/// | [`Output<T, RANK>`](crate::Output) | a result, to be written |
/// | [`InPlace<T, RANK>`](crate::InPlace) | an operand and the result in its memory (`input_output_aliases` of `jax.ffi.ffi_call`) |
/// | [`Token<Arg>`](crate::Token), `Token<Ret>` | an XLA token, which has no elements |
/// | [`Buffer<Arg>`](crate::Buffer) | an operand of any type and rank |
/// | `Option` of one of these | one that may be left out |
/// | `Vec` of one of these | all that are left |
///
/// `RANK` may be left out: then any rank is taken, and [`dims`](crate::Operand::dims) has the dimensions. `T` is any [`Element`](crate::Element). A fourth
/// parameter, [`Device`](crate::Device), is for handlers on GPUs, which see addresses alone.
///
/// ```
/// use xla_ffi::mock::{CallSite, Invocation};
/// use xla_ffi::{Error, Operand, Output, handler};
///
/// /// The product of a matrix and a vector, and the number of rows if it is asked for.
/// fn product(
///     matrix: Operand<'_, f32, 2>,
///     x: Operand<'_, f32, 1>,
///     mut y: Output<'_, f32, 1>,
///     rows: Option<Output<'_, u64, 0>>,
/// ) -> Result<(), Error> {
///     let [height, width] = matrix.shape();
///     y.fill_with(|row| (0..width).map(|column| matrix[row * width + column] * x[column]).sum());
///     if let Some(mut rows) = rows {
///         rows.write(&[height as u64])?;
///     }
///     Ok(())
/// }
///
/// handler!(Product = product(matrix, x, y, rows));
///
/// let call = Invocation::new().operand(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0]).operand(&[2], &[1.0_f32, 1.0]).result::<f32>(&[2]);
/// assert_eq!(CallSite::new().run::<Product>(call)?.get::<f32>(0), [3.0, 7.0]);
/// # Ok::<(), xla_ffi::mock::Failure>(())
/// ```
///
/// Slices are safe: what is written shares no memory with anything else that the function has. Where the program lets XLA put a result into
/// an operand's memory and the function has the two apart, the call is an error.
pub mod buffers {}

/// Attributes: what a program says to a handler when it is compiled.
///
/// They stand behind the semicolon of [`handler!`](crate::handler!), by name, and are read as the type of the function's parameter. Types are never
/// converted.
///
/// | Rust | Python |
/// | --- | --- |
/// | `bool`, `i64`, `f64` | `True`, `3`, `np.float64(0.5)` |
/// | `f32`, `u8`, … | `np.float32(0.5)`, `np.uint8(3)`, … |
/// | `&str`, `String` | `"text"`, and `bytes` that are UTF-8 |
/// | `&[f64]`, `Vec<f64>` | `np.array([0.5, 1.5])` |
/// | a struct of [`attributes!`](crate::attributes!) | `{"tolerance": np.float64(0.5)}` |
/// | [`Attributes`](crate::Attributes) | any dictionary |
/// | `Option` of one of these | the same, or nothing |
///
/// ```
/// use xla_ffi::mock::{Attribute, CallSite, Invocation};
/// use xla_ffi::{Error, Output, attributes, handler};
///
/// attributes! {
///     struct Options {
///         tolerance: f64,
///         steps: Option<i64>,
///     }
/// }
///
/// fn solve(mut y: Output<'_, f64, 0>, options: Options, name: &str) -> Result<(), Error> {
///     assert_eq!(name, "newton");
///     y.write(&[options.tolerance * options.steps.unwrap_or(10) as f64])
/// }
///
/// handler!(Solve = solve(y; options, name));
///
/// let options = Attribute::dictionary([("tolerance", Attribute::scalar(0.5_f64))]);
/// let call = Invocation::new().result::<f64>(&[]).attribute("options", options).attribute("name", Attribute::string("newton"));
/// assert_eq!(CallSite::new().run::<Solve>(call)?.get::<f64>(0), [5.0]);
/// # Ok::<(), xla_ffi::mock::Failure>(())
/// ```
///
/// An attribute that the function does not have is an error, unless the list ends with `..`.
///
/// jaxlib refuses attributes of the types `float16`, `bfloat16`, `float8` and complex, arrays of `bool`, and lists of Python. Others take their place:
/// arrays of numpy for lists, of two `float64` for a complex number, of `uint8` for bits. An array of more
/// dimensions arrives as one of all its elements, and `np.array(0.5)` as an array of one.
pub mod attributes {}

/// What the runtime has for a call.
///
/// | parameter | what it is | where |
/// | --- | --- | --- |
/// | [`Stream`](crate::Stream) | the stream on which the call runs, a `CUstream` or `hipStream_t` | GPUs |
/// | [`DeviceOrdinal`](crate::DeviceOrdinal) | the number of the device | everywhere |
/// | [`RunId`](crate::RunId) | the number of the run of the program | everywhere |
/// | [`Scratch`](crate::Scratch) | device memory for the time of the call | GPUs |
/// | [`ThreadPool`](crate::ThreadPool) | the threads on which XLA runs programs | the host |
///
/// ```
/// use xla_ffi::{Device, Error, Operand, Output, Scratch, Stream, handler};
///
/// fn sort(
///     stream: Stream<'_>,
///     mut memory: Scratch<'_>,
///     x: Operand<'_, f32, 1, Device>,
///     mut y: Output<'_, f32, 1, Device>,
/// ) -> Result<(), Error> {
///     let bytes = size_of::<f32>() * x.len();
///     let workspace = memory.allocate(bytes, 16)?;
///     // Here a kernel is launched on `stream.as_ptr()`, from `x.as_ptr()` to `y.as_mut_ptr()`.
///     # let _ = (workspace, stream.as_ptr(), x.as_ptr(), y.as_mut_ptr());
///     Ok(())
/// }
///
/// handler!(pub Sort = sort(stream, memory, x, y));
/// ```
///
/// A handler with the trait [`COMMAND_BUFFER_COMPATIBLE`](crate::Traits::COMMAND_BUFFER_COMPATIBLE)
/// (`handler!(…, traits = Traits::COMMAND_BUFFER_COMPATIBLE)`) may be recorded into a CUDA or HIP graph: it only enqueues work on the stream, the same in
/// every call. The graph is launched again later, when [`Scratch`](crate::Scratch) memory has been freed, so such a handler takes the memory that it
/// needs as a result of the call.
pub mod context {}

/// State, and the stages before the call.
///
/// A handler of the stage [`Instantiate`](crate::Stage::Instantiate) returns [`NewState`](crate::NewState), once for each place in a program that calls the
/// target. The handler of the call finds it as [`State`](crate::State). It is dropped together with the compiled program. XLA uses it from many threads at
/// once, so what changes in it is behind a lock or atomic.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use xla_ffi::mock::{CallSite, Invocation};
/// use xla_ffi::{Error, NewState, Output, State, handler};
///
/// fn start(from: u64) -> NewState<AtomicU64> {
///     NewState(AtomicU64::new(from))
/// }
///
/// fn count(calls: State<'_, AtomicU64>, mut y: Output<'_, u64, 0>) -> Result<(), Error> {
///     y.write(&[calls.fetch_add(1, Ordering::Relaxed)])
/// }
///
/// handler!(Start = start(; from), stage = Instantiate);
/// handler!(Count = count(calls, y; ..));
///
/// let mut site = CallSite::new();
/// let call = || Invocation::new().scalar("from", 5_u64);
/// site.run::<Start>(call())?;
/// assert_eq!(site.run::<Count>(call().result::<u64>(&[]))?.get::<u64>(0), [5]);
/// assert_eq!(site.run::<Count>(call().result::<u64>(&[]))?.get::<u64>(0), [6]);
/// # Ok::<(), xla_ffi::mock::Failure>(())
/// ```
///
/// All handlers of a call site get the same attributes: those that one does not read are left to the others by `..`.
///
/// A state is returned in the stages before the call alone. On GPUs there are two stages more, in each run of the program before anything of it is
/// executed: [`Prepare`](crate::Stage::Prepare) and [`Initialize`](crate::Stage::Initialize), whose states are found as [`Prepared`](crate::Prepared) and [`Initialized`](crate::Initialized). On the host XLA has no
/// place for states of those stages (jaxlib 0.10 to 0.12), so asking for one is an error there.
pub mod state {}

/// Results that come later.
///
/// A handler that returns a [`Future`](crate::Future) has not written its results yet. Whoever has the [`Promise`](crate::Promise) writes them, on any thread, and
/// completes the call or fails it.
///
/// ```
/// use xla_ffi::mock::{CallSite, Invocation};
/// use xla_ffi::{Code, Error, Future, Operand, Output, ThreadPool, handler};
///
/// fn invert<'a>(pool: ThreadPool<'a>, x: Operand<'a, f64, 1>, y: Output<'a, f64, 1>) -> Future<'a> {
///     Future::new((x, y), move |promise| {
///         pool.spawn(|| {
///             promise.fulfil(|(x, mut y)| {
///                 if x.contains(&0.0) {
///                     return Err(Error::new(Code::OutOfRange, "0 has no inverse"));
///                 }
///                 y.fill_with(|index| 1.0 / x[index]);
///                 Ok(())
///             });
///         });
///     })
/// }
///
/// handler!(Invert = invert(pool, x, y));
///
/// let call = |x: [f64; 2]| Invocation::new().operand(&[2], &x).result::<f64>(&[2]);
/// assert_eq!(CallSite::new().run::<Invert>(call([2.0, 4.0]))?.get::<f64>(0), [0.5, 0.25]);
/// let (_, text) = CallSite::new().run::<Invert>(call([2.0, 0.0])).map(|_| ()).unwrap_err();
/// assert_eq!(text, "0 has no inverse");
/// # Ok::<(), xla_ffi::mock::Failure>(())
/// ```
///
/// The promise keeps operands and results, and gives them out as borrowed views, so nothing uses them when the call is over. A promise that is dropped is an
/// error of the call: no program waits for it forever.
pub mod futures {}

/// Errors and panics.
///
/// An [`Error`](crate::Error) has a [`Code`](crate::Code), one of the sixteen of absl, and a message. The user reads both in Python:
/// `JaxRuntimeError: OUT_OF_RANGE: 0 has no inverse`.
///
/// ```
/// use xla_ffi::mock::{CallSite, Invocation};
/// use xla_ffi::{Code, Error, Operand, handler};
///
/// fn check(x: Operand<'_, f64, 0>) -> Result<(), Error> {
///     match x[0] {
///         0.0 => Err(Error::new(Code::OutOfRange, "0 has no inverse")),
///         _ => Ok(()),
///     }
/// }
///
/// handler!(Check = check(x));
///
/// let failure = CallSite::new().run::<Check>(Invocation::new().operand(&[], &[0.0])).map(|_| ()).unwrap_err();
/// assert_eq!(failure, (Code::OutOfRange as i32, "0 has no inverse".into()));
/// ```
///
/// # Panics
///
/// A panic is caught, and becomes an error with the code [`Internal`](crate::Code::Internal) and the text `the handler panicked: …`. That holds for the
/// function, for the work of a promise, and for parts of work on the [`ThreadPool`](crate::ThreadPool).
///
/// With `panic = "abort"` in the profile of the shared library nothing can be caught: a panic ends the whole Python process, after its message. Leave that
/// setting out, as Rust does, unless that is what you want.
///
/// # What ends the process anyway
///
/// A call frame that is too broken to return an error with; and a runtime that refuses to be told that a future is completed, for which the
/// program would wait forever. Both are faults of the runtime, and say so.
pub mod errors {}

/// Tests without a runtime.
///
/// With the feature `mock`, `mock::CallSite` calls handlers as XLA does, in safe code:
///
/// ```toml
/// [dev-dependencies]
/// xla-ffi = { version = "0.2", features = ["mock"] }
/// ```
///
/// ```
/// use xla_ffi::mock::{CallSite, Invocation};
/// use xla_ffi::{Operand, Output, handler};
///
/// fn scale(x: Operand<'_, f64, 1>, mut y: Output<'_, f64, 1>, factor: f64) {
///     y.fill_with(|index| factor * x[index]);
/// }
///
/// handler!(Scale = scale(x, y; factor));
///
/// let call = || Invocation::new().operand(&[2], &[1.0_f64, 2.0]).result::<f64>(&[2]);
/// let results = CallSite::new().run::<Scale>(call().scalar("factor", 3.0_f64))?;
/// assert_eq!(results.get::<f64>(0), [3.0, 6.0]);
/// let (_, text) = CallSite::new().run::<Scale>(call()).map(|_| ()).unwrap_err();
/// assert_eq!(text, "attribute `factor` is missing, wanted a scalar of type f64; there are none");
/// # Ok::<(), xla_ffi::mock::Failure>(())
/// ```
///
/// Results are filled with other bytes before the call, so a result that a handler does not write is noticed. The stream of the mock is any address, and
/// device memory is memory of the host that safe code cannot reach.
pub mod testing {}
