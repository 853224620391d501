//! Handlers as plain functions: the macro that binds one, and what it is made of.

use crate::attribute::{Attribute, Attributes};
use crate::boundary::{Traits, handle_stages};
use crate::call::{Arg, Buffer, Buffers, Call, Ret, Stage};
use crate::error::{Code, Error};
use crate::ffi;
use crate::future::Future;
use crate::state::NewState;

/// A handler: what [`handler!`](crate::handler!) makes of a function.
pub trait Handler {
    /// What it promises to the runtime.
    const TRAITS: Traits;

    /// The stage that it is registered for.
    const STAGE: Stage;

    /// The C function to register.
    const FUNCTION: ffi::Handler = entry::<Self>;

    /// Reads the parameters of a call, and calls the function with them.
    ///
    /// # Errors
    /// They are not what the function takes, or the function returned an error.
    fn run(parameters: Parameters<'_>) -> Result<(), Error>;
}

/// The C function of a handler.
///
/// # Safety
/// As for [`handle`](crate::handle): XLA calls it. If its views are in [`Host`](crate::Host) memory, it is registered for the host.
pub unsafe extern "C" fn entry<H: Handler + ?Sized>(frame: *mut ffi::CallFrame) -> *mut ffi::Error {
    let body = |call: &Call<'_>| H::run(Parameters::new(call)?);
    // SAFETY: the same contract.
    unsafe { handle_stages(frame, H::TRAITS, &[H::STAGE], body) }
}

/// Binds a function as a handler.
///
/// ```
/// use xla_ffi::{Operand, Output, handler};
///
/// /// `y = factor * x`
/// fn scale(x: Operand<'_, f64, 1>, mut y: Output<'_, f64, 1>, factor: f64) {
///     y.fill_with(|index| factor * x[index]);
/// }
///
/// handler!(pub Scale = scale(x, y; factor));
/// ```
///
/// makes a type `Scale` that is a [`Handler`]; `Scale::FUNCTION` is what gets registered. Before the semicolon stand the parameters that
/// are read by their type, in the order of the function: each operand and result in turn ([`Operand`](crate::Operand),
/// [`Output`](crate::Output), [`InPlace`](crate::InPlace), [`Token`](crate::Token)), `Option`s of those that may be left out, a `Vec` of all that
/// are left, and what the runtime has ([`Stream`](crate::Stream), [`State`](crate::State), …). Behind it stand the attributes, by name
/// ([`Attribute`]). The names are those in messages.
///
/// The function returns nothing, or a `Result`, whose [`Error`] the user reads in Python.
///
/// A call with other operands, results or attributes is an error that says what there was and what was wanted. `; factor, ..` lets there
/// be other attributes.
///
/// `stage = Prepare` makes a handler for another [`Stage`]. Operands and results hold no data before EXECUTE: there they may be left out, or are
/// taken as views in [`Device`](crate::Device) memory. `traits = …` says other [`Traits`] than none:
///
/// ```
/// # use xla_ffi::{Error, NewState, State, Output, Traits, handler};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// fn start(from: u64) -> NewState<AtomicU64> {
///     NewState(AtomicU64::new(from))
/// }
///
/// fn count(calls: State<'_, AtomicU64>, mut y: Output<'_, u64, 0>) -> Result<(), Error> {
///     y.write(&[calls.fetch_add(1, Ordering::Relaxed)])
/// }
///
/// handler!(pub Start = start(; from), stage = Instantiate);
/// handler!(pub Count = count(calls, y; ..), traits = Traits::NONE);
/// ```
#[macro_export]
macro_rules! handler {
    (@stage) => {
        $crate::Stage::Execute
    };
    (@stage $stage:ident) => {
        $crate::Stage::$stage
    };
    (@traits) => {
        $crate::Traits::NONE
    };
    (@traits $traits:expr) => {
        $traits
    };
    (@make $others:literal [$(#[$meta:meta])*] [$visibility:vis] $name:ident $function:ident [$($parameter:ident)*] [$($attribute:ident)*]
        $(, stage = $stage:ident)? $(, traits = $traits:expr)? $(,)?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[doc = concat!("The handler of `", stringify!($function), "`.")]
        $visibility struct $name;

        impl $crate::Handler for $name {
            const TRAITS: $crate::Traits = $crate::handler!(@traits $($traits)?);
            const STAGE: $crate::Stage = $crate::handler!(@stage $($stage)?);

            #[allow(unused_mut, reason = "there may be no parameter")]
            fn run(mut parameters: $crate::Parameters<'_>) -> ::core::result::Result<(), $crate::Error> {
                $(let $parameter = parameters.next(stringify!($parameter))?;)*
                $(let $attribute = parameters.attribute(stringify!($attribute))?;)*
                let call = parameters.finish($others)?;
                call.give($function($($parameter,)* $($attribute),*))
            }
        }
    };
    ($(#[$meta:meta])* $visibility:vis $name:ident = $function:ident($($parameter:ident),*; $($attribute:ident,)* ..) $($options:tt)*) => {
        $crate::handler!(@make true [$(#[$meta])*] [$visibility] $name $function [$($parameter)*] [$($attribute)*] $($options)*);
    };
    ($(#[$meta:meta])* $visibility:vis $name:ident = $function:ident($($parameter:ident),* $(; $($attribute:ident),*)?) $($options:tt)*) => {
        $crate::handler!(@make false [$(#[$meta])*] [$visibility] $name $function [$($parameter)*] [$($($attribute)*)?] $($options)*);
    };
}

/// Exports handlers as symbols of a shared library, for `ctypes` to find: `export!(Scale as scale);`.
///
/// A crate that makes its capsules itself, with pyo3 for one, has no need of it.
#[macro_export]
macro_rules! export {
    ($($handler:ty as $symbol:ident),* $(,)?) => {
        $(const _: () = {
            /// # Safety
            /// XLA calls it, with a frame of its own making; see `entry`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol(frame: *mut $crate::ffi::CallFrame) -> *mut $crate::ffi::Error {
                // SAFETY: the same contract.
                unsafe { $crate::entry::<$handler>(frame) }
            }
        };)*
    };
}

/// What a handler's function returns: nothing, [`NewState`], [`Future`], or a `Result` of one of them.
pub trait Outcome: sealed::Outcome {}

impl Outcome for () {}
impl<S: Send + Sync + 'static> Outcome for NewState<S> {}
impl Outcome for Future<'_> {}
impl<O: Outcome> Outcome for Result<O, Error> {}

mod sealed {
    use super::{Call, Error, Future, NewState};

    pub trait Outcome {
        fn give(self, call: &Call<'_>) -> Result<(), Error>;
    }

    impl Outcome for () {
        fn give(self, _: &Call<'_>) -> Result<(), Error> {
            Ok(())
        }
    }

    impl<S: Send + Sync + 'static> Outcome for NewState<S> {
        fn give(self, call: &Call<'_>) -> Result<(), Error> {
            self.set(call)
        }
    }

    impl Outcome for Future<'_> {
        fn give(self, call: &Call<'_>) -> Result<(), Error> {
            self.start(call)
        }
    }

    impl<O: Outcome> Outcome for Result<O, Error> {
        fn give(self, call: &Call<'_>) -> Result<(), Error> {
            self?.give(call)
        }
    }
}

/// A type of which a function can have a parameter that is read by its type.
pub trait Parameter<'a>: Sized {
    /// Takes what comes next in the call. `name` is its name in messages.
    ///
    /// # Errors
    /// There is none, or it is not of this type.
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error>;
}

/// A [`Parameter`] that stands in a list of the call: an operand, a result, or both. An `Option` of one may be left out, after all those
/// that may not; a `Vec` takes all that are left.
pub trait Listed<'a>: Parameter<'a> {
    /// Whether there is another one in the call.
    fn has_more(parameters: &Parameters<'a>) -> bool;
}

impl<'a, P: Listed<'a>> Parameter<'a> for Option<P> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        if P::has_more(parameters) { P::take(parameters, name).map(Some) } else { Ok(None) }
    }
}

impl<'a, P: Listed<'a>> Parameter<'a> for Vec<P> {
    fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
        let mut all = Self::new();
        while P::has_more(parameters) {
            all.push(P::take(parameters, name)?);
        }
        Ok(all)
    }
}

/// Memory of the host that a parameter is in.
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) is_written: bool,
    pub(crate) role: &'static str,
    pub(crate) index: usize,
    pub(crate) name: &'static str,
}

impl Place {
    fn end(&self) -> usize {
        self.start.saturating_add(self.bytes)
    }
}

/// The parameters of a call, while they are read, each once.
pub struct Parameters<'a> {
    call: Call<'a>,
    operands: Buffers<'a, Arg>,
    results: Buffers<'a, Ret>,
    next_operand: usize,
    next_result: usize,
    places: Vec<Place>,
    attributes: Attributes<'a>,
    known: Vec<&'static str>,
}

impl<'a> Parameters<'a> {
    /// Once for a call: its views are the only ones of their memory.
    fn new(call: &Call<'a>) -> Result<Self, Error> {
        Ok(Self {
            call: call.copy(),
            operands: call.args()?,
            results: call.rets()?,
            next_operand: 0,
            next_result: 0,
            places: Vec::new(),
            attributes: call.attributes()?,
            known: Vec::new(),
        })
    }

    /// The next parameter of that type.
    ///
    /// # Errors
    /// There is none, or it is not of this type.
    pub fn next<P: Parameter<'a>>(&mut self, name: &'static str) -> Result<P, Error> {
        P::take(self, name)
    }

    /// The attribute of that name.
    ///
    /// # Errors
    /// It is missing, or it is not of this type.
    pub fn attribute<A: Attribute<'a>>(&mut self, name: &'static str) -> Result<A, Error> {
        self.known.push(name);
        self.attributes.get(name)
    }

