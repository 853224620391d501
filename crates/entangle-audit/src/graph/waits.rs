//! What a loop or a branch makes wait, besides what its values are computed from.
//!
//! Runtimes order by the use of buffers. A loop, or a conditional, starts when all that is used in it is there, and who reads a buffer
//! that is written in it waits for its end, also if it runs zero times. So a result that the body (each branch) *computes* comes after all
//! that the body (any branch) *uses*. A result that the body only passes through is written by nothing, so nothing waits for it.

use crate::error::Error;
use crate::hlo::{Computation, Instruction, Module, Opcode, hands_on};

/// One computation's parameters, and what becomes of them.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// For each array of the result, where it comes from.
    pub(super) results: Vec<Origin>,
    /// For each parameter's number, its first array in `used`.
    first: Vec<usize>,
    /// For each array of the parameters, whether something in the computation reads it, more than to pass it on.
    used: Vec<bool>,
}

/// Where an array comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is computed here: it is written here, and in every run.
    Computed,
    /// It is a constant, which is written here only if it is copied.
    Constant,
    /// It is this array of the parameters, counted through all of them, and nothing need write it.
    Passed(u32),
    /// It is one or another array of the parameters, or only sometimes computed.
    Mixed,
}

impl Waits {
    /// Those of all computations that run as loops, branches or calls; empty for all others. `spend` counts the work.
    pub(super) fn of_all(
        module: &Module,
        mut spend: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<Vec<Self>, Error> {
        let mut wanted = vec![false; module.computations.len()];
        for &computation in module.callees_first.iter().rev() {
            for instruction in module.instructions_of(computation) {
                let runs = match instruction.opcode {
                    Opcode::While | Opcode::Conditional => true,
                    Opcode::Call => wanted[computation],
                    _ => false,
                };
                for &callee in instruction.called.iter().filter(|_| runs) {
                    wanted[callee] = true;
                }
            }
        }
        let mut all: Vec<Self> = Vec::new();
        all.resize_with(module.computations.len(), Self::default);
        for &computation in &module.callees_first {
            if wanted[computation] {
                let instructions = module.instructions_of(computation);
                let is_scheduled = module.is_scheduled();
                let reading = Reading { instructions, is_scheduled, all: &all, waits: Self::default() };
                all[computation] = reading.read(&module.computations[computation], &mut spend)?;
            }
        }
        Ok(all)
    }

    /// Whether the computation uses this array of this parameter.
    pub(super) fn uses(&self, parameter: usize, leaf: usize) -> bool {
        self.first.get(parameter).and_then(|first| self.used.get(first + leaf)).copied().unwrap_or(false)
    }
}

struct Reading<'a> {
    instructions: &'a [Instruction],
    is_scheduled: bool,
    all: &'a [Waits],
    waits: Waits,
}

