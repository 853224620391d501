//! The audit of one module: which native calls it has, and what each of them touches.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Error;
use crate::graph::{Dependence, Node, Part};
use crate::hlo::{Instruction, Module, Opcode, Source};
use crate::objects::{Access, Arguments, Objects, Touched};

/// A path of computations longer than this is shortened.
const MAX_PLACES: usize = 32;

/// What is known of a program from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// What its native calls do: all others are not looked at.
    pub accesses: Vec<Access>,
    /// The targets of `entangle` itself.
    pub entangles: Vec<String>,
    /// Groups of arguments, by their numbers, that are one object.
    pub same: Vec<Vec<usize>>,
    /// Two arguments whose names differ in `.token` and `.fence` alone are one object: the two parts of an `entangle_jax.Handle`.
    pub pair_by_name: bool,
}

impl Default for Known {
    fn default() -> Self {
        Self { accesses: Vec::new(), entangles: vec!["entangle".into()], same: Vec::new(), pair_by_name: true }
    }
}

impl Known {
    /// Only what the native calls do.
    #[must_use]
    pub fn accesses(accesses: Vec<Access>) -> Self {
        Self { accesses, ..Self::default() }
    }
}

/// What a native call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only reads.
    Read,
    /// Writes, and perhaps reads.
    Write,
    /// Ties values together.
    Entangle,
}

/// A native call, in one place of the program. A function called twice counts twice; a loop's body once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The instruction's name in the module.
    pub name: String,
    /// The target it calls.
    pub target: String,
    /// What it does.
    pub kind: Kind,
    /// The computations around it, the entry computation first. Shared by all calls there.
    pub place: Arc<[String]>,
    /// Where it comes from, the innermost line first; empty where the module does not say. Shared by all calls from there.
    pub source: Arc<[Source]>,
    /// JAX's name for it, such as `jit(step)/ffi_call`, with those of the functions around it.
    pub op_name: String,
    /// The objects that it touches, by their positions in [`Audit::objects`]: what it reads, and what it writes.
    pub reads: Vec<usize>,
    /// See `reads`.
    pub writes: Vec<usize>,
}

/// Something that native calls touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TouchedObject {
    /// What stands for it.
    pub name: String,
    /// The others in the list that may be the same one; all that are not named here were taken for different ones.
    pub may_be: Vec<usize>,
}

/// A module with its dependences followed: ask it for [`Audit::races`], [`Audit::order`], [`Audit::costs`] and [`Audit::graph`].
pub struct Audit {
    pub(crate) module: Module,
    pub(crate) dependence: Dependence,
    pub(crate) calls: Vec<Call>,
    pub(crate) objects: Objects,
    /// What each call touches.
    pub(crate) touched: Vec<Touched>,
    /// Likewise for [`Dependence::later`].
    pub(crate) touched_later: Vec<Touched>,
}

/// The accesses of a list, to be found by a call.
struct Accesses<'a> {
    by_target: HashMap<&'a str, Vec<&'a Access>>,
    of_any_target: Vec<&'a Access>,
}

impl<'a> Accesses<'a> {
    fn new(list: &'a [Access]) -> Self {
        let mut accesses = Self { by_target: HashMap::new(), of_any_target: Vec::new() };
        for access in list {
            match &access.calls.target {
                Some(target) => accesses.by_target.entry(target).or_default().push(access),
                None => accesses.of_any_target.push(access),
            }
        }
        accesses
    }

    fn of(&self, instruction: &Instruction) -> Vec<&'a Access> {
        let by_target = self.by_target.get(instruction.target.as_str()).into_iter().flatten();
        by_target.chain(&self.of_any_target).copied().filter(|access| access.is_of(instruction)).collect()
    }
}

impl Audit {
    /// Follows the dependences of a module.
    ///
    /// # Errors
    /// The module's values do not fit together, it is too large, or a call does not have the operand or attribute that is said to name its
    /// object.
    pub fn new(module: Module, known: &Known) -> Result<Self, Error> {
        let accesses = Accesses::new(&known.accesses);
        let accesses = |instruction: &Instruction| accesses.of(instruction);
        let is_entangle = |instruction: &Instruction| known.entangles.contains(&instruction.target);
        let dependence =
            Dependence::new(&module, |instruction| is_entangle(instruction) || !accesses(instruction).is_empty())?;
        let nodes: Vec<Node> =
            dependence.calls.iter().map(|call| call.node).chain(dependence.later.iter().map(|l| l.node)).collect();
        let arguments = Arguments::new(&module, &known.same, known.pair_by_name);
        let (objects, mut touched) = Objects::find(&module, &dependence, &arguments, &nodes, &accesses, &is_entangle)?;
        let touched_later = touched.split_off(dependence.calls.len());

        let mut audit = Self { module, dependence, calls: Vec::new(), objects, touched, touched_later };
        // Thousands of calls come from a few lines.
        let mut places: HashMap<u32, Arc<[String]>> = HashMap::new();
        let mut sources: HashMap<_, Arc<[Source]>> = HashMap::new();
        audit.calls = (0..audit.dependence.calls.len())
            .map(|call| {
                let site = &audit.dependence.calls[call];
                let instruction = &audit.module.instructions[site.instruction];
                let touched = &audit.touched[call];
                let kind = match (&touched.reads[..], &touched.writes[..]) {
                    ([], []) => Kind::Entangle,
                    (_, []) => Kind::Read,
                    _ => Kind::Write,
                };
                let positions = |objects: &[u32]| objects.iter().map(|&object| object as usize).collect();
                Call {
                    name: instruction.name.clone(),
                    target: instruction.target.clone(),
                    kind,
                    place: places.entry(site.context).or_insert_with(|| audit.place(site.context).into()).clone(),
                    source: sources
                        .entry((site.context, instruction.line()))
                        .or_insert_with(|| audit.sources(site.instruction, site.context).into())
                        .clone(),
                    op_name: audit.whole_name(site.instruction, site.context),
                    reads: positions(&touched.reads),
                    writes: positions(&touched.writes),
                }
            })
            .collect();
        Ok(audit)
    }

