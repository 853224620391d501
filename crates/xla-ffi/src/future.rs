//! Results that come later: what a handler returns at once, and what keeps its buffers until they are there.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::boundary::{ErrorCreate, create_error, panic_error, panic_text};
use crate::call::{Call, function};
use crate::element::Element;
use crate::error::{Code, Error};
use crate::ffi;
use crate::view::{InPlace, Memory, Operand, Output};

/// What a handler returns whose results come later. The runtime may go on with whatever does not need them.
///
/// It is made of the operands and results that are used later, and of a function that starts the work. That function is called once the
/// runtime has been told, with a [`Promise`] that may go to any thread and is completed there, or fails there:
///
/// ```
/// use xla_ffi::{Future, Operand, Output, handler};
///
/// fn square<'a>(x: Operand<'a, f64, 1>, y: Output<'a, f64, 1>) -> Future<'a> {
///     Future::new((x, y), |promise| {
///         std::thread::spawn(|| {
///             promise.fulfil(|(x, mut y)| {
///                 y.fill_with(|index| x[index] * x[index]);
///                 Ok(())
///             });
///         });
///     })
/// }
///
/// handler!(pub Square = square(x, y));
/// # use xla_ffi::mock::{CallSite, Invocation};
/// # let call = Invocation::new().operand(&[2], &[2.0_f64, 3.0]).result::<f64>(&[2]);
/// # assert_eq!(CallSite::new().run::<Square>(call).unwrap().get::<f64>(0), [4.0, 9.0]);
/// ```
///
/// Other parameters end with the call: attributes are copied (`move`), and a state that is needed later holds an `Arc`. Nothing that was
/// lent for the call can go to another thread:
///
/// ```compile_fail,E0521
/// # use xla_ffi::{Future, Operand, Output, handler};
/// fn square<'a>(x: Operand<'a, f64, 1>, y: Output<'a, f64, 1>) -> Future<'a> {
///     let x = x.as_slice();
///     Future::new(y, move |promise| {
///         std::thread::spawn(move || promise.fulfil(|mut y| y.write(x)));
///     })
/// }
/// ```
///
/// XLA decides what it does meanwhile. On the CPU it starts independent calls together in programs with large arrays, and one after the other in
/// small programs.
///
/// [`ThreadPool::spawn`](crate::ThreadPool::spawn) runs the work on the runtime's own threads. On GPUs no future is needed for work on the stream
/// of the call, which the runtime waits for anyway.
pub struct Future<'a>(Box<dyn FnOnce(Completion) + 'a>);

impl<'a> Future<'a> {
    /// A future of these operands and results, on which `start` sets others to work.
    pub fn new<P: Keep + 'a>(parameters: P, start: impl FnOnce(Promise<P::Kept>) + 'a) -> Self {
        Self(Box::new(move |completion| start(Promise { kept: parameters.keep(sealed::Key(())), completion })))
    }

    /// Tells the runtime that the results come later, and starts the work.
    pub(crate) fn start(self, call: &Call<'_>) -> Result<(), Error> {
        let completion = Completion::new(call)?;
        // The runtime waits for the future from here on, so there is no other error to return. What was thrown has dropped the promise, or
        // has left it where it is completed.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.0)(completion))) {
            drop(panic_text(panic));
        }
        Ok(())
    }
}

/// The duty to say that the results of a call are there, and the operands and results that are used until then.
///
/// The one who has it ends it with [`fulfil`](Self::fulfil) or [`complete`](Self::complete). A promise that is dropped before is an error
/// of the call, so that no program waits for it forever. (One that is forgotten, by [`core::mem::forget`], is waited for.)
pub struct Promise<K: Lend> {
    kept: K,
    completion: Completion,
}

impl<K: Lend> Promise<K> {
    /// Does the work that is left, and completes the call with what came of it. A panic is an error of the call.
    pub fn fulfil(mut self, work: impl FnOnce(K::At<'_>) -> Result<(), Error>) {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self.kept.lend())));
        self.complete(outcome.unwrap_or_else(|panic| Err(panic_error(panic))));
    }

    /// The operands and results, for work that has more than one part.
    pub fn parameters(&mut self) -> K::At<'_> {
        self.kept.lend()
    }