    /// Ends reading. `others` says whether there may be attributes that were not read. Operands and results may be left out in the stages
    /// in which they hold no data.
    ///
    /// # Errors
    /// There are operands, results or attributes that were not read.
    pub fn finish(self, others: bool) -> Result<Finished<'a>, Error> {
        if self.call.stage_number() == ffi::STAGE_EXECUTE {
            all_read("operands", self.operands.len(), self.next_operand)?;
            all_read("results", self.results.len(), self.next_result)?;
        }
        if !others && !self.attributes.is_empty() {
            self.attributes.only("", &self.known)?;
        }
        Ok(Finished(self.call))
    }

    pub(crate) fn call(&self) -> &Call<'a> {
        &self.call
    }

    /// An error if the elements of that operand or result may not be there yet.
    pub(crate) fn check_elements(&self, name: &str) -> Result<(), Error> {
        if self.call.stage_number() == ffi::STAGE_EXECUTE {
            return Ok(());
        }
        Err(Error::new(
            Code::FailedPrecondition,
            format!(
                "`{name}` has no elements before the stage \"execute\"; a handler for another one can have views in `Device` memory, with dimensions \
                 and addresses alone"
            ),
        ))
    }

    pub(crate) fn has_operands(&self) -> bool {
        self.next_operand < self.operands.len()
    }

    pub(crate) fn has_results(&self) -> bool {
        self.next_result < self.results.len()
    }

    pub(crate) fn operand(&mut self, name: &str) -> Result<(usize, Buffer<'a, Arg>), Error> {
        next(&self.operands, &mut self.next_operand, name)
    }

    pub(crate) fn result(&mut self, name: &str) -> Result<(usize, Buffer<'a, Ret>), Error> {
        next(&self.results, &mut self.next_result, name)
    }

    /// Notes that a parameter is in that memory of the host: Rust's slices of what is written must share none with any other.
    pub(crate) fn claim(&mut self, place: Place) -> Result<(), Error> {
        if place.bytes == 0 {
            return Ok(());
        }
        for other in &self.places {
            let overlap = place.start < other.end() && other.start < place.end();
            if overlap && (place.is_written || other.is_written) {
                return Err(share(other, &place));
            }
        }
        self.places.push(place);
        Ok(())
    }
}