impl Reading<'_> {
    fn read(
        mut self,
        computation: &Computation,
        spend: &mut impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<Waits, Error> {
        let instructions = self.instructions;
        let mut leaves = vec![0; computation.parameters];
        for parameter in instructions.iter().filter(|instruction| instruction.opcode == Opcode::Parameter) {
            leaves[parameter.number] = parameter.shape.leaves();
        }
        let mut total = 0;
        for leaves in leaves {
            self.waits.first.push(total);
            total += leaves;
        }
        spend(total)?;
        self.waits.used = vec![false; total];
        let mut values: Vec<Vec<Origin>> = Vec::with_capacity(instructions.len());
        for instruction in instructions {
            let value = self.origins(instruction, &values);
            spend(value.len())?;
            values.push(value);
        }
        // XLA copies a constant to where it is needed when it compiles.
        let constant = if self.is_scheduled { Origin::Mixed } else { Origin::Computed };
        self.waits.results = values.swap_remove(computation.root);
        self.waits
            .results
            .iter_mut()
            .filter(|origin| **origin == Origin::Constant)
            .for_each(|origin| *origin = constant);
        Ok(self.waits)
    }

    /// The origin of each array of an instruction's value. Marks what the instruction uses.
    fn origins(&mut self, instruction: &Instruction, values: &[Vec<Origin>]) -> Vec<Origin> {
        let leaves = instruction.shape.leaves();
        let operand = |index: usize| instruction.operands.get(index).map_or(&[][..], |&operand| &values[operand]);
        let of_leaves = |origin: &dyn Fn(usize) -> Origin| (0..leaves).map(origin).collect();
        match instruction.opcode {
            Opcode::Parameter => {
                let first = self.waits.first[instruction.number];
                of_leaves(&|leaf| Origin::Passed(u32::try_from(first + leaf).unwrap_or(u32::MAX)))
            }
            Opcode::Tuple => (0..instruction.operands.len()).flat_map(operand).copied().collect(),
            Opcode::GetTupleElement => {
                let of = instruction.operands.first();
                let shape = of.map(|&of| &self.instructions[of].shape);
                let range = shape.and_then(|shape| shape.element_leaves(instruction.number));
                range.and_then(|range| operand(0).get(range)).unwrap_or_default().to_vec()
            }
            Opcode::Constant => of_leaves(&|_| Origin::Constant),
            Opcode::Copy if operand(0) == [Origin::Constant] => vec![Origin::Computed],
            // XLA removes a copy whose two ends may share a buffer.
            Opcode::PassThrough | Opcode::Copy | Opcode::Bitcast | Opcode::Reshape if operand(0).len() == leaves => {
                operand(0).to_vec()
            }
            Opcode::PassThrough | Opcode::Copy | Opcode::Bitcast | Opcode::Reshape => of_leaves(&|_| Origin::Mixed),
            Opcode::CustomCall if hands_on(&instruction.target) => {
                of_leaves(&|leaf| operand(leaf).first().copied().unwrap_or(Origin::Mixed))
            }
            Opcode::While => {
                let ([body, condition], Some(init)) = (&instruction.called[..], instruction.operands.first()) else {
                    return of_leaves(&|_| Origin::Mixed);
                };
                for (leaf, &origin) in values[*init].iter().enumerate() {
                    if self.all[*body].uses(0, leaf) || self.all[*condition].uses(0, leaf) {
                        self.mark(origin);
                    }
                }
                let body = &self.all[*body];
                of_leaves(&|leaf| match body.results.get(leaf) {
                    Some(Origin::Computed) => Origin::Computed,
                    Some(Origin::Passed(from)) if *from as usize == leaf => {
                        operand(0).get(leaf).copied().unwrap_or(Origin::Mixed)
                    }
                    _ => Origin::Mixed,
                })
            }
            Opcode::Conditional => {
                for &origin in operand(0) {
                    self.mark(origin);
                }
                for (branch, &callee) in instruction.called.iter().enumerate() {
                    for (leaf, &origin) in operand(branch + 1).iter().enumerate() {
                        if self.all[callee].uses(0, leaf) {
                            self.mark(origin);
                        }
                    }
                }
                let of_branch = |branch: usize, leaf: usize| {
                    let from = self.all[instruction.called[branch]].results.get(leaf).copied();
                    match from {
                        Some(Origin::Passed(from)) => operand(branch + 1).get(from as usize).copied(),
                        other => other,
                    }
                    .unwrap_or(Origin::Mixed)
                };
                of_leaves(&|leaf| {
                    let mut origins = (0..instruction.called.len()).map(|branch| of_branch(branch, leaf));
                    let first = origins.next().unwrap_or(Origin::Mixed);
                    if origins.all(|origin| origin == first) { first } else { Origin::Mixed }
                })
            }
            Opcode::Call if !instruction.called.is_empty() => {
                let callee = &self.all[instruction.called[0]];
                let arguments: Vec<Origin> = (0..instruction.operands.len()).flat_map(operand).copied().collect();
                for (&origin, _) in arguments.iter().zip(&callee.used).filter(|(_, used)| **used) {
                    mark(&mut self.waits.used, origin);
                }
                of_leaves(&|leaf| match callee.results.get(leaf) {
                    Some(Origin::Passed(from)) => arguments.get(*from as usize).copied().unwrap_or(Origin::Mixed),
                    Some(origin) => *origin,
                    None => Origin::Mixed,
                })
            }
            Opcode::AsyncStart | Opcode::AsyncUpdate | Opcode::AsyncDone | Opcode::CopyStart => {
                of_leaves(&|_| Origin::Mixed)
            }
            _ => {
                for index in 0..instruction.operands.len() {
                    for &origin in operand(index) {
                        self.mark(origin);
                    }
                }
                of_leaves(&|_| Origin::Computed)
            }
        }
    }

    fn mark(&mut self, origin: Origin) {
        mark(&mut self.waits.used, origin);
    }
}

fn mark(used: &mut [bool], origin: Origin) {
    if let Origin::Passed(array) = origin
        && let Some(used) = used.get_mut(array as usize)
    {
        *used = true;
    }
}