    /// Completes the call: its results are all written, or there is an error, which the user reads in Python.
    pub fn complete(mut self, outcome: Result<(), Error>) {
        self.completion.complete(outcome);
    }
}

type SetAvailable = unsafe extern "C" fn(*mut ffi::FutureSetAvailableArgs) -> *mut ffi::Error;
type SetError = unsafe extern "C" fn(*mut ffi::FutureSetErrorArgs) -> *mut ffi::Error;

/// The runtime's end of a promise.
struct Completion {
    /// Taken when it is completed, which happens once.
    future: Option<NonNull<ffi::Future>>,
    error_create: ErrorCreate,
    set_available: SetAvailable,
    set_error: SetError,
}

// SAFETY: a future is made to be completed by any thread, and the functions are the runtime's.
unsafe impl Send for Completion {}

impl Completion {
    /// Makes a future of the runtime, and sets it as what the call returns.
    fn new(call: &Call<'_>) -> Result<Self, Error> {
        if call.stage_number() != ffi::STAGE_EXECUTE {
            let why = "only in the stage \"execute\" may a handler return a future";
            return Err(Error::new(Code::Unimplemented, why));
        }
        let error_create = function!(call, error_create, "XLA_FFI_Error_Create")?;
        let set_available = function!(call, future_set_available, "XLA_FFI_Future_SetAvailable")?;
        let set_error = function!(call, future_set_error, "XLA_FFI_Future_SetError")?;
        let create = function!(call, future_create, "XLA_FFI_Future_Create")?;
        let mut args = ffi::FutureCreateArgs::new();
        // SAFETY: the runtime's own function.
        unsafe { call.ask(create, &raw mut args) }?;
        let future = NonNull::new(args.future)
            .ok_or_else(|| Error::new(Code::Internal, "the runtime gave a null pointer for a future"))?;
        // SAFETY: the future was just made by the runtime of the call, which has the function for it.
        unsafe { call.set_future(future) };
        Ok(Self { future: Some(future), error_create, set_available, set_error })
    }

    fn complete(&mut self, outcome: Result<(), Error>) {
        let Some(future) = self.future.take() else { return };
        let refused = match outcome {
            Ok(()) => {
                let mut args = ffi::FutureSetAvailableArgs::new();
                args.future = future.as_ptr();
                // SAFETY: the runtime's own function, with its own future, which is completed once.
                unsafe { (self.set_available)(&raw mut args) }
            }
            Err(error) => {
                let mut args = ffi::FutureSetErrorArgs::new();
                args.future = future.as_ptr();
                // SAFETY: the runtime's own function.
                args.error = unsafe { create_error(self.error_create, &error) };
                // SAFETY: as above; the runtime owns the error from here on.
                unsafe { (self.set_error)(&raw mut args) }
            }
        };
        if !refused.is_null() {
            // The program would wait forever.
            eprintln!(
                "XLA FFI handler: the runtime does not take the end of a call whose results came later; stopping"
            );
            std::process::abort();
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.future.is_some() {
            let how = if std::thread::panicking() { "by a panic " } else { "" };
            let why = format!(
                "the results of the call never came: the handler's promise was dropped {how}before it was completed"
            );
            self.complete(Err(Error::new(Code::Aborted, why)));
        }
    }
}

/// Parameters that can be used after the handler has returned: an [`Operand`], an [`Output`] or an [`InPlace`], and options, vectors and tuples of
/// such.
pub trait Keep: sealed::Keep {
    /// What holds them meanwhile.
    type Kept: Lend;

    #[doc(hidden)]
    fn keep(self, _: sealed::Key) -> Self::Kept;
}

/// What holds operands and results until a [`Promise`] is completed.
pub trait Lend: Send + 'static {
    /// Them, for as long as they are borrowed.
    type At<'x>;

    #[doc(hidden)]
    fn lend(&mut self) -> Self::At<'_>;
}

mod sealed {
    pub trait Keep {}