    /// The native calls of the given targets. All other answers name them by their position in this list.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The types of a call's operands, such as `f32[3,4]`. Empty for an operand that is made where the call is, such as a constant or a
    /// sum, and for one that is no array of a usual type.
    ///
    /// # Panics
    /// There is no call at this position.
    #[must_use]
    pub fn operand_types(&self, call: usize) -> Vec<String> {
        let site = self.dependence.calls[call].instruction;
        let computations = &self.module.computations;
        let around = &computations[computations.partition_point(|one| one.instructions.end <= site)];
        let list = &self.module.instructions[around.instructions.clone()];
        let operands = self.module.instructions[site].operands.iter().map(|&operand| &list[operand]);
        let type_name = |operand: &Instruction| match operand.opcode {
            Opcode::Parameter | Opcode::CustomCall | Opcode::GetTupleElement => operand.shape.type_name(),
            _ => String::new(),
        };
        operands.map(type_name).collect()
    }

    /// For each call, when the program makes it: the order in which it was traced. Only of a program that is not optimized.
    #[must_use]
    pub fn order_of_the_trace(&self) -> Vec<usize> {
        let instructions = &self.module.instructions;
        let contexts = &self.dependence.contexts;
        let place = |call: &crate::graph::CallSite| {
            let mut place = vec![(instructions[call.instruction].id, 0)];
            let mut context = contexts[call.context as usize];
            while context.part != Part::Entry {
                let part = match context.part {
                    Part::Entry | Part::Whole | Part::Condition => 0,
                    Part::Body => 1,
                    Part::Branch { branch, .. } => branch,
                };
                place.push((instructions[context.caller].id, part));
                context = contexts[context.parent as usize];
            }
            place.reverse();
            place
        };
        let places: Vec<Vec<(i64, u32)>> = self.dependence.calls.iter().map(place).collect();
        let mut calls: Vec<usize> = (0..places.len()).collect();
        calls.sort_by(|&a, &b| places[a].cmp(&places[b]));
        let mut order = vec![0; calls.len()];
        for (position, call) in calls.into_iter().enumerate() {
            order[call] = position;
        }
        order
    }

    /// The objects that the calls touch. Which of them were taken for different ones is an assumption, which no program can prove.
    #[must_use]
    pub fn objects(&self) -> Vec<TouchedObject> {
        let overlapping = self.objects.overlapping();
        let list = (0..).zip(overlapping).map(|(object, mut others)| {
            others.sort_unstable();
            TouchedObject {
                name: self.objects.name(object),
                may_be: others.into_iter().filter(|&other| other != object).map(|other| other as usize).collect(),
            }
        });
        list.collect()
    }

    /// The module.
    #[must_use]
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The lines of an instruction and of the calls around it. Before optimization a function's instructions know only the lines inside it.
    pub(crate) fn sources(&self, instruction: usize, context: u32) -> Vec<Source> {
        let mut sources = self.module.sources(&self.module.instructions[instruction]);
        let mut context = self.dependence.contexts[context as usize];
        while context.part != Part::Entry && sources.len() < MAX_PLACES {
            let around = self.module.sources(&self.module.instructions[context.caller]);
            if sources.last() != around.last() {
                sources.extend(around);
            }
            context = self.dependence.contexts[context.parent as usize];
        }
        sources
    }

    /// JAX's name for an instruction. Before optimization, inside of a function it begins there: then those of the calls around it come first.
    fn whole_name(&self, instruction: usize, context: u32) -> String {
        let mut name = self.module.instructions[instruction].op_name.clone();
        let mut context = self.dependence.contexts[context as usize];
        for _ in 0..MAX_PLACES {
            if context.part == Part::Entry {
                break;
            }
            let around = &self.module.instructions[context.caller].op_name;
            if !around.is_empty() && around.split('/').next() != name.split('/').next() {
                name = format!("{around}/{name}");
            }
            context = self.dependence.contexts[context.parent as usize];
        }
        name
    }

    fn place(&self, context: u32) -> Vec<String> {
        let mut place = Vec::new();
        let mut context = self.dependence.contexts[context as usize];
        while context.part != Part::Entry {
            if place.len() == MAX_PLACES {
                place.push("...".into());
                break;
            }
            let caller = &self.module.instructions[context.caller].name;
            place.push(match context.part {
                Part::Entry | Part::Whole => caller.clone(),
                Part::Condition => format!("condition of {caller}"),
                Part::Body => format!("body of {caller}"),
                Part::Branch { branch, .. } => format!("branch {branch} of {caller}"),
            });
            context = self.dependence.contexts[context.parent as usize];
        }
        place.push(self.module.computations[self.module.entry].name.clone());
        place.reverse();
        place
    }
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit")
            .field("module", &self.module.name)
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}