/// A call whose parameters are read.
pub struct Finished<'a>(Call<'a>);

impl Finished<'_> {
    /// Gives the runtime what the function returned.
    ///
    /// # Errors
    /// The runtime refuses it.
    pub fn give(self, outcome: impl Outcome) -> Result<(), Error> {
        outcome.give(&self.0)
    }
}

fn next<'a, R: crate::Role>(
    buffers: &Buffers<'a, R>,
    position: &mut usize,
    name: &str,
) -> Result<(usize, Buffer<'a, R>), Error> {
    let index = *position;
    if index >= buffers.len() {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("{} {index} (`{name}`) is missing: the call has {}", R::NAME, buffers.len()),
        ));
    }
    *position += 1;
    Ok((index, buffers.get(index)?))
}

fn all_read(what: &str, there: usize, read: usize) -> Result<(), Error> {
    if there == read {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("the call has {there} {what}, wanted {read}")))
}

fn share(one: &Place, other: &Place) -> Error {
    let shown = |place: &Place| format!("{} {} (`{}`)", place.role, place.index, place.name);
    Error::new(
        Code::InvalidArgument,
        format!(
            "{} and {} share memory, and one of them is written: a parameter of the type `InPlace` takes an operand and the result in its memory",
            shown(one),
            shown(other)
        ),
    )
}
