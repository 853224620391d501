//! Which arguments of the program are one object.

use std::collections::HashMap;

use super::roots::Roots;
use crate::hlo::{Instruction, Module, Opcode};

/// For each argument, by its number, the first one that is the same object.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    same: HashMap<usize, usize>,
    names: HashMap<usize, String>,
}

impl Arguments {
    /// `same` lists numbers of arguments that are one object. A `Handle` of `entangle_jax` comes as two, its token and its fence, which are
    /// known by their names too, unless `pair_by_name` is false.
    pub(crate) fn new(module: &Module, same: &[Vec<usize>], pair_by_name: bool) -> Self {
        let mut arguments = Self::default();
        let parameters = || module.instructions_of(module.entry).iter().filter(|i| i.opcode == Opcode::Parameter);
        for parameter in parameters() {
            arguments.names.insert(parameter.number, describe(parameter));
        }
        for group in same {
            for pair in group.windows(2) {
                arguments.unite(pair[0], pair[1]);
            }
        }
        if pair_by_name {
            let numbers: HashMap<&str, usize> = parameters().map(|p| (p.op_name.as_str(), p.number)).collect();
            for fence in parameters() {
                let name = &fence.op_name;
                let mut tokens = name
                    .match_indices(".fence")
                    .map(|(start, word)| format!("{}.token{}", &name[..start], &name[start + word.len()..]));
                if let Some(&token) = tokens.find_map(|token| numbers.get(token.as_str())) {
                    arguments.unite(token, fence.number);
                }
            }
        }
        arguments
    }

    /// The root of one array of an argument.
    pub(super) fn root(&self, roots: &mut Roots, parameter: &Instruction, leaf: u32) -> u32 {
        let number = self.first(parameter.number);
        roots.argument(number, leaf, || {
            let name = self.names.get(&number).cloned().unwrap_or_else(|| describe(parameter));
            if parameter.shape.is_tuple() { format!("{name}, element {leaf}") } else { name }
        })
    }

    fn first(&self, mut number: usize) -> usize {
        while let Some(&other) = self.same.get(&number) {
            number = other;
        }
        number
    }

    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.first(a), self.first(b));
        if a != b {
            self.same.insert(a.max(b), a.min(b));
        }
    }
}

fn describe(parameter: &Instruction) -> String {
    let name = if parameter.op_name.is_empty() { &parameter.name } else { &parameter.op_name };
    format!("argument {} ({name})", parameter.number)
}