    /// Only a future keeps what was lent for a call: it sees to it that the runtime does.
    #[derive(Clone, Copy)]
    pub struct Key(pub(super) ());
}

/// An operand or a result that a [`Promise`] holds. `V` is its view with the lifetime `'static`, to write a promise's type down:
/// `Promise<Kept<Output<'static, f64, 1>>>`.
pub struct Kept<V> {
    /// A copy: XLA keeps the elements of buffers until the call is completed, and says nothing of their dimensions.
    dims: Box<[i64]>,
    data: *mut c_void,
    view: PhantomData<fn() -> V>,
}

// SAFETY: a buffer may be used from any thread: elements are `Send` and `Sync`, and no other view writes to what this one reads.
unsafe impl<V> Send for Kept<V> {}

macro_rules! kept {
    ($($view:ident)*) => {
        $(impl<T: Element, const RANK: usize, M: Memory> sealed::Keep for $view<'_, T, RANK, M> {}

        impl<T: Element, const RANK: usize, M: Memory + 'static> Keep for $view<'_, T, RANK, M> {
            type Kept = Kept<$view<'static, T, RANK, M>>;

            fn keep(self, _: sealed::Key) -> Self::Kept {
                Kept { dims: self.dims().into(), data: self.as_ptr().cast_mut().cast(), view: PhantomData }
            }
        }

        impl<T: Element, const RANK: usize, M: Memory + 'static> Lend for Kept<$view<'static, T, RANK, M>> {
            type At<'x> = $view<'x, T, RANK, M>;

            fn lend(&mut self) -> Self::At<'_> {
                // SAFETY: it was such a view when it was kept. The runtime keeps the elements until the future is completed, which is after this
                // borrow: a promise that is completed has no borrower.
                unsafe { $view::of_parts(&self.dims, self.data.cast()) }
            }
        })*
    };
}

kept!(Operand Output InPlace);

impl<P> sealed::Keep for Option<P> {}
impl<P: Keep> Keep for Option<P> {
    type Kept = Option<P::Kept>;

    fn keep(self, key: sealed::Key) -> Self::Kept {
        self.map(|parameter| parameter.keep(key))
    }
}
impl<K: Lend> Lend for Option<K> {
    type At<'x> = Option<K::At<'x>>;

    fn lend(&mut self) -> Self::At<'_> {
        self.as_mut().map(Lend::lend)
    }
}

impl<P> sealed::Keep for Vec<P> {}
impl<P: Keep> Keep for Vec<P> {
    type Kept = Vec<P::Kept>;

    fn keep(self, key: sealed::Key) -> Self::Kept {
        self.into_iter().map(|parameter| parameter.keep(key)).collect()
    }
}
impl<K: Lend> Lend for Vec<K> {
    type At<'x> = Vec<K::At<'x>>;

    fn lend(&mut self) -> Self::At<'_> {
        self.iter_mut().map(Lend::lend).collect()
    }
}

macro_rules! tuples {
    ($(($($parameter:ident)*))*) => {
        $(impl<$($parameter),*> sealed::Keep for ($($parameter,)*) {}

        #[allow(non_snake_case, reason = "one name for a type and its value")]
        #[allow(unused_variables, reason = "the tuple of none")]
        #[allow(clippy::unused_unit, reason = "the tuple of none")]
        impl<$($parameter: Keep),*> Keep for ($($parameter,)*) {
            type Kept = ($($parameter::Kept,)*);

            fn keep(self, key: sealed::Key) -> Self::Kept {
                let ($($parameter,)*) = self;
                ($($parameter.keep(key),)*)
            }
        }

        #[allow(non_snake_case, reason = "one name for a type and its value")]
        #[allow(unused_variables, reason = "the tuple of none")]
        #[allow(clippy::unused_unit, reason = "the tuple of none")]
        impl<$($parameter: Lend),*> Lend for ($($parameter,)*) {
            type At<'x> = ($($parameter::At<'x>,)*);

            fn lend(&mut self) -> Self::At<'_> {
                let ($($parameter,)*) = self;
                ($($parameter.lend(),)*)
            }
        })*
    };
}

tuples! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H)
}
