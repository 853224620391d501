//! State: what a handler makes once for each call site, and finds again in every call.

use core::any::{Any, TypeId, type_name};
use core::ffi::c_void;
use core::ops::Deref;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::boundary::panic_text;
use crate::call::{Call, Stage, function};
use crate::error::{Code, Error};
use crate::ffi;
use crate::handler::{Parameter, Parameters};

/// State that a handler returns in a stage before EXECUTE, for the handlers of later stages of the same call site.
///
/// What is made in [`Stage::Instantiate`] lives as long as the compiled program, what is made in the others as long as one run
/// of it. The runtime may use it from many threads at once, and drops it on any of them.
#[derive(Clone, Copy, Debug)]
pub struct NewState<S>(pub S);

/// State that a handler of the stage [`Stage::Instantiate`] has made, for this call site.
#[derive(Debug)]
pub struct State<'a, S>(&'a S);

/// State that a handler of the stage [`Stage::Prepare`] has made, for this run. XLA runs that stage on GPUs alone.
#[derive(Debug)]
pub struct Prepared<'a, S>(&'a S);

/// State that a handler of the stage [`Stage::Initialize`] has made, for this run. XLA runs that stage on GPUs alone.
#[derive(Debug)]
pub struct Initialized<'a, S>(&'a S);

macro_rules! states {
    ($($name:ident: $stage:ident),*) => {
        $(impl<'a, S> Deref for $name<'a, S> {
            type Target = S;

            fn deref(&self) -> &S {
                self.0
            }
        }

        impl<'a, S: Any + Send + Sync> Parameter<'a> for $name<'a, S> {
            fn take(parameters: &mut Parameters<'a>, name: &'static str) -> Result<Self, Error> {
                get(parameters.call(), Stage::$stage, name).map(Self)
            }
        })*
    };
}

states!(State: Instantiate, Prepared: Prepare, Initialized: Initialize);

/// Drops a state; the runtime calls it.
unsafe extern "C" fn drop_state<S>(state: *mut c_void) {
    // SAFETY: made by `NewState::set` from a box of this type, and dropped once.
    let state = unsafe { Box::from_raw(state.cast::<S>()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(state))) {
        // There is no call to report it to.
        drop(panic_text(panic));
    }
}

/// The number by which the runtime of a call knows a type: it is registered there when it is first used.
fn type_id<S: Any>(call: &Call<'_>) -> Result<ffi::TypeId, Error> {
    /// A type as it was registered.
    struct Registered {
        type_id: i64,
        /// The runtime may keep a pointer to it.
        _info: &'static SharedInfo,
    }
    #[repr(transparent)]
    struct SharedInfo(ffi::TypeInfo);
    // SAFETY: nothing writes to it.
    unsafe impl Sync for SharedInfo {}

    /// By runtime, of which a process has one for each plugin, and type.
    static KNOWN: Mutex<Option<HashMap<(usize, TypeId), Registered>>> = Mutex::new(None);

    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let key = (call.api_address(), TypeId::of::<S>());
    if let Some(&Registered { type_id, .. }) = known.get(&key) {
        return Ok(ffi::TypeId { type_id });
    }
    let mut info = ffi::TypeInfo::new();
    info.deleter = Some(drop_state::<S>);
    let info = Box::into_raw(Box::new(SharedInfo(info)));
    // Other libraries of the process may have types of that name.
    let name = format!("{}@{:p}", type_name::<S>(), drop_state::<S> as *const ());
    let mut type_id = ffi::TypeId { type_id: 0 };
    let mut args = ffi::TypeRegisterArgs::new();
    args.name = ffi::ByteSpan { ptr: name.as_ptr().cast(), len: name.len() };
    args.type_id = &raw mut type_id;
    args.type_info = info.cast_const().cast();
    let registered = function!(call, type_register, "XLA_FFI_Type_Register")
        // SAFETY: the runtime's own function. A number of 0 asks for one.
        .and_then(|register| unsafe { call.ask(register, &raw mut args) });
    if let Err(error) = registered {
        // SAFETY: made above, and a runtime that has not registered it does not keep it.
        drop(unsafe { Box::from_raw(info) });
        return Err(error);
    }
    // SAFETY: made above, and never freed from here on.
    let info: &'static SharedInfo = unsafe { &*info };
    known.insert(key, Registered { type_id: type_id.type_id, _info: info });
    Ok(type_id)
}

impl<S: Any + Send + Sync> NewState<S> {
    pub(crate) fn set(self, call: &Call<'_>) -> Result<(), Error> {
        if !matches!(call.stage(), Some(Stage::Instantiate | Stage::Prepare | Stage::Initialize)) {
            let why = "only in the stages before \"execute\" may a handler return a state";
            return Err(Error::new(Code::Unimplemented, why));
        }
        let mut type_id = type_id::<S>(call)?;
        let state = Box::into_raw(Box::new(self.0));
        let mut args = ffi::StateSetArgs::new();
        args.ctx = call.context();
        args.stage = call.stage_number();
        args.type_id = &raw mut type_id;
        args.state = state.cast();
        let set = function!(call, state_set, "XLA_FFI_State_Set")
            // SAFETY: the runtime's own function, with the context that it gave and a state of the type with that number.
            .and_then(|set| unsafe { call.ask(set, &raw mut args) });
        if set.is_err() {
            // SAFETY: made above, and not taken by the runtime.
            drop(unsafe { Box::from_raw(state) });
        }
        set
    }
}

fn get<'a, S: Any>(call: &Call<'a>, stage: Stage, name: &str) -> Result<&'a S, Error> {
    if stage != Stage::Instantiate && call.stream().is_err() {
        // On the host XLA (jaxlib 0.10 to 0.12) has no place for the states of these stages, and follows a null pointer there.
        let why = "on the host there are no handlers for that stage";
        return Err(missing::<S>(stage, name, why));
    }
    let mut type_id = type_id::<S>(call)?;
    let mut args = ffi::StateGetArgs::new();
    args.ctx = call.context();
    args.stage = stage.as_c();
    args.type_id = &raw mut type_id;
    let get = function!(call, state_get, "XLA_FFI_State_Get")?;
    // SAFETY: the runtime's own function, with the context that it gave.
    unsafe { call.ask(get, &raw mut args) }.map_err(|error| missing::<S>(stage, name, error.message()))?;
    let object = args.state.cast::<S>();
    if object.is_null() || !object.is_aligned() {
        return Err(missing::<S>(stage, name, "the runtime gave none"));
    }
    // SAFETY: the runtime gives a state of the type with that number, which `NewState::set` has made; it lives for the call, and is
    // `Sync`, since others may have it at the same time.
    Ok(unsafe { &*object })
}

fn missing<S>(stage: Stage, name: &str, why: &str) -> Error {
    Error::new(
        Code::FailedPrecondition,
        format!(
            "the state `{name}` ({}) is missing: {why}; a handler that returns it in `NewState` has to be registered for the stage \"{}\" of the \
             same target",
            type_name::<S>(),
            stage.name()
        ),
    )
}
