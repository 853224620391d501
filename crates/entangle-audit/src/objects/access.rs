//! What is an access: which native calls touch which object, and what they do to it.
//!
//! **All that the audit knows of this, it is told by a list of [`Access`]**, in Rust and from Python, where the same class is
//! `entangle_jax._native.Access`. One of them says of *these calls* that they read, or write, *that object*:
//!
//! - [`Calls`] picks the calls: by their target, by a part of JAX's name for them (`op_name`), by the instruction's name in the module;
//!   where several of these are given, all must hold. So what marks a call in a program, without a name that a person gives, is one
//!   `Access` for each mark, with the mark as `op_name`.
//! - `resource` is the name of what they touch. Calls on different resources never race. Calls without one touch things of no name: among
//!   themselves they are told apart by their handles, and they never race with calls of a resource.
//! - [`Object`] says which object of the resource it is: the whole of it; what the given operands hold; or what an attribute names.
//!
//! A call that several of them pick does all that they say. This module alone decides what a call touches. Callbacks on TPU, which are transfers
//! there, are calls of [`crate::HOST_CALLBACK`]: to tell them apart, pick them by `op_name`.

use crate::error::Error;
use crate::hlo::{Instruction, Opcode};

/// What some native calls do, and to which object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The calls.
    pub calls: Calls,
    /// Whether they change the object, or only read it.
    pub writes: bool,
    /// The name of what they touch.
    pub resource: Option<String>,
    /// Which object of it they touch.
    pub object: Object,
}

/// Which native calls are meant. All that is given must hold; at least one thing must be given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// The name that their native code is registered under.
    pub target: Option<String>,
    /// A part of JAX's name for them, such as `jit(solve)`.
    pub op_name: Option<String>,
    /// The name of the instruction.
    pub name: Option<String>,
}

/// Which object of a resource a call touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// Nothing was said. Of a resource, all of it; otherwise what operand 0 holds, or anything if the call has none, or if it is a
    /// callback into Python, whose operands are rarely handles.
    Default,
    /// All of the resource: any object, if there is no name.
    Whole,
    /// What these operands hold, counted from 0.
    Operands(Vec<usize>),
    /// What this attribute of the call names.
    Attribute(String),
}

impl Access {
    /// Reads of this target.
    #[must_use]
    pub fn read(target: impl Into<String>) -> Self {
        Self::of(target.into(), false)
    }

    /// Writes of this target.
    #[must_use]
    pub fn write(target: impl Into<String>) -> Self {
        Self::of(target.into(), true)
    }

    fn of(target: String, writes: bool) -> Self {
        let calls = Calls { target: Some(target), ..Calls::default() };
        Self { calls, writes, resource: None, object: Object::Default }
    }

    /// The same calls, which touch this object.
    #[must_use]
    pub fn on(self, object: Object) -> Self {
        Self { object, ..self }
    }

    /// The same calls, which touch an object of this resource.
    #[must_use]
    pub fn in_resource(self, resource: impl Into<String>) -> Self {
        Self { resource: Some(resource.into()), ..self }
    }

    /// Reads `[RESOURCE=]TARGET[:OBJECT]`, where OBJECT is operands (`2`, or `0,2`), `@ATTRIBUTE`, or `*` for the whole.
    ///
    /// # Errors
    /// There is no name before the colon, or an operand's number is too large.
    pub fn parse(text: &str, writes: bool) -> Result<Self, Error> {
        let bad = |problem: &str| Error::NoSuchTarget { text: text.to_owned(), problem: problem.to_owned() };
        let (resource, rest) = match text.split_once('=') {
            Some((resource, rest)) => (Some(resource.to_owned()), rest),
            None => (None, text),
        };
        let (name, object) = match rest.rsplit_once(':') {
            Some((name, "*")) => (name, Object::Whole),
            Some((name, attribute)) if attribute.starts_with('@') => {
                (name, Object::Attribute(attribute[1..].to_owned()))
            }
            Some((name, numbers)) if !numbers.is_empty() && numbers.chars().all(|c| c.is_ascii_digit() || c == ',') => {
                let operands = numbers.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
                (name, Object::Operands(operands.map_err(|_| bad("it names an operand that no call can have"))?))
            }
            _ => (rest, Object::Default),
        };
        if name.is_empty() || resource.as_ref().is_some_and(String::is_empty) {
            return Err(bad("a name is empty"));
        }
        if object == Object::Attribute(String::new()) {
            return Err(bad("the attribute has no name"));
        }
        Ok(Self { resource, object, ..Self::of(name.to_owned(), writes) })
    }

    /// Whether it is of this call.
    pub(crate) fn is_of(&self, instruction: &Instruction) -> bool {
        let Calls { target, op_name, name } = &self.calls;
        instruction.opcode == Opcode::CustomCall
            && (target.is_some() || op_name.is_some() || name.is_some())
            && target.as_ref().is_none_or(|target| *target == instruction.target)
            && name.as_ref().is_none_or(|name| *name == instruction.name)
            && op_name.as_ref().is_none_or(|part| instruction.op_name.contains(part.as_str()))
    }

    /// The object that this call touches, with nothing left to assume.
    pub(crate) fn object_of(&self, instruction: &Instruction) -> Object {
        let unknown = instruction.operands.is_empty() || is_python(&instruction.target);
        match &self.object {
            Object::Default if self.resource.is_some() || unknown => Object::Whole,
            Object::Default => Object::Operands(vec![0]),
            Object::Operands(operands) if operands.is_empty() => Object::Whole,
            object => object.clone(),
        }
    }
}

/// Whether a target is JAX's own for callbacks into Python: one for all of them.
pub(crate) fn is_python(target: &str) -> bool {
    target.starts_with("xla_") && target.contains("python") && target.contains("callback")
}
